"""Tests of codecs that decode only some fields of a payload."""

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


def decoded_part(value: dict, codec: Codec) -> dict:
    """Return those fields of a decoded value that *codec* decodes."""
    return {name: value[name] for name in codec.fields if name in codec.wanted}


def batch_of(codec: Codec, *payloads: bytes, **more) -> EventBatch:
    """Return a batch of received events with these payloads."""
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
def test_chosen_fields_have_the_values_of_a_full_decoding(name):
    """Decoding some fields returns the same values, in the same order, as decoding all of them."""
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
            assert some._read(raw) == some.decode(raw) == decoded_part(value, some)
            assert some._read != some._decode_carefully
            slow = careful(codec)
            slow.wanted = some.wanted
            assert slow.decode(raw) == decoded_part(value, some)
            assert some.event_time(some.decode(raw)) == codec.event_time(value)


@settings(max_examples=60)
@given(data=st.data())
def test_chosen_fields_of_random_schemas(data):
    """Skipped fields of any type don't affect the chosen ones, and an extra byte is detected."""
    schema = data.draw(schemas())
    value = value_of(data.draw, schema, collect(schema, {}))
    codec = Codec("id", json.dumps(schema))
    raw = codec.encode(value)
    whole = codec.decode(raw)
    names = frozenset(n for n in codec.fields if data.draw(st.booleans()))
    some = codec.only(names)
    assert some.decode(raw) == decoded_part(whole, some)
    with pytest.raises(DecodeError, match="1 bytes more"):
        some.decode(raw + b"\x00")


@pytest.mark.parametrize("name", CORPUS)
def test_skipped_fields_are_validated(name):
    """A payload must match the whole schema, even if no field was chosen.

    A truncated payload, an extra byte or a corrupt byte raises an error whenever a full decoding
    would, except for invalid UTF-8 in skipped fields.
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
            expected = decoded_part(codec.decode(bytes(odd)), some)
        except DecodeError as error:
            if "UTF-8" not in str(error) and "utf-8" not in str(error):
                with pytest.raises(DecodeError):
                    some.decode(bytes(odd))
            continue
        assert some.decode(bytes(odd)) == expected


def test_codecs_of_chosen_fields_are_cached_within_a_limit():
    """Choosing the same fields again returns the cached codec; the cache has a size limit."""
    codec = Codec("id", schema_text("order_event"))
    names = frozenset(["Order_Number__c"])
    assert codec.only(names) is codec.only(names)
    for number in range(3 * MAX_PROJECTIONS):
        codec.only(frozenset([f"f{number}"]))
        assert len(codec._only) <= MAX_PROJECTIONS


def test_unknown_fields_are_omitted_and_logged_once(caplog):
    """A chosen field that the event type lacks is omitted, and reported in the log once.

    It may be misspelt, or belong to another event type of the channel.
    """
    codec = Codec("id", schema_text("order_event"))
    names = frozenset(["Order_Number__c", "Gone__c", "Also_Gone__c"])
    with caplog.at_level(logging.WARNING):
        for value in values("order_event", 3):
            found = codec.only(names).decode(payload("order_event", value))
            assert set(found) == {"CreatedDate", "Order_Number__c"}
    (told,) = caplog.messages
    assert "Order_Event__e (schema id) lacks these requested fields" in told
    assert told.endswith(": Also_Gone__c, Gone__c")
    missing = NoCodec("id", SchemaError("no such schema"))
    assert missing.only(names) is missing
    assert len(caplog.messages) == 1


def test_an_event_without_chosen_fields_keeps_its_header():
    """Even if no field is chosen, a change event keeps its header, changes and event time."""
    codec = Codec("id", schema_text("account_change"))
    for value in values("account_change", 20):
        raw = payload("account_change", value)
        (event,), (whole,) = batch_of(codec.only(frozenset()), raw), batch_of(codec, raw)
        assert list(event.value) == ["ChangeEventHeader"]
        assert event.event_time == whole.event_time
        assert event.changed_fields == event.change_event.changed_fields == whole.changed_fields
        assert event.change_event.record_ids == whole.change_event.record_ids


def test_asking_for_the_change_of_a_skipped_field_raises():
    """Asking for the change of a field that was not chosen raises an error.

    The error says to add the field to the choice.
    """
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


def test_json_has_the_chosen_fields_but_raw_tables_have_all():
    """An event's JSON contains only the chosen fields and CreatedDate.

    The row for the raw table still contains all fields.
    """
    codec = Codec("id", schema_text("order_event"))
    raw = payload("order_event", next(values("order_event", 1)))
    some = codec.only(frozenset(["Order_Number__c"]))
    for datetimes in (False, True):
        (event,) = batch_of(some, raw, datetimes=datetimes)
        (whole,) = batch_of(codec, raw, datetimes=datetimes)
        assert set(event.value) == {"CreatedDate", "Order_Number__c"}
        assert event.value == decoded_part(whole.value, some)
        assert set(json.loads(event.to_json())) == {"CreatedDate", "Order_Number__c"}
        assert event.facts_and_json() == whole.facts_and_json()


@pytest.mark.parametrize("native", [None, False])
def test_arrow_has_the_chosen_fields(native):
    """The Arrow column `value` contains only the decoded fields, and may have none.

    All other columns are the same as without a choice of fields.
    """
    codec = Codec("id", schema_text("account_change"))
    raws = [payload("account_change", value) for value in values("account_change", 20)]
    (whole,) = record_batches(batch_of(codec, *raws), native=native)
    for names in (["Phone", "BillingAddress", "Name"], []):
        some = codec.only(frozenset(names))
        (rows,) = record_batches(batch_of(some, *raws), native=native)
        assert {field.name for field in rows.column("value").type} == some.wanted
        for name in some.wanted:
            assert rows.column("value").field(name) == whole.column("value").field(name)
        others = [name for name in rows.schema.names if name != "value"]
        assert rows.select(others) == whole.select(others)
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
def test_an_invalid_choice_of_fields_raises(fields, says):
    """A choice that is a single string, or that contains a part of a field or a non-string, raises
    a configuration error.
    """
    with pytest.raises(ConfigurationError, match=says):
        chosen_fields(fields)


def test_the_choice_of_fields_may_be_any_iterable():
    """The names of the chosen fields may come from any iterable, even a generator.

    An empty choice means no fields, and None means no choice.
    """
    assert chosen_fields(None) is None
    assert (
        chosen_fields(name for name in ("A", "B")) == chosen_fields(["B", "A", "A"]) == {"A", "B"}
    )
    assert chosen_fields(()) == frozenset()
