"""Events rendered as lines of JSON."""

from __future__ import annotations

import base64
import json

import pytest

from sfpubsub import native
from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.avro.schema_cache import MAX_SCHEMAS
from sfpubsub.cli.render import EventLines
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.errors import DecodeError, SchemaError
from sfpubsub.types import RawEvent, ReplayId

from ..avro.schemas import CHANGE, ORDER

ODD = 'a"b\\c\n\x01\u2028ü🙂'


def event_of(codec: Codec, payload: bytes, *, topic: str | None, event_id: str = "e") -> Event:
    """Return an event of *codec*'s schema with *payload*."""
    (event,) = EventBatch(
        subscription=topic or f"managed {ODD}",
        topic=topic,
        events=(RawEvent(event_id, codec.schema_id, payload, ReplayId(b"\x00\xff")),),
        codecs={codec.schema_id: codec},
        first_seq=0,
        received_at=0.0,
        ack=lambda first, last: None,
    )
    return event


def expected_line(event: Event, payload: object) -> str:
    """Return the output line that `json.dumps` produces for *event* with the decoded *payload*."""
    line = {
        "topic": event.topic,
        "subscription": event.subscription,
        "event_id": event.id,
        "replay_id": event.replay_id.hex(),
        "schema_id": event.schema_id,
        "event_name": event.event_name,
        "payload": payload,
    }
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"


@pytest.mark.parametrize("raw", [False, True])
def test_line_equals_the_output_of_json(raw):
    """A line equals what ``json`` would write, whatever characters are in ids and topics and
    however schemas and topics alternate.
    """
    order, change = Codec(ODD, ORDER), Codec("change", CHANGE)
    values = {
        order: {"CreatedDate": 1, "CreatedById": ODD, "City__c": None, "Amount__c": 0.5},
        change: {"ChangeEventHeader": {"commitTimestamp": 2}, "Name": ODD},
    }
    lines = EventLines(raw=raw)
    for event_id in ("e", "", ODD, '"'):
        for topic in ("/event/Order_Event__e", None, f"/event/{ODD}"):
            for codec, value in values.items():
                payload = codec.encode(value)
                event = event_of(codec, payload, topic=topic, event_id=event_id)
                shown = base64.b64encode(payload).decode() if raw else value
                assert lines.line(event) == expected_line(event, shown)
                assert lines.utf8_line(event) == expected_line(event, shown).encode()


def test_two_schemas_with_one_id_do_not_share_cached_parts():
    """Cached parts of a line belong to one schema, so each event is rendered with its own schema's
    name.
    """
    lines = EventLines(raw=False)
    for text, value in ((ORDER, {"CreatedDate": 1, "CreatedById": ""}), (CHANGE, None)):
        codec = Codec("same", text)
        value = value or {"ChangeEventHeader": {"commitTimestamp": 2}}
        event = event_of(codec, codec.encode(value), topic=None)
        assert json.loads(lines.line(event))["event_name"] == codec.name


def test_cache_of_common_parts_is_bounded():
    """The cache keeps to its limit even if every event has a new, unavailable schema.

    Decoding such an event raises DecodeError.
    """
    lines = EventLines(raw=True)
    for number in range(2 * MAX_SCHEMAS + 1):
        event = event_of(NoCodec("gone", SchemaError(f"no {number}")), b"", topic="/event/X")
        assert lines.line(event) == expected_line(event, "")
        assert len(lines._common) <= MAX_SCHEMAS
    with pytest.raises(DecodeError, match="no 7"):
        EventLines(raw=False).line(event_of(NoCodec("x", SchemaError("no 7")), b"", topic=None))
    with pytest.raises(DecodeError, match="no 7"):
        EventLines(raw=False).utf8_line(
            event_of(NoCodec("x", SchemaError("no 7")), b"", topic=None)
        )


def test_value_decoded_for_its_json_is_kept(monkeypatch):
    """Without the compiled decoder, `to_json` decodes the event and `value` reuses the result."""
    monkeypatch.setattr(native, "compiled", None)
    codec = Codec("order", ORDER)
    event = event_of(codec, codec.encode({"CreatedDate": 5, "CreatedById": "x"}), topic=None)
    text = event.to_json()
    assert event._value is not None
    assert event.value is event._value
    assert event.to_json() == text
    assert json.loads(text) == event.value
