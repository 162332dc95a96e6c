"""One schema: decode, encode, and the event's own facts."""

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


def test_a_value_comes_back_as_it_was():
    """Times stay integers in milliseconds; text stays text."""
    assert ORDERS.decode(ORDERS.encode(VALUE)) == VALUE


def test_fields_left_out_take_the_default():
    """A nullable field that is not given is null."""
    short = {"CreatedDate": 1, "CreatedById": "005x"}
    assert ORDERS.decode(ORDERS.encode(short)) == {**short, "City__c": None, "Amount__c": None}


def test_a_codec_knows_its_event():
    """Name, kind and own topic are read from the schema."""
    assert (ORDERS.name, ORDERS.topic, ORDERS.is_change_event) == (
        "Order_Event__e", "/event/Order_Event__e", False,
    )  # fmt: skip
    assert (CHANGES.name, CHANGES.topic, CHANGES.is_change_event) == (
        "AccountChangeEvent", "/data/AccountChangeEvent", True,
    )  # fmt: skip


def test_the_event_time_is_the_events_own():
    """Platform events say when they were made, change events when the change was committed."""
    assert ORDERS.event_time(VALUE) == 1_700_000_000_000
    assert CHANGES.event_time({"ChangeEventHeader": {"commitTimestamp": 7}}) == 7
    assert ORDERS.event_time({}) is None
    assert CHANGES.event_time({"ChangeEventHeader": None}) is None


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_payload_that_is_cut_short_is_an_error(cut: int):
    """Never half an event."""
    payload = ORDERS.encode(VALUE)
    with pytest.raises(DecodeError, match="Order_Event__e"):
        ORDERS.decode(payload[:-cut])


def test_bytes_left_over_are_an_error():
    """T12: a payload of a newer schema is not decoded with an older one in silence."""
    with pytest.raises(DecodeError, match="1 bytes more"):
        ORDERS.decode(ORDERS.encode(VALUE) + b"\x00")


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_raise_one_error(payload: bytes):
    """Garbage from the wire cannot crash a consumer with an error of the Avro library."""
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
def test_a_value_that_does_not_fit_names_the_field(value, says):
    """The publisher learns which field is wrong."""
    with pytest.raises(EncodeError, match=says):
        ORDERS.encode(value)


@pytest.mark.parametrize("text", ["", "{", "[]", '"string"', '{"type": "nonsense"}', "{}"])
def test_a_broken_schema_is_a_typed_error(text: str):
    """Whatever the service sends as a schema, the error names its id."""
    with pytest.raises(SchemaError, match="id9"):
        Codec("id9", text)


def test_schemas_with_the_same_record_names_do_not_meet():
    """Two versions of an event live beside each other."""
    wider = json.loads(ORDER)
    wider["fields"].append({"name": "New__c", "type": ["null", "string"], "default": None})
    newer = Codec("id3", json.dumps(wider))
    payload = newer.encode({**VALUE, "New__c": "x"})
    assert newer.decode(payload)["New__c"] == "x"
    assert ORDERS.decode(ORDERS.encode(VALUE)) == VALUE
