"""Codecs that read only some fields of a payload."""

from __future__ import annotations

import json
import logging
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfpubsub.avro.arrow import record_batches
from sfpubsub.avro.change_events import FieldState
from sfpubsub.avro.codec import MAX_PROJECTIONS, Codec, NoCodec
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.options import chosen_fields
from sfpubsub.errors import ConfigurationError, DecodeError, LocalProtocolError, SchemaError
from sfpubsub.types import RawEvent, ReplayId

from .schemas import CORPUS, golden, payload, schema_text, values
from .test_decoder import careful, collect, schemas, value_of

SEED = 17


def picked(value: dict, codec: Codec) -> dict:
    """Return what of a whole value a codec reads."""
    return {name: value[name] for name in codec.fields if name in codec.wanted}


def batch_of(codec: Codec, *payloads: bytes, **more) -> EventBatch:
    return EventBatch(
        subscription="/data/Any",
        topic="/data/Any",
        events=tuple(RawEvent("", codec.schema_id, p, ReplayId(b"1")) for p in payloads),
        codecs={codec.schema_id: codec},
        first_seq=0,
        received_at=0.0,
        ack=lambda first, last: None,
        **more,
    )


@pytest.mark.parametrize("name", CORPUS)
def test_some_fields_are_what_they_are_among_all(name):
    """Values and their order are those of the whole value; what an event is, is always read."""
    print("seed", SEED)
    rng, codec = random.Random(SEED), Codec("id", schema_text(name))
    for number in range(12):
        names = frozenset(rng.sample(codec.fields, number % 5))
        some = codec.only(names)
        assert some.wanted == names | set(codec.always_read)
        assert some.whole is codec
        for value in values(name, 10, seed=number):
            raw = payload(name, value)
            assert list(some.decode(raw)) == [f for f in codec.fields if f in some.wanted]
            assert some._read(raw) == some.decode(raw) == picked(value, some)
            assert some._read != some._decode_carefully
            slow = careful(codec)
            slow.wanted = some.wanted
            assert slow.decode(raw) == picked(value, some)
            assert some.event_time(some.decode(raw)) == codec.event_time(value)


@settings(max_examples=60)
@given(data=st.data())
def test_some_fields_of_random_schemas(data):
    """Any shape of what is stepped over: the fields behind it are right, and so is the end."""
    schema = data.draw(schemas())
    value = value_of(data.draw, schema, collect(schema, {}))
    codec = Codec("id", json.dumps(schema))
    raw = codec.encode(value)
    whole = codec.decode(raw)
    names = frozenset(n for n in codec.fields if data.draw(st.booleans()))
    some = codec.only(names)
    assert some.decode(raw) == picked(whole, some)
    with pytest.raises(DecodeError, match="1 bytes more"):
        some.decode(raw + b"\x00")


@pytest.mark.parametrize("name", CORPUS)
def test_a_payload_has_to_fit_all_of_its_schema(name):
    """Another schema's payload is not taken for ours because the fields that are read make sense.

    Cut anywhere, with a byte too many, or with one byte changed, it is an error for some fields
    where it is for all. Only letters of a text that is not read may be wrong.
    """
    print("seed", SEED)
    rng, codec = random.Random(SEED), Codec("id", schema_text(name))
    some = codec.only(frozenset())
    raw, _ = next(golden(name))
    for end in range(len(raw)):
        with pytest.raises(DecodeError, match=codec.name):
            some.decode(raw[:end])
    with pytest.raises(DecodeError, match="1 bytes more"):
        some.decode(raw + b"\x00")
    for _ in range(300):
        odd = bytearray(raw)
        odd[rng.randrange(len(odd))] = rng.randrange(256)
        try:
            expected = picked(codec.decode(bytes(odd)), some)
        except DecodeError as error:
            if "UTF-8" not in str(error) and "utf-8" not in str(error):
                with pytest.raises(DecodeError):
                    some.decode(bytes(odd))
            continue
        assert some.decode(bytes(odd)) == expected


def test_a_codec_of_some_fields_is_made_once_and_few_are_kept():
    """A program that always asks for other fields does not grow without end."""
    codec = Codec("id", schema_text("order_event"))
    names = frozenset(["Order_Number__c"])
    assert codec.only(names) is codec.only(names)
    for number in range(3 * MAX_PROJECTIONS):
        codec.only(frozenset([f"f{number}"]))
        assert len(codec._only) <= MAX_PROJECTIONS


def test_a_field_that_the_schema_does_not_have_is_left_out_and_told_once(caplog):
    """Fields come and go, and a channel carries several events; a misspelt name is in the log."""
    codec = Codec("id", schema_text("order_event"))
    names = frozenset(["Order_Number__c", "Gone__c", "Also_Gone__c"])
    with caplog.at_level(logging.WARNING):
        for value in values("order_event", 3):
            found = codec.only(names).decode(payload("order_event", value))
            assert set(found) == {"CreatedDate", "Order_Number__c"}
    (told,) = caplog.messages
    assert "Order_Event__e (schema id) has no field Also_Gone__c, Gone__c" in told
    missing = NoCodec("id", SchemaError("no such schema"))
    assert missing.only(names) is missing
    assert len(caplog.messages) == 1


def test_what_an_event_says_of_itself_needs_no_other_field():
    """With no field at all a change event still has its header, bitmaps and time."""
    codec = Codec("id", schema_text("account_change"))
    for value in values("account_change", 20):
        raw = payload("account_change", value)
        (event,), (whole,) = batch_of(codec.only(frozenset()), raw), batch_of(codec, raw)
        assert list(event.value) == ["ChangeEventHeader"]
        assert event.event_time == whole.event_time
        assert event.changed_fields == event.change_event.changed_fields == whole.changed_fields
        assert event.change_event.record_ids == whole.change_event.record_ids


def test_a_field_that_was_not_read_never_looks_unchanged_or_null():
    """Asking what happened to it is an error that says what to do."""
    codec = Codec("id", schema_text("account_change"))
    some = codec.only(frozenset(["Phone", "BillingAddress"]))
    for value in values("account_change", 20):
        raw = payload("account_change", value)
        (event,), (whole,) = batch_of(some, raw), batch_of(codec, raw)
        for name in ("Phone", "BillingAddress", "BillingAddress.City"):
            assert event.change_event.change(name) == whole.change_event.change(name)
        for name in ("Fax", "ShippingAddress.City"):
            with pytest.raises(LocalProtocolError, match=f"{name} of .* was not decoded: add it"):
                event.change_event.change(name)
            assert whole.change_event.change(name).state in FieldState


def test_json_has_the_fields_that_are_read_and_facts_have_all():
    """A line shows what was asked for; a raw table, made of the facts, lacks no field."""
    codec = Codec("id", schema_text("order_event"))
    raw = payload("order_event", next(values("order_event", 1)))
    some = codec.only(frozenset(["Order_Number__c"]))
    for datetimes in (False, True):
        (event,) = batch_of(some, raw, datetimes=datetimes)
        (whole,) = batch_of(codec, raw, datetimes=datetimes)
        assert set(event.value) == {"CreatedDate", "Order_Number__c"}
        assert event.value == picked(whole.value, some)
        assert set(json.loads(event.to_json())) == {"CreatedDate", "Order_Number__c"}
        assert event.facts_and_json() == whole.facts_and_json()


@pytest.mark.parametrize("native", [None, False])
def test_arrow_has_the_fields_that_are_read(native):
    """The struct of the payload has these fields and no others, also where there is none."""
    codec = Codec("id", schema_text("account_change"))
    raws = [payload("account_change", value) for value in values("account_change", 20)]
    (whole,) = record_batches(batch_of(codec, *raws), native=native)
    for names in (["Phone", "BillingAddress", "Name"], []):
        some = codec.only(frozenset(names))
        (rows,) = record_batches(batch_of(some, *raws), native=native)
        assert set(rows.column("value").type.names) == some.wanted
        for name in some.wanted:
            assert rows.column("value").field(name) == whole.column("value").field(name)
        assert rows.drop_columns(["value"]) == whole.drop_columns(["value"])
    bare = Codec("id", json.dumps({"type": "record", "name": "R", "fields": [BARE]}))
    (rows,) = record_batches(batch_of(bare.only(frozenset()), b"\x02", b"\x04"), native=native)
    assert rows.column("value") == pa.array([{}, {}], pa.struct([]))


BARE = {"name": "f", "type": "int"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("Phone", r"use \['Phone'\]"),
        (["BillingAddress.City"], "use 'BillingAddress' instead of 'BillingAddress.City'"),
        (["Phone", 7], "not 7"),
    ],
)
def test_what_is_not_a_list_of_fields_is_refused(fields, says):
    """A text would be taken for its letters, and a part for a field that is not there."""
    with pytest.raises(ConfigurationError, match=says):
        chosen_fields(fields)


def test_the_choice_may_be_any_iterable():
    """Names come from lists, sets and generators; none at all is a choice, too."""
    assert chosen_fields(None) is None
    assert (
        chosen_fields(name for name in ("A", "B")) == chosen_fields(["B", "A", "A"]) == {"A", "B"}
    )
    assert chosen_fields(()) == frozenset()
