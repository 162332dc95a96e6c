"""Tests of the shared value types: replay ids, start positions and deduplication keys."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.types import ReplayId, ReplayPreset, StartPosition, dedupe_key, start_position

ids = st.binary(min_size=1, max_size=24)


@given(ids)
def test_a_replay_id_survives_its_text_forms(value: bytes):
    """A replay id of any bytes is unchanged after a round trip through hex, base64 or pickle."""
    replay_id = ReplayId(value)
    assert bytes(replay_id) == value
    assert ReplayId.from_hex(replay_id.hex()) == replay_id
    assert ReplayId.from_base64(replay_id.base64()) == replay_id
    assert pickle.loads(pickle.dumps(replay_id)) == replay_id
    assert hash(ReplayId(value)) == hash(replay_id)


def test_replay_ids_cannot_be_ordered_or_converted_to_numbers():
    """Replay ids are opaque: ordering or converting them raises an error."""
    one, other = ReplayId(b"\x01"), ReplayId(b"\x02")
    with pytest.raises(TypeError):
        _ = one < other
    with pytest.raises(TypeError):
        int(one)
    assert one != other


@pytest.mark.parametrize("text", ["", "0", "zz", "01 02", "0x01", "01-02"])
def test_an_invalid_hex_replay_id_is_rejected(text: str):
    """from_hex() raises for text that is not the plain hex of at least one byte."""
    with pytest.raises(ValueError, match="not a replay id"):
        ReplayId.from_hex(text)


@pytest.mark.parametrize("text", ["", "!", "AAA"])
def test_an_invalid_base64_replay_id_is_rejected(text: str):
    """from_base64() raises for text that is not valid base64 of at least one byte."""
    with pytest.raises(ValueError, match="not a replay id in base64"):
        ReplayId.from_base64(text)


def test_an_empty_replay_id_or_a_number_is_rejected():
    """A ReplayId cannot be created from a number, and needs at least one byte."""
    with pytest.raises(TypeError, match="not int"):
        ReplayId(8)
    with pytest.raises(ValueError, match="at least one byte"):
        ReplayId(b"")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_replay_id_equals_its_bytes(kind):
    """Comparing a replay id with bytes compares them, in either order; the hash agrees."""
    assert ReplayId(b"\x00\x17") == kind(b"\x00\x17")
    assert kind(b"\x00\x17") == ReplayId(b"\x00\x17")
    assert ReplayId(b"\x00\x17") != kind(b"\x00\x18")
    assert b"\x00\x17" in {ReplayId(b"\x00\x17")}
    assert ReplayId(b"\x00\x17") != "0017"


@pytest.mark.parametrize(
    ("replay", "says"),
    [
        (b"\x00\x17", r"not bytes; for bytes, give ReplayId\(…\)"),
        (bytearray(b"\x00"), "not bytearray"),
        (None, "must be 'latest', 'earliest', a ReplayId, .* not None"),
        (-2, "must be 'latest', 'earliest', a ReplayId, .* not -2"),
        ("soon", "is not a replay id"),
    ],
)
def test_a_replay_that_is_no_position_says_what_to_give(replay, says):
    """Bytes, None and numbers are refused with the forms that are accepted."""
    with pytest.raises(ValueError, match=says):
        start_position(replay)


def test_start_positions_parse_from_all_accepted_forms():
    """A start position can be given as a preset, a hex string or a ReplayId.

    Only CUSTOM takes an id, and it requires one.
    """
    assert start_position("latest") == StartPosition.latest()
    assert start_position("earliest") == StartPosition.earliest()
    assert start_position("0aff") == StartPosition.after(ReplayId(b"\x0a\xff"))
    assert start_position(ReplayId(b"a")) == StartPosition.after(ReplayId(b"a"))
    assert start_position(StartPosition.latest()) == StartPosition.latest()
    assert str(StartPosition.after(ReplayId(b"\x0a"))) == "after 0a"
    assert str(StartPosition.earliest()) == "earliest"
    with pytest.raises(ValueError, match="CUSTOM"):
        StartPosition(ReplayPreset.CUSTOM)
    with pytest.raises(ValueError, match="CUSTOM"):
        StartPosition(ReplayPreset.LATEST, ReplayId(b"a"))
    with pytest.raises(ValueError, match="not a replay id"):
        start_position("Latest")


def test_the_dedupe_key_of_an_event_depends_only_on_its_id():
    """An event that is redelivered with a different schema or payload encoding has the same key."""
    key = dedupe_key("5a7d8c1e", "schema", b"payload")
    assert len(key) == 16
    assert key == dedupe_key("5a7d8c1e", "other", b"other")
    assert key != dedupe_key("5a7d8c1f", "schema", b"payload")


@given(st.text(max_size=8), st.binary(max_size=8), st.text(max_size=8), st.binary(max_size=8))
def test_the_dedupe_key_without_an_id_uses_schema_and_payload(
    s1: str, p1: bytes, s2: str, p2: bytes
):
    """Without an event id, two keys are equal only if both schema id and payload are equal."""
    assert (dedupe_key("", s1, p1) == dedupe_key("", s2, p2)) == ((s1, p1) == (s2, p2))


def test_the_dedupe_key_never_changes():
    """Keys are stored in tables, so the key of a given event must never change."""
    assert dedupe_key("e9a1", "x", b"y").hex() == "ea89ca8126523daec6889d27ab95cbb3"
    assert dedupe_key("", "schema", b"\x00\x01").hex() == "d0e3f9cdcb336799d7b41649c64027bf"
