"""Tests of the decoder that is generated for each schema, and of the careful decoder behind it.

The generated one falls back to the careful one for unusual payloads. Both return the same values as
fastavro, and are safe with any bytes.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import struct
import sys
import time
import tracemalloc

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfpubsub import native
from sfpubsub.avro import decoder, guard
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.json import _has_odd_float, to_json
from sfpubsub.errors import DecodeError, EncodeError, SchemaError

from .schemas import CORPUS, golden, payload, schema_text, values

SLOW = settings(max_examples=60)


def codec_of(*types, name="R", **more) -> Codec:
    """Return a codec for a record with one field of each of the given types."""
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(types)]
    return Codec("id", json.dumps({"type": "record", "name": name, "fields": fields, **more}))


def is_generated(codec: Codec) -> bool:
    """Return whether the schema uses the generated decoder when the compiled one is unavailable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled", None)
        pure = Codec(codec.schema_id, codec.schema_json)
        return pure._make_read() != pure._decode_carefully


def careful(codec: Codec) -> Codec:
    """Return a codec for the same schema that always uses the careful decoder."""
    slow = Codec(codec.schema_id, codec.schema_json)
    slow._read = slow._decode_carefully
    return slow


def by_fastavro(codec: Codec, raw: bytes):
    """Return the payload's value as fastavro decodes it."""
    schema = fastavro.parse_schema(json.loads(codec.schema_json))
    return fastavro.schemaless_reader(io.BytesIO(raw), schema, None)


def number(value: int) -> bytes:
    """Return the Avro encoding of an integer of any size."""
    value = value * 2 if value >= 0 else -value * 2 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


# The corpus


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_values_match_fastavro(name):
    """Without a fallback, the generated decoder returns fastavro's values for every schema of the
    corpus.

    The careful decoder returns the same values.
    """
    codec = Codec("id", schema_text(name))
    assert is_generated(codec)
    for value in values(name, 60):
        raw = payload(name, value)
        # Without a fallback to the careful decoder.
        assert codec._make_read()(raw) == by_fastavro(codec, raw) == value
        assert careful(codec).decode(raw) == value
        assert list(codec.decode(raw)) == list(codec.fields)


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_values_match_the_avro_package(name):
    """Apache's own library encodes the corpus's values to the same bytes as the codec, and decodes
    these bytes to the same values.

    It shares no code with fastavro.
    """
    avro_io, avro_schema = pytest.importorskip("avro.io"), pytest.importorskip("avro.schema")
    schema = avro_schema.parse(schema_text(name))
    codec = Codec("id", schema_text(name))
    for value in values(name, 10, seed=2):
        out = io.BytesIO()
        avro_io.DatumWriter(schema).write(value, avro_io.BinaryEncoder(out))
        assert codec.encode(value) == out.getvalue()
        reader = avro_io.BinaryDecoder(io.BytesIO(out.getvalue()))
        assert codec.decode(out.getvalue()) == avro_io.DatumReader(schema).read(reader)


@pytest.mark.parametrize("name", CORPUS)
def test_truncated_and_extended_payloads_raise(name):
    """A payload that is truncated at any byte, or has one byte too many, raises an error."""
    codec = Codec("id", schema_text(name))
    for raw, _text in list(golden(name))[:2]:
        for end in range(len(raw)):
            with pytest.raises(DecodeError, match=codec.name):
                codec.decode(raw[:end])
        with pytest.raises(DecodeError, match="1 bytes more"):
            codec.decode(raw + b"\x00")


def test_other_kinds_of_buffers_can_be_decoded():
    """A payload in a bytearray or a memoryview is decoded like one in bytes."""
    codec = codec_of("string", ["null", "bytes"], "double")
    raw = codec.encode({"f0": "ü", "f1": b"\x01", "f2": 2.5})
    assert codec.decode(bytearray(raw)) == codec.decode(memoryview(raw)) == codec.decode(raw)


# Times


def test_times_are_datetimes_on_request_only():
    """With ``datetimes=True`` a DateTime becomes a UTC datetime.

    DateOnly has no documented unit and stays a number.
    """
    codec = Codec("id", schema_text("order_event_v2"))
    value = {
        **next(values("order_event_v2", 1)),
        "CreatedDate": 1_771_300_995_001,
        "Promised_At__c": -1,
        "Ship_Date__c": 86_400_000,
    }
    raw = codec.encode(value)
    assert codec.decode(raw)["CreatedDate"] == 1_771_300_995_001
    times = codec.decode(raw, datetimes=True)
    utc = datetime.UTC
    assert times["CreatedDate"] == datetime.datetime(2026, 2, 17, 4, 3, 15, 1000, tzinfo=utc)
    assert times["CreatedDate"].tzinfo is utc
    assert times["Promised_At__c"] == datetime.datetime(
        1969, 12, 31, 23, 59, 59, 999000, tzinfo=utc
    )
    assert times["Ship_Date__c"] == 86_400_000


@pytest.mark.parametrize("number_", [2**62, -(2**62), 253_402_300_800_000])
def test_a_time_outside_the_datetime_range_stays_a_number(number_):
    """A time that no datetime can represent is returned as a number."""
    codec = Codec("id", schema_text("order_event"))
    value = {**next(values("order_event", 1)), "CreatedDate": number_}
    assert codec.decode(codec.encode(value), datetimes=True)["CreatedDate"] == number_


def test_times_inside_records_are_found():
    """Times are converted inside nested records, whether these are defined in place, referred to by
    name or recursive.
    """
    inner = {
        "type": "record",
        "name": "I",
        "fields": [
            {"name": "t", "type": ["null", "long"], "doc": "Data:DateTime:00N"},
            {"name": "again", "type": ["null", "I"]},
        ],
    }
    codec = codec_of(["null", inner], "I")
    value = {"f0": None, "f1": {"t": 0, "again": {"t": None, "again": None}}}
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert codec.decode(codec.encode(value), datetimes=True)["f1"]["t"] == epoch


# Which schemas use the generated decoder


def linked() -> Codec:
    """Return a codec for a recursive schema, a linked list."""
    return codec_of("int", ["null", "R"])


def exponential(levels: int, fan: int) -> Codec:
    """Return a codec for a small schema that has exponentially many fields once its references are
    expanded.

    Their number grows as *fan* to the power of *levels*; none of their values takes any bytes.
    """
    kind: object = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": kind}]
        fields += [{"name": f"b{n}", "type": f"L{level - 1}"} for n in range(1, fan)]
        kind = {"type": "record", "name": f"L{level}", "fields": fields}
    return codec_of(kind)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (linked(), {"f0": 1, "f1": {"f0": 2, "f1": None}}),
        (codec_of({"type": "array", "items": "null"}), {"f0": [None, None]}),
        (
            codec_of({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}),
            None,
        ),
        (codec_of([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(70)]), None),
    ],
    ids=["recursive", "no bytes", "logical", "many branches"],
)
def test_unsupported_schemas_fall_back_to_fastavro(codec, value):
    """Schemas that the generator doesn't support are decoded correctly without it."""
    assert not is_generated(codec)
    raw = codec.encode(value) if value else b"\x02\x0f"
    assert codec.decode(raw) == by_fastavro(codec, raw)


@pytest.mark.parametrize(("levels", "fan"), [(25, 2), (7, 30)])
def test_an_exponential_schema_takes_bounded_time(levels, fan):
    """If a schema's references would expand to exponentially many fields, they are not all
    expanded: decoding and encoding fail within 5 s of CPU time.
    """
    codec = exponential(levels, fan)
    started = time.process_time()
    with pytest.raises(DecodeError, match="in zero bytes"):
        codec.decode(b"", datetimes=True)
    small = exponential(3, 2)
    assert small.decode(b"", datetimes=True) == by_fastavro(small, b"")
    with pytest.raises(EncodeError, match="needs the field"):
        codec.encode({})
    assert time.process_time() - started < 5


def test_schemas_of_900_fields_use_the_generated_decoder():
    """The generated decoder supports schemas of 900 fields, roughly as many as the largest possible
    object has.
    """
    wide = codec_of(*["string"] * (decoder.MAX_NODES + 1))
    assert not is_generated(wide)
    assert is_generated(codec_of(*[["null", "string"]] * 900))  # about the largest object possible


def test_the_last_of_two_fields_with_the_same_name_wins():
    """If two fields of a schema have the same name, the last one's value is kept even if it is
    null, as in fastavro.
    """
    field = {"name": "a", "type": ["null", "string"]}
    codec = Codec("id", json.dumps({"type": "record", "name": "R", "fields": [field, field]}))
    raw = b"\x02\x02x\x00"
    assert codec.decode(raw) == by_fastavro(codec, raw) == {"a": None}


def test_deep_types_fall_back():
    """Types nested more deeply than Python's limit on nested blocks don't use the generated
    decoder.
    """
    kind: object = "int"
    for _ in range(20):
        kind = {"type": "array", "items": kind}
    codec = codec_of(kind)
    with pytest.raises(decoder.Unsupported):
        decoder.generate(codec._schema, codec._named)
    assert not is_generated(codec)
    value: object = [3]
    for _ in range(19):
        value = [value]
    assert codec.decode(codec.encode({"f0": value})) == {"f0": value}


def test_a_schema_cannot_claim_to_be_parsed():
    """A schema that already carries fastavro's internal marker for parsed schemas is still
    validated.
    """
    with pytest.raises(SchemaError):
        codec_of("nonsense", __fastavro_parsed=True, __named_schemas={})


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"record","name":"R","fields":[{"name":"a","type":' + '{"type":"array","items":' * n
        + '"int"' + "}" * n + "}]}"
        for n in (200, 5000)
    ]
    + [
        '{"type":"record","name":"R","fields":[{"name":5,"type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":'
        '{"type":"fixed","name":"F","size":-1}}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":'
        '{"type":"fixed","name":"F","size":"1"}}]}',
    ],
    ids=["deep", "deeper", "number as name", "negative size", "text as size"],
)  # fmt: skip
def test_an_unusable_schema_raises_a_schema_error(text):
    """Schemas that fastavro accepts but that can't be used, such as one that is nested too
    deeply, are rejected.
    """
    with pytest.raises(SchemaError, match="id9"):
        Codec("id9", text)


HOSTILE = [
    "quote'\"", "new\nline", "back\\slash", "class", "None", "b", "p", "decode",
    "UnexpectedPayload", "__import__('os').abort()", "{}", "{0.__class__}", "%s", "<symbols>",
    "<size>", "= b", "", "\ud800", "g8", "]; raise SystemExit #",
]  # fmt: skip


def test_names_from_the_network_never_become_code(monkeypatch):
    """A schema's field names are used only as keys: all schemas of the same shape have the same
    generated source.
    """
    texts = []

    def spy(text, *rest):
        texts.append(text)
        return compile(text, *rest)

    monkeypatch.setattr(decoder, "compile", spy, raising=False)
    fields = [{"name": name, "type": ["null", "string"]} for name in HOSTILE]
    for record in ("evil'\"\n", "__import__", "string2"):
        schema = {"type": "record", "name": record, "fields": fields}
        codec = Codec("id", json.dumps(schema))
        plain = codec_of(*[["null", "string"]] * len(HOSTILE))
        raw = plain.encode(dict.fromkeys(plain.fields, "v"))
        assert is_generated(codec)
        assert codec.decode(raw) == dict.fromkeys(HOSTILE, "v")
        plain._make_read()
    assert len(set(texts)) == 1  # one source for all names
    assert set(codec._read.__globals__["__builtins__"]) == {"len", "range"}


def test_a_record_named_like_a_primitive_does_not_replace_it():
    """A schema with a record called ``string`` is rejected, or decoded with fastavro's meaning
    of that name.
    """
    inner = {"type": "record", "name": "string", "fields": [{"name": "x", "type": "int"}]}
    try:
        codec = codec_of(inner, "string", {"type": "array", "items": "string"})
    except SchemaError:
        return
    raw = b"\x02\x04hi\x02\x02a\x00"
    assert codec.decode(raw) == careful(codec).decode(raw) == by_fastavro(codec, raw)


TYPES = (
    "null", "boolean", "int", "long", "float", "double", "string", "bytes", "array", "map", "enum",
    "fixed", "record",
)  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_inside_and_outside_a_union(kind):
    """Each type is decoded correctly as a field, in a union and in a map, and so is the field after
    it.

    A union of null and null is useless, but a schema could contain one.
    """
    named = {"enum": {"symbols": ["A"]}, "fixed": {"size": 2}, "record": {"fields": []}}
    inner = {"array": {"items": "int"}, "map": {"values": "int"}}
    schema = kind
    if kind in named or kind in inner:
        schema = {"type": kind, **({"name": "T"} if kind in named else {})}
        schema |= {**named, **inner}[kind]
    value = {
        "null": None, "boolean": True, "int": 70, "long": 2**41, "float": 0.5, "double": 0.25,
        "string": "é" * 70, "bytes": b"xy", "array": [1, 70], "map": {"k": 1}, "enum": "A",
        "fixed": b"ab", "record": {},
    }[kind]  # fmt: skip
    again = "T" if kind in named else schema
    codec = codec_of(schema, ["null", again], {"type": "map", "values": again}, "string")
    raw = codec.encode({"f0": value, "f1": None, "f2": {}, "f3": "end"})
    first, rest = raw[: -len(b"\x00\x00\x06end")], b"\x06end"
    raw = first + b"\x02" + first + b"\x02\x02k" + first + b"\x00" + rest
    expected = {"f0": value, "f1": value, "f2": {"k": value}, "f3": "end"}
    assert codec._make_read()(raw) == expected == by_fastavro(codec, raw)
    assert is_generated(codec)


def test_a_union_inside_a_union_has_its_own_index():
    """Avro forbids such a schema, but the parser accepts it.

    It is decoded as fastavro decodes it.
    """
    codec = codec_of(["null", ["null", "string"]], "string")
    for raw in (b"\x02\x02\x04hi\x02z", b"\x02\x00\x02z", b"\x00\x02z"):
        assert codec._make_read()(raw) == by_fastavro(codec, raw)
    assert is_generated(codec)


# Unusual and invalid bytes


def negative_blocks(items: list[bytes]) -> bytes:
    """Return the encoded *items* as blocks of one item, each with a negative count and a size.

    Java's encoder may write such blocks.
    """
    blocks = b"".join(number(-1) + number(len(item)) + item for item in items)
    return blocks + number(0)


@pytest.mark.parametrize("size", [1, 100, 20_000])
def test_blocks_with_a_negative_count_are_decoded(size):
    """Array and map blocks with a negative item count, which is followed by the block's size, are
    decoded as by fastavro.
    """
    codec = codec_of({"type": "array", "items": "string"}, {"type": "map", "values": "int"})
    text = "x" * size
    raw = negative_blocks([number(size) + text.encode()] * 2) + negative_blocks([b"\x02k\x06"])
    assert codec._make_read()(raw) == {"f0": [text, text], "f1": {"k": 3}}
    assert careful(codec).decode(raw) == by_fastavro(codec, raw) == codec.decode(raw)
    many = number(-200) + number(400) + b"\x02x" * 200 + b"\x00" + b"\x00"
    assert codec._read(many) == by_fastavro(codec, many)


@pytest.mark.parametrize("make", [lambda codec: codec, careful], ids=["generated", "careful"])
@pytest.mark.parametrize(
    ("kind", "raw", "says"),
    [
        ("string", number(2**60), "1152921504606846976 bytes are needed"),
        ("bytes", number(2**60) + b"abc", "1152921504606846976 bytes are needed"),
        ("bytes", number(-4) + b"abc", "negative length \\(-4\\)"),
        ("string", number(-101) + b"x" * 100, "negative length \\(-101\\)"),
        ("string", number(-(2**63)), "negative length"),
        ("string", b"\x04\xc3\x28", "UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "UTF-8"),
        ("boolean", b"\x02", "boolean"),
        ("long", b"\x80" * 9 + b"\x02", "more than 64 bits"),
        ("long", b"\x80" * 10 + b"\x00", "more than ten bytes"),
        ("long", b"\x80" * 5_000_000, "more than ten bytes"),
        ("int", number(2**31), "more than 32 bits"),
        ("int", number(-(2**31) - 1), "more than 32 bits"),
        ("double", b"1234567", "7 bytes are left"),
        ("float", b"123", "3 bytes are left"),
        (["null", "string"], b"\x04", "branch 2, but the union has only 2"),
        (["null", "string"], b"\x01", "branch -1, but the union has only 2"),
        (["string", "int", "null"], b"\x06", "branch 3, but the union has only 3"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\x02",
            "index 1, but the enum has only 1",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\x01",
            "index -1, but the enum has only 1",
        ),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "4 bytes are needed"),
        (
            {"type": "fixed", "name": "F", "size": 2**60},
            b"abc",
            "1152921504606846976 bytes are needed",
        ),
        ({"type": "array", "items": "int"}, number(2**60), "left"),
        ({"type": "array", "items": "int"}, number(-(2**62)) + b"\x00", "left"),
        (
            {"type": "array", "items": {"type": "fixed", "name": "F", "size": 4}},
            number(2**60) + b"abcd",
            "left",
        ),
        ({"type": "array", "items": "null"}, number(2**60), "in zero bytes"),
        ({"type": "array", "items": "null"}, number(-(2**62)) + b"\x00", "in zero bytes"),
        ({"type": "map", "values": "null"}, number(2**60), "left"),
        (
            {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
            number(2**60),
            "in zero bytes",
        ),
        (
            {"type": "array", "items": {"type": "fixed", "name": "Zero", "size": 0}},
            number(2**60),
            "in zero bytes",
        ),
    ],
)
def test_invalid_bytes_raise_in_bounded_time_and_memory(kind, raw, says, make):
    """Invalid bytes raise `DecodeError` with the field and the reason, and cost no more time or
    memory than the payload's size justifies.
    """
    codec = make(codec_of(kind))
    codec._read or codec._make_read()
    tracemalloc.start()
    try:
        started = time.process_time()
        with pytest.raises(DecodeError, match=f"f0.*{says}"):
            codec.decode(raw)
        assert time.process_time() - started < 2
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 + 2 * len(raw)
    finally:
        tracemalloc.stop()


def test_a_payload_nested_too_deeply_raises():
    """A payload of a recursive schema can be nested without limit.

    Deep nesting raises an error before the stack overflows.
    """
    codec = linked()
    fine = b"\x02\x02" * 20 + b"\x02\x00"
    assert codec.decode(fine) == by_fastavro(codec, fine)
    with pytest.raises(DecodeError, match="levels"):
        codec.decode(b"\x02\x02" * 500_000 + b"\x02\x00")


def test_zero_byte_items_are_limited_per_payload():
    """The limit on values that take no bytes applies to the whole payload, not to each of its
    arrays.
    """
    codec = codec_of({"type": "array", "items": {"type": "array", "items": "null"}})
    block = number(1000) + b"\x00"
    raw = number(1000) + block * 1000 + b"\x00"
    started = time.process_time()
    with pytest.raises(DecodeError, match="in zero bytes"):
        codec.decode(raw)
    assert time.process_time() - started < 5


def test_padded_numbers_are_decoded():
    """A number that is encoded with more bytes than necessary is decoded as by fastavro."""
    codec = codec_of(["null", "long"], {"type": "array", "items": "int"}, "string")
    raw = b"\x82\x00" + b"\x86\x80\x00" + b"\x82\x00\x82\x00\x80\x00" + b"\x82\x80\x00x"
    expected = {"f0": 3, "f1": [1], "f2": "x"}
    assert codec.decode(raw) == careful(codec).decode(raw) == expected == by_fastavro(codec, raw)


@pytest.mark.parametrize("bits", range(64))
def test_numbers_of_every_size(bits):
    """Numbers around each power of two, positive and negative, are decoded correctly."""
    codec = codec_of("long", ["null", "string"])
    for value in (2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1):
        if -(2**63) <= value < 2**63:
            raw = number(value) + b"\x00"
            assert codec._make_read()(raw) == by_fastavro(codec, raw) == {"f0": value, "f1": None}


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 100_000, 1_100_000])
def test_strings_and_bytes_of_every_length(size):
    """Strings and bytes are decoded correctly around the sizes at which the length takes another
    byte.
    """
    codec = codec_of("string", "bytes")
    value = {"f0": "é" * (size // 2), "f1": b"\xff" * size}
    assert codec._make_read()(codec.encode(value)) == value


def test_a_decode_error_says_where_it_occurred():
    """The error names the schema, the field and the byte, so that the payload can be inspected by
    hand.
    """
    codec = Codec("id7", schema_text("contact_change"))
    value = next(values("contact_change", 1))
    raw = codec.encode(value)
    at = raw.index(value["ChangeEventHeader"]["commitUser"].encode())
    with pytest.raises(DecodeError, match=r"id7 \(ContactChangeEvent\).*commitUser, byte \d+"):
        codec.decode(raw[: at + 3])


# Random schemas and values

SIMPLE = st.sampled_from(["boolean", "int", "long", "float", "double", "string", "bytes"])
TEXT = st.text(max_size=90)
SCALARS = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXT,
    "bytes": st.binary(max_size=90),
}


@st.composite
def schemas(draw):
    """Draw record schemas like Salesforce's, which also contain other Avro types."""
    count = 0
    names: list[str] = []

    def name() -> str:
        nonlocal count
        count += 1
        return f"N{count}"

    def kind(depth: int, union: bool = True):
        choices = ["simple", "simple", "simple", "enum", "fixed"] + ["named"] * bool(names)
        if depth < 3:
            choices += ["array", "map", "record"] + ["union", "nullable"] * 2 * union
        chosen = draw(st.sampled_from(choices))
        if chosen == "simple":
            return draw(SIMPLE)
        if chosen == "named":
            return draw(st.sampled_from(names))
        if chosen == "nullable":
            return ["null", kind(depth + 1, False)]
        if chosen == "union":
            rest = [b for b in ("null", "string", "boolean") if draw(st.booleans())]
            return draw(st.permutations([*rest, record(depth + 1)]))
        if chosen == "enum":
            label = name()
            found = {"type": "enum", "name": label, "symbols": ["A", "B", "C"]}
        elif chosen == "fixed":
            label = name()
            found = {"type": "fixed", "name": label, "size": draw(st.integers(0, 3))}
        elif chosen == "record":
            return record(depth + 1)
        else:
            items = "items" if chosen == "array" else "values"
            return {"type": chosen, items: kind(depth + 1)}
        names.append(label)
        return found

    def record(depth: int):
        label = name()
        size = draw(st.integers(0, 30 if depth == 0 else 4))
        fields = []
        for index in range(size):
            wide = depth == 0 and draw(st.booleans())
            fields.append(
                {"name": f"f{index}", "type": ["null", "string"] if wide else kind(depth)}
            )
        names.append(label)
        return {"type": "record", "name": label, "fields": fields}

    return {**record(0), "namespace": "com.sforce.eventbus"}


def value_of(draw, schema, named):
    """Draw a value of *schema*; its named types are added to *named*, to resolve references to
    them.
    """
    if isinstance(schema, list):
        return value_of(draw, draw(st.sampled_from(schema)), named)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema
    if kind in SCALARS:
        return draw(SCALARS[kind])
    if kind == "enum":
        return draw(st.sampled_from(schema["symbols"]))
    if kind == "fixed":
        return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
    if kind == "array":
        return [value_of(draw, schema["items"], named) for _ in range(draw(st.integers(0, 3)))]
    if kind == "map":
        keys = draw(st.lists(TEXT, max_size=3, unique=True))
        return {key: value_of(draw, schema["values"], named) for key in keys}
    if kind == "record":
        return {f["name"]: value_of(draw, f["type"], named) for f in schema["fields"]}
    return value_of(draw, named[kind], named)


def collect(schema, named):
    """Add all named types in *schema* to *named*, including those in every union branch, and return
    *named*.
    """
    if isinstance(schema, list):
        for branch in schema:
            collect(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            collect(field["type"], named)
        for inner in ("items", "values"):
            collect(schema.get(inner), named)
    return named


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["field", "union", "items"])
def test_nan_and_infinities_are_decoded_and_named_in_json(kind, number, place):
    """NaN and infinities become the strings "NaN", "Infinity" and "-Infinity" in JSON, wherever
    they are in the event.
    """
    types = {
        "field": kind,
        "union": ["null", kind],
        "items": {"type": "array", "items": kind},
    }
    fields = [{"name": "x", "type": types[place]}]
    codec = Codec("id", json.dumps({"type": "record", "name": "R", "fields": fields}))
    finite, odd = (
        codec.encode({"x": [value] if place == "items" else value}) for value in (1.5, number)
    )
    assert is_generated(codec)
    word = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]
    for raw, text in ((finite, "1.5"), (odd, f'"{word}"'), (finite, "1.5")):
        inside = f"[{text}]" if place == "items" else text
        assert codec.decode_with_json(raw)[1] == f'{{"x":{inside}}}'
    assert repr(codec.decode(odd)) == repr(by_fastavro(codec, odd))


@SLOW
@given(st.data())
def test_random_values_are_decoded_unchanged(data):
    """For random schemas, both decoders return exactly the values that were encoded, as fastavro
    does.

    For a truncated payload, or one with a trailing extra byte, both report the same error.
    """
    schema = data.draw(schemas())
    codec = Codec("id", json.dumps(schema))
    slow = careful(codec)
    for _ in range(3):
        value = value_of(data.draw, schema, collect(schema, {}))
        try:
            raw = codec.encode(value)
        except EncodeError as error:
            raise AssertionError(f"{value} of {schema}") from error
        expected = by_fastavro(codec, raw)
        assert codec.decode(raw) == slow.decode(raw) == expected == value
        assert codec.decode_with_json(raw) == (expected, to_json(expected))
        if is_generated(codec) and not _has_odd_float(expected):
            assert repr(codec._read(raw)) == repr(expected)  # types and order too, and -0.0
        cut = data.draw(st.integers(0, len(raw)))
        for broken in (raw[:cut], raw + b"\x00"):
            assert outcome(codec, broken) == outcome(slow, broken)


@SLOW
@given(st.data())
def test_random_schema_values_match_the_avro_package(data):
    """For random schemas, Apache's own library decodes the same values and reads the payload to
    its end.
    """
    avro_io, avro_schema = pytest.importorskip("avro.io"), pytest.importorskip("avro.schema")
    schema = data.draw(schemas())
    codec = Codec("id", json.dumps(schema))
    theirs = avro_io.DatumReader(avro_schema.parse(json.dumps(schema)))
    for _ in range(3):
        raw = codec.encode(value_of(data.draw, schema, collect(schema, {})))
        stream = io.BytesIO(raw)
        assert codec.decode(raw) == theirs.read(avro_io.BinaryDecoder(stream))
        assert stream.tell() == len(raw)


def outcome(codec: Codec, raw: bytes):
    """Return the repr of the decoded value, or the text of the error."""
    try:
        return repr(codec.decode(raw))
    except DecodeError as error:
        return f"error {error}"


@SLOW
@given(schema=schemas(), raw=st.binary(max_size=60))
def test_random_bytes_decode_or_fail_identically(schema, raw):
    """For random bytes and schemas, both decoders return the same value or the same error."""
    codec = Codec("id", json.dumps(schema))
    assert outcome(codec, raw) == outcome(careful(codec), raw)


@settings(max_examples=300)
@given(st.sampled_from(sorted(CORPUS)), st.integers(0, 11), st.data())
def test_damaged_payloads_decode_or_fail_identically(name, index, data):
    """For a real payload with up to three changed bytes, both decoders return the same value or
    the same error.
    """
    codec = CODECS[name]
    raw = bytearray(list(golden(name))[index][0])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = outcome(codec, bytes(raw))
    assert found == outcome(careful(codec), bytes(raw))


CODECS = {name: Codec("id", schema_text(name)) for name in CORPUS}


def test_nan_and_infinity_are_decoded():
    """A float that is NaN and a double that is infinite are decoded as such."""
    codec = codec_of("float", "double")
    raw = struct.pack("<fd", math.nan, -math.inf)
    value = codec.decode(raw)
    assert math.isnan(value["f0"])
    assert value["f1"] == -math.inf


def test_the_depth_limit_is_below_the_recursion_limit():
    """The careful decoder's limit on nested levels is reached long before Python's recursion
    limit.
    """
    assert sys.getrecursionlimit() > guard.MAX_DEPTH * 4


def test_threads_share_a_codec():
    """The first payloads of a new codec can be decoded in eight threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    raws = [raw for raw, _ in golden("account_change")]
    expected = [CODECS["account_change"].decode(raw) for raw in raws]
    for _ in range(5):
        codec = Codec("id", schema_text("account_change"))
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(codec.decode, raws)) == expected
