"""Tests of events as Arrow record batches.

Events are converted by the compiled decoder ("native") or through Python dicts ("dicts"). Both
routes give equal results, and neither loses a payload.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import threading
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfpubsub import native
from sfpubsub.avro import arrow
from sfpubsub.avro.arrow import EVENT_COLUMNS, arrow_type, record_batches
from sfpubsub.avro.arrow_types import Shape, shape_of
from sfpubsub.avro.arrow_values import Values, values_of
from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import ConfigurationError, DecodeError, SchemaError, SchemaNotFoundError
from sfpubsub.native import is_installed
from sfpubsub.types import RawEvent, ReplayId

from .schemas import CORPUS, golden, payload, schema_text, values

NATIVE = is_installed()
needs_native = pytest.mark.skipif(not NATIVE, reason="sfpubsub-native is not installed")
ROUTES = [pytest.param(True, id="native", marks=needs_native), pytest.param(False, id="dicts")]

ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "City", "type": ["null", "string"]}, {"name": "Zip", "type": "int"}],
}


def event_schema(*types: Any, name: str = "Test_Event__e") -> str:
    """Return the schema of a platform event whose fields F0, F1 and so on have the given types."""
    fields = [{"name": f"F{n}", "type": type_} for n, type_ in enumerate(types)]
    return json.dumps(
        {"type": "record", "name": name, "namespace": "com.sforce.eventbus", "fields": fields}
    )


def encode_rows(schema_json: str, *rows: Any) -> list[bytes]:
    """Return *rows* encoded by fastavro; a row is a dict, or the values of F0, F1 and so on."""
    schema = fastavro.parse_schema(json.loads(schema_json))
    payloads = []
    for row in rows:
        out = io.BytesIO()
        value = row if isinstance(row, dict) else {f"F{n}": v for n, v in enumerate(row)}
        fastavro.schemaless_writer(out, schema, value)
        payloads.append(out.getvalue())
    return payloads


def decode(schema_json: str, payloads: list[bytes], native: bool) -> tuple[pa.StructArray, dict]:
    """Decode *payloads* natively or through dicts; return the validated array, and the errors of
    rejected payloads by index.
    """
    decoder = Values("S", schema_json, native=native)
    array, rejected = decoder.decode(payloads)
    array.validate(full=True)
    assert str(array.type) == str(decoder.type)
    return array, rejected


def as_decoded(shape: Shape, value: Any) -> Any:
    """Convert a value of an Arrow row to what `Codec.decode` returns.

    A union becomes its plain value.
    """
    if value is None or shape.kind in ("null", "enum"):
        return value
    if shape.kind == "optional":
        return as_decoded(shape.children[0], value)
    if shape.kind == "union":
        members = zip(shape.children, value.values(), strict=True)
        return next(as_decoded(child, v) for child, v in members if v is not None)
    if shape.kind == "record":
        children = zip(shape.children, value.items(), strict=True)
        return {name: as_decoded(child, v) for child, (name, v) in children}
    if shape.kind == "array":
        return [as_decoded(shape.children[0], v) for v in value]
    if shape.kind == "map":
        return {key: as_decoded(shape.children[0], v) for key, v in value}
    return value


def assert_routes_agree(schema_json: str, payloads: list[bytes]) -> pa.StructArray:
    """Check that both routes agree on values, types and errors, and match `Codec.decode`.

    Return the array.
    """
    by_dicts, bad = decode(schema_json, payloads, native=False)
    codec, plain = Codec("S", schema_json), []
    for number, data in enumerate(payloads):
        try:
            plain.append(codec.decode(data))
        except DecodeError:
            assert number in bad
    rows = [as_decoded(shape_of(schema_json), row) for row in by_dicts.to_pylist()]
    assert repr(rows) == repr(plain)
    if NATIVE:
        natively, rejected = decode(schema_json, payloads, native=True)
        assert str(by_dicts.type) == str(natively.type)
        assert repr(by_dicts.to_pylist()) == repr(natively.to_pylist())  # NaN is not equal to NaN
        assert {n: str(e) for n, e in bad.items()} == {n: str(e) for n, e in rejected.items()}
    return by_dicts


def received(
    codecs: list[Codec],
    events: list[tuple[int, bytes]],
    *,
    first_seq: int = 0,
    topic: str | None = "/event/Test_Event__e",
) -> EventBatch:
    """Return a received batch; each event is given as the index of its codec and its payload."""
    return EventBatch(
        subscription="My_Subscription",
        topic=topic,
        events=tuple(
            RawEvent(f"id-{seq}", codecs[n].schema_id, data, ReplayId(b"%08d" % seq))
            for seq, (n, data) in enumerate(events, first_seq)
        ),
        codecs={codec.schema_id: codec for codec in codecs},
        first_seq=first_seq,
        received_at=1_790_000_000.25,
        ack=lambda first, last: None,
    )


def parquet(batch: pa.RecordBatch) -> pa.Table:
    """Write *batch* to an in-memory Parquet file, and return the table read back from it."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), file)
    return pq.read_table(io.BytesIO(file.getvalue()))


# --- types


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        ("boolean", "bool"),
        ("int", "int32"),
        ("long", "int64"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        (["null", "string"], "string"),
        (["string", "null"], "string"),
        (["double"], "double"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int64"),
        ({"type": {"type": "string"}}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "fixed_size_binary[4]"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": "string"}, "list<item: string>"),
        ({"type": "array", "items": ["null", "long"]}, "list<item: int64>"),
        ({"type": "map", "values": "long"}, "map<string, int64>"),
        (ADDRESS, "struct<City: string, Zip: int32>"),
        (["null", ADDRESS], "struct<City: string, Zip: int32>"),
        (
            ["null", "string", ADDRESS],
            "struct<string: string, Address: struct<City: string, Zip: int32>>",
        ),
        (
            ["string", ADDRESS],
            "struct<string: string, Address: struct<City: string, Zip: int32>>",
        ),
        (["null", "int", "long"], "struct<int: int32, long: int64>"),
    ],
)
def test_each_avro_type_has_an_arrow_type(avro, expected):
    """Each Avro type has the Arrow type that is documented for it."""
    assert str(arrow_type(event_schema(avro)).field("F0").type) == expected


def test_a_reference_has_the_type_that_it_names():
    """A field that refers to a record by name has the same Arrow type as the field that defines
    the record.
    """
    type_ = arrow_type(event_schema(["null", ADDRESS], ["null", "Address"], "Address"))
    assert type_.field("F0").type == type_.field("F1").type == type_.field("F2").type


def test_union_members_with_the_same_short_name_stay_distinct():
    """Two records with the same name in two namespaces keep the namespace in their column names."""
    one = {"type": "record", "name": "a.X", "fields": [{"name": "p", "type": "int"}]}
    other = {"type": "record", "name": "b.X", "fields": [{"name": "q", "type": "int"}]}
    schema = event_schema(["null", one, other], ["string", "a.X", "b.X"])
    type_ = arrow_type(schema)
    assert type_.field("F0").type.names == ["a_X", "b_X"]
    assert type_.field("F1").type.names == ["string", "a_X", "b_X"]
    rows = [[("b.X", {"q": 2}), "s"], [("a.X", {"p": 1}), ("b.X", {"q": 3})], [None, "t"]]
    array = assert_routes_agree(schema, encode_rows(schema, *rows))
    assert array.to_pylist()[1] == {
        "F0": {"a_X": {"p": 1}, "b_X": None},
        "F1": {"string": None, "a_X": None, "b_X": {"q": 3}},
    }


def bomb(levels: int) -> str:
    """Return a small schema that has 2 ** levels types once its references are expanded."""
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for n in range(1, levels):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{n - 1}"}]
        inner = {"type": "record", "name": f"R{n}", "fields": fields}
    return event_schema(inner)


@pytest.mark.parametrize(
    ("schema_json", "reason"),
    [
        (
            event_schema(
                {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
            ),
            "contains itself",
        ),
        (event_schema(["null", "com.sforce.eventbus.Test_Event__e"]), "contains itself"),
        (event_schema({"type": "record", "name": "E", "fields": []}), "has no fields"),
        (event_schema(["null"]), "has no type other than null"),
        (event_schema("Missing"), "is not defined"),
        (event_schema(["string", "string"]), "two members with the same name"),
        (bomb(40), "more than"),
        ('"string"', "not an Avro record schema"),
        ("{", "not a valid Avro schema"),
        ('{"type": "record", "name": "X"}', "not a valid Avro schema"),
        ('{"type": "enum", "name": "X", "symbols": [1]}', "not an Avro record schema"),
        ("[" * 100_000, "not a valid Avro schema"),
    ],
)
def test_a_schema_without_an_arrow_form_is_rejected(schema_json, reason):
    """A schema that is recursive, invalid, too large or has an empty record raises a
    `SchemaError` with the reason.
    """
    with pytest.raises(SchemaError, match=reason):
        arrow_type(schema_json)


# --- the two routes


@pytest.mark.parametrize("name", CORPUS)
def test_both_routes_agree_on_the_corpus(name):
    """Each schema of the corpus can use the native route, and both routes return the values of
    `Codec.decode`.
    """
    payloads = [payload(name, value) for value in values(name, 300)]
    payloads += [data for data, _ in golden(name)]
    array = assert_routes_agree(schema_text(name), payloads)
    assert len(array) == len(payloads)
    assert values_of(name, schema_text(name), True).is_native is NATIVE
    codec = Codec(name, schema_text(name))
    for row, data in zip(array.to_pylist(), payloads, strict=True):
        value = codec.decode(data)
        if isinstance(row.get("Name"), dict) and "string" in row["Name"]:  # the union
            row["Name"] = next((v for v in row["Name"].values() if v is not None), None)
        assert row == value


NUMBERS = st.integers(-(2**63), 2**63 - 1)


class Scope:
    """The named types defined so far in a random schema, and the number of names used."""

    def __init__(self) -> None:
        self.named: list[Any] = []
        self.count = 0


@st.composite
def avro_types(draw: st.DrawFn, scope: Scope, depth: int = 2) -> tuple[Any, Any]:
    """Draw a type for a field of an event, and a strategy for its values."""
    simple = {
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": NUMBERS,
        "float": st.floats(width=32),
        "double": st.floats(),
        "string": st.text(max_size=20),
        "bytes": st.binary(max_size=9),
    }
    kinds = [*simple, "enum", "fixed", "null"]
    if scope.named:
        kinds += ["reference"] * 3
    if depth:
        kinds += ["record", "array", "map", "optional", "optional", "union", "single"]
    kind = draw(st.sampled_from(kinds))
    if kind in simple:
        return kind, simple[kind]
    if kind == "null":
        return kind, st.none()
    if kind == "reference":
        return draw(st.sampled_from(scope.named))
    inner = avro_types(scope, depth - 1)
    if kind == "array":
        items, each = draw(inner)
        return {"type": "array", "items": items}, st.lists(each, max_size=3)
    if kind == "map":
        items, each = draw(inner)
        return {"type": "map", "values": items}, st.dictionaries(st.text(max_size=3), each)
    if kind == "single":
        items, each = draw(inner)
        if isinstance(items, list) or items == "null":
            return items, each
        return [items], st.tuples(st.just(label_of(items)), each)
    if kind in ("optional", "union"):
        return draw(avro_unions(scope, depth, kind))
    scope.count += 1
    name = f"N{scope.count}"
    made: tuple[Any, Any]
    if kind == "enum":
        symbols = ["A", "Bb", "CCC"]
        made = ({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols))
    elif kind == "fixed":
        made = ({"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3))
    else:
        fields, each = [], {}
        for number in range(draw(st.integers(1, 3))):
            type_, strategy = draw(inner)
            fields.append({"name": f"f{number}", "type": type_})
            each[f"f{number}"] = strategy
        made = ({"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(each))
    scope.named.append((f"com.sforce.eventbus.{name}", made[1]))
    return made


def label_of(type_: Any) -> str:
    """Return the label of *type_* as a branch of a union, or ``union`` if it is itself a union.

    fastavro needs the label, because it cannot choose a branch that contains a named enum or fixed.
    """
    if not isinstance(type_, dict):
        return type_ if isinstance(type_, str) else "union"
    return f"com.sforce.eventbus.{type_['name']}" if "name" in type_ else str(type_["type"])


@st.composite
def avro_unions(draw: st.DrawFn, scope: Scope, depth: int, kind: str) -> tuple[Any, Any]:
    """Draw a union, in which null may occur at any place, and a strategy for its values.

    A value other than null is a tuple of its branch's label and the value itself.
    """
    count = 1 if kind == "optional" else draw(st.integers(2, 3))
    branches: list[Any] = []
    strategies = []
    taken = set()
    for _ in range(count):
        before = len(scope.named)
        type_, each = draw(avro_types(scope, depth - 1))
        label = label_of(type_)
        if label in ("union", "null") or label in taken:
            del scope.named[before:]
            label, type_, each = "string", "string", st.text(max_size=5)
            if label in taken:
                continue
        taken.add(label)
        branches.append(type_)
        strategies.append(st.tuples(st.just(label), each))
    if kind == "optional" or draw(st.booleans()):
        branches.insert(draw(st.integers(0, len(branches))), "null")
        strategies.append(st.none())
    return branches, st.one_of(strategies)


@st.composite
def events(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Draw a schema, and payloads that were encoded with it."""
    scope = Scope()
    made = [draw(avro_types(scope)) for _ in range(draw(st.integers(1, 5)))]
    schema_json = event_schema(*(type_ for type_, _ in made))
    rows = draw(st.lists(st.tuples(*(each for _, each in made)), min_size=1, max_size=6))
    return schema_json, encode_rows(schema_json, *rows)


RANDOM = settings(max_examples=60, derandomize=True)


@RANDOM
@given(events())
def test_both_routes_agree_on_random_schemas(made):
    """For random schemas and values, both routes return equal arrays that contain all payloads."""
    schema_json, payloads = made
    array = assert_routes_agree(schema_json, payloads)
    assert len(array) == len(payloads)


@RANDOM
@given(events(), st.data())
def test_both_routes_agree_on_damaged_payloads(made, data):
    """A payload with bytes changed, removed or inserted is rejected by both routes, or read with
    equal values.
    """
    schema_json, payloads = made
    damaged = []
    for one in payloads:
        at = data.draw(st.integers(0, len(one)))
        new = data.draw(st.binary(max_size=2))
        damaged.append(one[:at] + new + one[at + data.draw(st.integers(0, 2)) :])
    assert_routes_agree(schema_json, damaged)


# --- bad payloads


def zigzag(number: int) -> bytes:
    """Return *number* encoded as an Avro long."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


GOOD = {
    "string": zigzag(1) + b"x",
    "int": zigzag(7),
    "boolean": b"\1",
    "list": zigzag(1) + zigzag(1) + b"x" + b"\0",
    "enum": zigzag(0),
    "union": zigzag(1) + zigzag(1) + b"x",
}
TYPES = {
    "list": {"type": "array", "items": "string"},
    "enum": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "union": ["null", "string", ADDRESS],
}

BAD = [
    pytest.param("string", zigzag(1) + b"xy", id="one byte left over"),
    pytest.param("string", zigzag(1) + b"x" * 9, id="eight bytes left over"),
    pytest.param("string", zigzag(1) + b"x" * 1000, id="many bytes left over"),
    pytest.param("string", zigzag(2) + b"x", id="too short by one"),
    pytest.param("string", zigzag(9) + b"x", id="too short by eight"),
    pytest.param("string", b"", id="nothing"),
    pytest.param("string", zigzag(2) + b"\xff\xfe", id="not UTF-8"),
    pytest.param("string", zigzag(3) + b"\xed\xa0\x80", id="half a surrogate pair"),
    pytest.param("string", zigzag(-5), id="negative length"),
    pytest.param("string", zigzag(2**60) + b"x", id="length of 2^60"),
    pytest.param("int", zigzag(2**40), id="integer beyond 32 bits"),
    pytest.param("list", zigzag(2**62) + b"x", id="block of 2^62"),
    pytest.param("list", zigzag(-(2**62)) + zigzag(5) + b"x", id="block of -2^62"),
    pytest.param("enum", zigzag(2), id="symbol beyond the last"),
    pytest.param("enum", zigzag(-1), id="negative symbol"),
    pytest.param("union", zigzag(3), id="branch beyond the last"),
    pytest.param("union", zigzag(-1), id="negative branch"),
]


@pytest.mark.parametrize("native", ROUTES)
@pytest.mark.parametrize(("kind", "bad"), BAD)
def test_only_the_bad_payload_is_rejected(kind, bad, native):
    """A bad payload is rejected wherever it occurs, and all other payloads are decoded."""
    schema_json = event_schema(TYPES.get(kind, kind), "long")
    good = [GOOD[kind] + zigzag(n) for n in range(48)]
    # With the long first, the bad value is the end of the payload.
    last = event_schema("long", TYPES.get(kind, kind))
    for at in (0, 16, len(good)):
        payloads = [zigzag(n) + GOOD[kind] for n in range(48)]
        payloads.insert(at, zigzag(0) + bad)
        array, rejected = decode(last, payloads, native)
        assert list(rejected) == [at]
        assert isinstance(rejected[at], DecodeError)
        assert array.field("F0").to_pylist() == list(range(48))
    array, rejected = decode(schema_json, good, native)
    assert (len(array), rejected) == (48, {})


@pytest.mark.parametrize("native", ROUTES)
def test_rejected_payloads_are_reported_by_index(native):
    """Rejected payloads are reported by index, and the other payloads stay in order."""
    schema_json = event_schema("long")
    bad = set(random.Random(4).sample(range(2_000), 37))
    payloads = [b"" if n in bad else zigzag(n) for n in range(2_000)]
    array, rejected = decode(schema_json, payloads, native)
    assert sorted(rejected) == sorted(bad)
    assert array.field("F0").to_pylist() == [n for n in range(2_000) if n not in bad]


@pytest.mark.parametrize("native", ROUTES)
def test_a_batch_of_only_bad_payloads_is_empty(native):
    """If every payload is rejected, the array is empty."""
    array, rejected = decode(event_schema("long"), [b""] * 100, native)
    assert (len(array), len(rejected)) == (0, 100)


@needs_native
def test_good_payloads_are_not_decoded_in_python(monkeypatch):
    """On the native route, Python decodes only the single bad payload among a thousand."""
    decoded = []
    decoder = Values("S", event_schema("long"), native=True)
    slow = decoder._codec.decode
    monkeypatch.setattr(decoder._codec, "decode", lambda data: decoded.append(data) or slow(data))
    payloads = [zigzag(n) for n in range(1_000)]
    assert len(decoder.decode(payloads)[0]) == 1_000
    assert decoded == []
    payloads[500] = b""
    assert len(decoder.decode(payloads)[0]) == 999
    assert decoded == [b""]


@needs_native
@pytest.mark.parametrize(
    "type_",
    [
        "null",
        {"type": "array", "items": "null"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "fixed", "name": "F", "size": 0},
        ["string"],
        ["string", "null"],
    ],
)
def test_types_unsupported_by_the_compiled_decoder_use_dicts(type_):
    """Some types are decoded through dicts, because the compiled decoder does not support them.

    These are rare types, and types whose values take no bytes and could repeat without limit.
    """
    assert not Values("S", event_schema("long", type_), native=True).is_native


# --- record batches


@pytest.mark.parametrize("native", ROUTES)
def test_the_envelope_columns_equal_the_events_attributes(native):
    """Each envelope column equals the matching attribute of the event or batch, whether values are
    decoded natively or through dicts.
    """
    codec = Codec("acct", schema_text("account_change"))
    payloads = [payload("account_change", value) for value in values("account_change", 20)]
    batch = received([codec], [(0, data) for data in payloads], first_seq=40)
    (made,) = record_batches(batch, native=native)
    assert made.schema.names == [*EVENT_COLUMNS.names, "value"]
    for row, event in zip(made.to_pylist(), batch, strict=True):
        assert row["event_id"] == event.id
        assert row["dedupe_key"] == event.dedupe_key
        assert row["replay_id"] == bytes(event.replay_id)
        assert row["topic"] == event.topic
        assert row["subscription"] == event.subscription
        assert row["schema_id"] == event.schema_id
        assert row["event_name"] == event.event_name
        assert round(row["event_time"].timestamp() * 1000) == event.event_time
        assert row["received_at"].timestamp() == batch.received_at
        assert row["delivery_seq"] == event.delivery_seq
        assert row["payload"] == event.payload


def test_an_unnamed_topic_is_derived_from_the_event_type():
    """Without a topic in the batch, the topic column contains the event type's own topic.

    A managed subscription does not name its topic.
    """
    batch = received([Codec("S", event_schema("long"))], [(0, zigzag(1))], topic=None)
    (made,) = record_batches(batch)
    assert made.column("topic").to_pylist() == ["/event/Test_Event__e"]


@pytest.mark.parametrize("native", ROUTES)
@pytest.mark.parametrize(
    ("type_", "time", "expected"),
    [
        ("long", 1_790_000_000_123, 1_790_000_000_123_000),
        ("long", 0, 0),
        ("long", 253_402_300_799_999, 253_402_300_799_999_000),
        ("long", 253_402_300_800_000, None),
        ("long", -62_135_596_800_000, -62_135_596_800_000_000),
        ("long", -62_135_596_800_001, None),
        ("long", 2**63 - 1, None),
        ("int", 5, 5_000),
        (["null", "long"], None, None),
        ("string", "today", None),
        (["null", "string", "long"], "today", None),
    ],
)
def test_the_event_time_is_read_from_the_value(type_, time, expected, native):
    """``event_time`` is CreatedDate in milliseconds, or null if Spark can't represent it as a
    timestamp.
    """
    fields = [{"name": "CreatedDate", "type": type_}]
    schema_json = json.dumps({"type": "record", "name": "T__e", "fields": fields})
    (data,) = encode_rows(schema_json, {"CreatedDate": time})
    (other,) = encode_rows(schema_json, {"CreatedDate": 3 if type_ in ("long", "int") else time})
    (made,) = record_batches(
        received([Codec("S", schema_json)], [(0, data), (0, other)]), native=native
    )
    column = made.column("event_time").cast(pa.int64()).to_pylist()
    assert column == [expected, 3_000 if type_ in ("long", "int") else expected]


def test_an_event_without_a_time_has_a_null_event_time():
    """An event with neither CreatedDate nor a change event's header has no event time."""
    (made,) = record_batches(received([Codec("S", event_schema("long"))], [(0, b"\2")]))
    assert made.column("event_time").to_pylist() == [None]


@pytest.mark.parametrize("native", ROUTES)
def test_events_are_grouped_by_schema(native):
    """Events of several responses become one record batch per schema, in the order of the
    schemas' first events.
    """
    names = ["order_event", "order_event_v2", "shipment_change"]
    codecs = [Codec(name, schema_text(name)) for name in names]
    rng = random.Random(7)
    made_of = {n: [payload(name, v) for v in values(name, 90)] for n, name in enumerate(names)}
    picks = [rng.randrange(3) for _ in range(90)]
    picks[0] = 1
    all_events = [(n, made_of[n][i]) for i, n in enumerate(picks)]
    batches = [
        received(codecs, all_events[start : start + 30], first_seq=100 + start)
        for start in range(0, 90, 30)
    ]
    made = record_batches(iter(batches), native=native)
    assert made.rejected == ()
    order = list(dict.fromkeys(picks))
    assert [b.column("schema_id")[0].as_py() for b in made] == [names[n] for n in order]
    for n, batch in zip(order, made, strict=True):
        mine = [i for i, pick in enumerate(picks) if pick == n]
        assert batch.column("delivery_seq").to_pylist() == [100 + i for i in mine]
        assert batch.column("payload").to_pylist() == [made_of[n][i] for i in mine]


@pytest.mark.parametrize("native", ROUTES)
def test_rejected_events_are_returned_with_their_errors(native):
    """A rejected event is returned with its index, delivery number and error, and has no row in
    a batch.
    """
    codecs = [Codec("S", event_schema("long")), Codec("T", event_schema("string"))]
    batches = [
        received(codecs, [(0, b"\2"), (1, b"\2"), (0, b"")], first_seq=10),
        received(codecs, [(0, b"\4\0"), (1, b"\2x"), (0, b"\6")], first_seq=13),
    ]
    made = record_batches(batches, native=native)
    assert [one.index for one in made.rejected] == [1, 2, 3]
    assert [one.delivery_seq for one in made.rejected] == [11, 12, 13]
    assert [one.event.id for one in made.rejected] == ["id-11", "id-12", "id-13"]
    assert all(isinstance(one.error, DecodeError) for one in made.rejected)
    longs, strings = made
    assert longs.column("event_id").to_pylist() == ["id-10", "id-15"]
    assert longs.column("value").to_pylist() == [{"F0": 1}, {"F0": 3}]
    assert strings.column("event_id").to_pylist() == ["id-14"]


@pytest.mark.parametrize("native", ROUTES)
def test_an_unknown_schema_rejects_only_its_own_events(native):
    """If the service doesn't know one schema of a response, only its events are rejected, with
    the reason.
    """
    good = Codec("S", event_schema("long"))
    lost = NoCodec("T", SchemaNotFoundError("no schema T", error_code="schema.not.found"))
    batch = received([good, lost], [(0, b"\2"), (1, b"\2"), (0, b"\4"), (1, b"")])
    made = record_batches(batch, native=native)
    (rows,) = made
    assert rows.column("value").to_pylist() == [{"F0": 1}, {"F0": 2}]
    assert [(one.index, one.event.id) for one in made.rejected] == [(1, "id-1"), (3, "id-3")]
    for one in made.rejected:
        assert "no schema T" in str(one.error)
        assert one.error.error_code == "schema.not.found"
    only = record_batches(received([lost], [(0, b"\2")]), native=native)
    assert (only.batches, len(only.rejected)) == ((), 1)


@pytest.mark.parametrize("native", ROUTES)
def test_a_schema_known_in_any_response_is_used_for_all(native):
    """If a schema is unknown in one response but known in another, the events of both are
    decoded.
    """
    lost = NoCodec("S", SchemaNotFoundError("no schema S"))
    batches = [
        received([codec], [(0, data)], first_seq=seq, topic=None)
        for seq, (codec, data) in enumerate(
            [(lost, b"\2"), (Codec("S", event_schema("long")), b"\4"), (lost, b"\6")]
        )
    ]
    made = record_batches(batches, native=native)
    (rows,) = made
    assert made.rejected == ()
    assert [row["F0"] for row in rows.column("value").to_pylist()] == [1, 2, 3]
    assert set(rows.column("topic").to_pylist()) == {"/event/Test_Event__e"}


def test_no_events_give_no_record_batches():
    """An empty input returns neither record batches nor an error."""
    made = record_batches([])
    assert (made.batches, made.rejected) == ((), ())


@pytest.mark.parametrize("native", ROUTES)
@pytest.mark.parametrize("name", CORPUS)
def test_each_schema_survives_a_parquet_round_trip(name, native):
    """A table written to Parquet is equal when read back.

    This holds for each schema of the corpus, including unions of several types.
    """
    codec = Codec(name, schema_text(name))
    batch = received([codec], [(0, payload(name, value)) for value in values(name, 50)])
    (made,) = record_batches(batch, native=native)
    table = parquet(made)
    assert table == pa.Table.from_batches([made])


@RANDOM
@given(events())
def test_parquet_stores_random_schemas(made):
    """The Arrow type of any random schema can be stored in Parquet, and its values are read back
    unchanged.
    """
    schema_json, payloads = made
    batch = received([Codec("S", schema_json)], [(0, data) for data in payloads])
    (rows,) = record_batches(batch)
    assert repr(parquet(rows).to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize("native", ROUTES)
def test_a_large_batch_stays_in_order(native):
    """20,000 events become one record batch, with their numbers and payloads in order."""
    codec = Codec("pe", schema_text("order_event"))
    some = [payload("order_event", value) for value in values("order_event", 500)]
    batches = [
        received([codec], [(0, data) for data in some], first_seq=500 * n) for n in range(40)
    ]
    (made,) = record_batches(batches, native=native)
    assert made.num_rows == 20_000
    assert made.column("delivery_seq").to_pylist() == list(range(20_000))
    assert made.column("payload").to_pylist() == some * 40


def test_a_record_batch_is_bounded_in_bytes(monkeypatch):
    """A record batch ends before its payloads exceed the limit, because Arrow's offsets have
    only 32 bits.
    """
    monkeypatch.setattr(arrow, "MAX_PAYLOAD_BYTES", 10)
    codec = Codec("S", event_schema("string"))
    texts = ["abc", "abc", "abc", "x" * 30, "", "y" * 9, "", "last"]
    payloads = encode_rows(event_schema("string"), *[(text,) for text in texts])
    payloads.insert(6, b"")  # a bad payload right after the end of a batch
    made = record_batches(received([codec], [(0, data) for data in payloads]))
    parts = [[len(p) for p in batch.column("payload").to_pylist()] for batch in made]
    assert parts == [[4, 4], [4], [31], [1], [10], [1, 5]]
    assert [one.index for one in made.rejected] == [6]
    rows = [row["F0"] for batch in made for row in batch.column("value").to_pylist()]
    assert rows == texts


def test_several_threads_may_share_a_schema():
    """Eight threads that convert with the same codec concurrently get equal results."""
    name = "account_change"
    codec = Codec(name, schema_text(name))
    data = [payload(name, value) for value in values(name, 200)]
    data[77] = b"\0"
    batch = received([codec], [(0, one) for one in data])
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(record_batches(batch))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for made in results:
        assert made.batches == results[0].batches
        assert [one.index for one in made.rejected] == [77]


# --- extras


def python(code: str) -> str:
    """Run *code* in a new Python process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["arrow", "arrow_types", "arrow_values"])
def test_without_pyarrow_the_extra_is_named(module):
    """If pyarrow is not installed, importing the module raises an error that names the extra to
    install.
    """
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from sfpubsub.errors import MissingExtraError\n"
        f"try: import sfpubsub.avro.{module}\n"
        "except MissingExtraError as error: print(error.extra, error)"
    )
    assert python(code).startswith("arrow converting events to Arrow needs an optional package")


def test_without_the_compiled_decoder_dicts_are_used(monkeypatch):
    """Values are decoded through dicts if the compiled decoder is not installed.

    Only `record_batches` with ``native=True`` raises an error, which says how to build it.
    """
    monkeypatch.setattr(native, "compiled", None)
    decoder = Values("S", event_schema("long"), native=True)
    assert not decoder.is_native
    assert decoder.decode([b"\2"])[0].to_pylist() == [{"F0": 1}]
    assert record_batches([]).batches == ()
    with pytest.raises(ConfigurationError, match=r"scripts/native\.sh"):
        record_batches([], native=True)


def test_decoding_needs_no_pyarrow():
    """The modules for decoding, for JSON and for batches don't import pyarrow."""
    loaded = python(
        "import sys, sfpubsub.avro.codec, sfpubsub.avro.json, sfpubsub.client.batch;"
        "print('pyarrow' in sys.modules)"
    )
    assert loaded == "False"
