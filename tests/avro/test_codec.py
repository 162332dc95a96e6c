"""Tests of the codec for one schema: decoding, encoding, and the event's name, topic and time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import DecodeError, EncodeError, SchemaError

from .schemas import CHANGE, ORDER

ORDERS = Codec("id1", ORDER)
CHANGES = Codec("id2", CHANGE)
VALUE = {
    "CreatedDate": 1_700_000_000_000,
    "CreatedById": "005x",
    "City__c": "Zürich",
    "Amount__c": 1.5,
}


def test_an_encoded_value_is_decoded_unchanged():
    """Times stay integers in milliseconds, and text stays text."""
    assert ORDERS.decode(ORDERS.encode(VALUE)) == VALUE


def test_omitted_fields_use_the_default():
    """A nullable field that is missing is encoded as null."""
    short = {"CreatedDate": 1, "CreatedById": "005x"}
    assert ORDERS.decode(ORDERS.encode(short)) == {**short, "City__c": None, "Amount__c": None}


def test_the_codec_reads_the_events_name_topic_and_kind():
    """The event's name, topic and kind are read from its schema."""
    assert (ORDERS.name, ORDERS.topic, ORDERS.is_change_event) == (
        "Order_Event__e", "/event/Order_Event__e", False,
    )  # fmt: skip
    assert (CHANGES.name, CHANGES.topic, CHANGES.is_change_event) == (
        "AccountChangeEvent", "/data/AccountChangeEvent", True,
    )  # fmt: skip


def test_the_event_time_comes_from_the_event():
    """The event time is when a platform event was created or a change event committed.

    It is None if the event does not contain that time.
    """
    assert ORDERS.event_time(VALUE) == 1_700_000_000_000
    assert CHANGES.event_time({"ChangeEventHeader": {"commitTimestamp": 7}}) == 7
    assert ORDERS.event_time({}) is None
    assert CHANGES.event_time({"ChangeEventHeader": None}) is None


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_truncated_payload_raises(cut: int):
    """A payload without its last bytes raises an error instead of returning part of an event."""
    payload = ORDERS.encode(VALUE)
    with pytest.raises(DecodeError, match="Order_Event__e"):
        ORDERS.decode(payload[:-cut])


def test_trailing_bytes_raise():
    """A payload that continues after the last field, as one of a newer schema would, is not
    decoded silently.
    """
    with pytest.raises(DecodeError, match="1 bytes more"):
        ORDERS.decode(ORDERS.encode(VALUE) + b"\x00")


@given(st.binary(max_size=40))
def test_random_bytes_decode_or_raise_decode_error(payload: bytes):
    """Random bytes decode to an event with all fields, or raise `DecodeError` and nothing else."""
    try:
        value = ORDERS.decode(payload)
    except DecodeError:
        return
    assert set(value) == set(VALUE)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"CreatedDate": 1}, "'CreatedById'"),
        ({**VALUE, "Nope__c": 1}, "no field 'Nope__c'"),
        ({**VALUE, "Amount__c": "many"}, "Amount__c"),
        ({**VALUE, "CreatedDate": "today"}, "CreatedDate"),
        ({**VALUE, "CreatedDate": 2**70}, "CreatedDate"),
    ],
)
def test_an_invalid_value_names_the_field(value, says):
    """The error of an event that can't be encoded names the field that is missing, unknown or of
    a wrong type.
    """
    with pytest.raises(EncodeError, match=says):
        ORDERS.encode(value)


@pytest.mark.parametrize("text", ["", "{", "[]", '"string"', '{"type": "nonsense"}', "{}"])
def test_a_broken_schema_raises_a_schema_error(text: str):
    """A schema that is broken in any way raises a `SchemaError` that contains the schema's id."""
    with pytest.raises(SchemaError, match="id9"):
        Codec("id9", text)


def test_two_schemas_with_one_record_name_do_not_interfere():
    """Two versions of an event's schema can be used side by side."""
    wider = json.loads(ORDER)
    wider["fields"].append({"name": "New__c", "type": ["null", "string"], "default": None})
    newer = Codec("id3", json.dumps(wider))
    payload = newer.encode({**VALUE, "New__c": "x"})
    assert newer.decode(payload)["New__c"] == "x"
    assert ORDERS.decode(ORDERS.encode(VALUE)) == VALUE
