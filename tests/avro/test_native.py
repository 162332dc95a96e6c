"""The compiled decoder matches the Python decoder on any payload, and is safe on arbitrary bytes.

The tests are skipped if it is not installed; ``scripts/native.sh`` installs it.
``tests/avro/hostile.py`` is the long version, with a million damaged payloads.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
import sys
import threading
import time
import tomllib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub import native
from sfpubsub.avro import compiled
from sfpubsub.avro.bitmaps import ChangeSchema
from sfpubsub.avro.codec import Codec
from sfpubsub.errors import DecodeError

from .hostile import DecoderPair, damaged, outcome
from .schemas import CORPUS, golden, payload, schema_text, values
from .test_decoder import SLOW, codec_of, collect, number, schemas, value_of

ROOT = Path(__file__).parent.parent.parent

needs_native = pytest.mark.skipif(
    not native.is_installed(), reason="sfpubsub-native is not installed, or switched off"
)


def pair_of(*types) -> DecoderPair:
    """Return both decoders for a record with a field of each type."""
    return DecoderPair(codec_of(*types).schema_json)


# Equal results


@needs_native
@pytest.mark.parametrize("name", CORPUS)
def test_both_decoders_agree_on_the_corpus(name):
    """Every schema in the corpus has a compiled decoder, which returns the same values and errors
    as the Python decoder.
    """
    both = DecoderPair(schema_text(name))
    assert both.is_compiled
    raws = [payload(name, value) for value in values(name, 60)]
    # Valid payloads between invalid ones, which must leave nothing behind.
    for raw, _ in golden(name):
        raws += [raw, raw + b"\x00", raw, raw[:-1], raw[: len(raw) // 2], raw]
    both.check(raws)
    assert [both.compiled.to_json(raw) for raw, _ in golden(name)] == [t for _, t in golden(name)]


@needs_native
@SLOW
@given(st.data())
def test_both_decoders_agree_on_random_schemas(data):
    """For random schemas, both decoders agree on payloads that are intact, truncated, or one byte
    too long.
    """
    schema = data.draw(schemas())
    both = DecoderPair(json.dumps(schema))
    raws = []
    for _ in range(3):
        raw = both.pure.encode(value_of(data.draw, schema, collect(schema, {})))
        raws += [raw, raw[: data.draw(st.integers(0, len(raw)))], raw + b"\x00"]
    both.check(raws)


@needs_native
@SLOW
@given(schema=schemas(), raws=st.lists(st.binary(max_size=60), max_size=4))
def test_both_decoders_agree_on_random_bytes(schema, raws):
    """Random bytes produce the same value or the same error with both decoders."""
    DecoderPair(json.dumps(schema)).check(raws)


@needs_native
def test_both_decoders_agree_on_damaged_payloads():
    """Both decoders agree on real payloads with bytes changed, removed or inserted."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for name in CORPUS:
        both = DecoderPair(schema_text(name))
        both.check([damaged(rng, raw) for raw, _ in golden(name) for _ in range(5)])


@needs_native
@pytest.mark.parametrize("name", CORPUS)
def test_both_decoders_agree_on_selected_fields(monkeypatch, name):
    """Both decoders agree if only a quarter of the fields are decoded, and both still validate the
    skipped fields.
    """
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = Codec("id", schema_text(name))
    wanted = frozenset(rng.sample(whole.fields, len(whole.fields) // 4))
    fast = whole.only(wanted)
    assert fast.compiled is not None
    monkeypatch.setattr(native, "compiled", None)
    slow = Codec("id", schema_text(name)).only(wanted)
    assert slow.compiled is None
    raws = [raw for raw, _ in golden(name)]
    for raw in [*raws, *(damaged(rng, raw) for raw in raws * 5)]:
        for way in ("decode", "to_json", "decode_with_json"):
            found, expected = (outcome(getattr(codec, way), raw) for codec in (fast, slow))
            assert repr(found) == repr(expected)


@needs_native
@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("double", 1e16, "1e+16"),
        ("double", -1.5e300, "-1.5e+300"),
        ("double", 1e-7, "1e-7"),
        ("double", -0.0, "-0.0"),
        ("double", 5e-324, "5e-324"),
        ("double", 0.1, "0.1"),
        ("float", 0.1, "0.10000000149011612"),
        ("long", -(2**63), "-9223372036854775808"),
        ("string", 'ü"\\\n\x00\x1f\x7f\u2028🙂', '"ü\\"\\\\\\n\\u0000\\u001f\x7f\u2028🙂"'),
        ("bytes", b"", '""'),
        ("bytes", b"\xff", '"/w=="'),
        ("bytes", b"\xff\xfe", '"//4="'),
        ("bytes", b"\xff\xfe\xfd", '"//79"'),
        ({"type": "map", "values": ["null", "int"]}, {"é": 1, "": None}, '{"é":1,"":null}'),
        ({"type": "array", "items": "boolean"}, [True, False], "[true,false]"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", '"B"'),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x00\x01", '"AAE="'),
        (["int", "string", "null"], None, "null"),
        (["int", "string", "null"], "x", '"x"'),
    ],
)
def test_both_decoders_write_the_same_json(kind, value, text):
    """Both decoders produce the expected JSON text for values of every type."""
    both = pair_of(kind)
    raw = both.pure.encode({"f0": value})
    assert both.is_compiled
    assert both.compiled.to_json(raw) == f'{{"f0":{text}}}'
    both.check([raw])


@needs_native
@pytest.mark.parametrize("number_", [math.nan, math.inf, -math.inf])
def test_both_decoders_agree_on_nan_and_infinities(number_):
    """Both decoders produce the same values, JSON and Arrow arrays for NaN and infinities."""
    both = pair_of("float", ["null", "double"])
    raw = struct.pack("<f", number_) + b"\x02" + struct.pack("<d", number_)
    both.check([raw])


@needs_native
def test_both_decoders_agree_on_a_repeated_map_key():
    """If a map repeats a key, both decoders agree: a dict has the key's first position and last
    value, and Arrow has every entry.
    """
    both = pair_of({"type": "map", "values": "int"})
    raw = number(3) + b"\x02a\x02" + b"\x02b\x04" + b"\x02a\x06" + b"\x00"
    assert both.compiled.to_json(raw) == '{"f0":{"a":3,"b":2}}'
    both.check([raw])


@needs_native
def test_payloads_may_be_any_buffer():
    """A payload may be a bytearray or memoryview as well as bytes."""
    both = pair_of("string", ["null", "bytes"])
    raw = both.pure.encode({"f0": "ü", "f1": b"\x01"})
    for kind in (bytearray, memoryview):
        assert both.compiled.decode(kind(raw)) == both.pure.decode(raw)
        assert both.compiled.to_json(kind(raw)) == both.pure.to_json(raw)
        assert both.compiled.facts_and_json(kind(raw)) == both.pure.facts_and_json(raw)


@needs_native
def test_compiled_and_python_code_agree_on_bitmaps(monkeypatch):
    """Both expand a valid bitmap to the same names, and raise the same error for an invalid one."""
    text = schema_text("account_change")
    fast = ChangeSchema("id", text)
    monkeypatch.setattr(native, "compiled", None)
    slow = ChangeSchema("id", text)
    entries = [f"0x{bits:X}" for bits in (0, 1, 2, 3, 0xFF, 2**61, 2**62, 2**200)]
    entries += [f"{place}-0x{bits:02x}" for place in range(70) for bits in (0, 1, 3, 0x0180, 2**40)]
    entries += ["", "0x", "0X1", "0x1 ", " 0x1", "-0x1", "+6-0x1", "-6-0x1", "6-0x", "6-", "6-0xg"]
    entries += ["10000-0x1", "0006-0x1", "²-0x1", "6-0x1-0x1", "0x" + "0" * 600 + "1", "0x\ud800"]
    entries += ["Name", "BillingAddress.City", "ChangeEventHeader", "0x" + "0" * 2000 + "1"]
    for entry in entries:
        found = []
        for schema in (fast, slow):
            try:
                found.append(schema.expand([entry]))
            except DecodeError as error:
                found.append(str(error))
        assert found[0] == found[1], entry


# Bounded time and memory


@needs_native
@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("string", number(2**60)),
        ("bytes", number(2**60) + b"abc"),
        ("string", number(-4) + b"abc"),
        ("string", b"\x06\xed\xa0\x80"),
        ("long", b"\x80" * 5_000_000),
        ({"type": "array", "items": "int"}, number(2**60)),
        ({"type": "array", "items": "int"}, number(-(2**62)) + b"\x00"),
        ({"type": "array", "items": "int"}, number(-(2**63)) + b"\x00"),
        ({"type": "map", "values": "string"}, number(2**60) + b"\x00" * 100),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, number(50) * 5_000),
    ],
)
def test_hostile_counts_cost_neither_time_nor_memory(kind, raw):
    """A count or length is compared with the remaining bytes before anything is allocated for
    it.
    """
    both = pair_of(kind)
    assert both.is_compiled
    decoder = both.compiled.compiled
    tracemalloc.start()
    started = time.process_time()
    for way in (decoder.decode, decoder.to_json, lambda raw: decoder.to_json_with(raw, 0)):
        with pytest.raises(ValueError, match="careful reading"):
            way(raw)
    for message, left in (decoder.to_arrow([raw]), decoder.to_arrow_json([raw], 0)):
        assert left == [0]
        assert len(message) < 1_000
    assert time.process_time() - started < 2
    assert tracemalloc.get_traced_memory()[1] < 1_000_000 + 5 * len(raw)
    tracemalloc.stop()


@needs_native
@pytest.mark.parametrize(
    "kind",
    [
        ["null", "R"],
        "null",
        {"type": "array", "items": "null"},
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "fixed", "name": "F", "size": 2**60},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "record", "name": "Twice", "fields": [{"name": "a", "type": "int"}] * 2},
        ["string"],
        ["string", "null"],
    ],
)
def test_unsupported_types_fall_back_to_the_python_decoder(kind):
    """The compiled decoder is not used for zero-size types, logical types and other rare ones, such
    as a fixed of 2**60 bytes.
    """
    assert codec_of(kind).compiled is None


@needs_native
@pytest.mark.parametrize(("levels", "fan"), [(25, 2), (3_000, 1), (90, 1)])
def test_deep_and_exponential_schemas_fall_back_to_the_python_decoder(levels, fan):
    """A schema that is deeply nested, or huge when expanded, is detected within 2 s of CPU time."""
    named = {"L0": {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "int"}]}}
    for level in range(1, levels):
        fields = [{"name": f"f{n}", "type": f"L{level - 1}"} for n in range(fan)]
        named[f"L{level}"] = {"type": "record", "name": f"L{level}", "fields": fields}
    started = time.process_time()
    assert compiled.decoder_of(named[f"L{levels - 1}"], named) is None
    assert time.process_time() - started < 2


@needs_native
def test_a_schema_with_900_fields_is_supported():
    """A schema with 900 fields, about as many as an object can have, uses the compiled decoder."""
    assert codec_of(*[["null", "string"]] * 900).compiled is not None


@needs_native
def test_threads_can_share_a_decoder():
    """Four threads that use one decoder at the same time produce equal Arrow results."""
    both = DecoderPair(schema_text("account_change"))
    raws = [payload("account_change", value) for value in values("account_change", 400)] * 2
    expected = both.compiled.compiled.to_arrow(raws)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: both.compiled.compiled.to_arrow(raws), range(20)):
            assert found == expected


@needs_native
def test_the_gil_is_released_during_a_long_conversion():
    """Another thread runs in the middle of a long conversion to Arrow, so the decoder doesn't
    hold the GIL.
    """
    decoder = DecoderPair(schema_text("account_change")).compiled.compiled
    raws = [raw for raw, _ in golden("account_change")] * 5_000
    deadline = time.monotonic() + 60
    found = False
    while not found and time.monotonic() < deadline:  # a busy machine may delay it
        span, seen = [], []

        def work(span=span):
            span.append(time.monotonic())
            decoder.to_arrow(raws)
            span.append(time.monotonic())

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            seen.append(time.monotonic())
        began, ended = span
        third = (ended - began) / 3
        found = any(began + third < at < ended - third for at in seen)
    assert found


# Optional


def test_the_compiled_decoder_can_be_switched_off():
    """With SFPUBSUB_NATIVE=0 the compiled module is not even imported."""
    code = (
        "import sys, sfpubsub.native as native, sfpubsub.avro.codec;"
        "print(native.is_installed(), 'sfpubsub_native' in sys.modules)"
    )
    environment = {**os.environ, "SFPUBSUB_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_a_compiled_decoder_of_another_version_is_ignored(monkeypatch, caplog):
    """A compiled decoder of another version could behave differently.

    It is not used, and the log says so.
    """
    monkeypatch.delenv("SFPUBSUB_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, "sfpubsub_native", type(sys)("sfpubsub_native"))
    sys.modules["sfpubsub_native"].__version__ = "0.0.1"
    assert native._load() is None
    assert f"sfpubsub-native 0.0.1 is installed but not used: {''}" in caplog.text
    assert native.VERSION in caplog.text


def test_the_versions_of_the_compiled_decoder_match():
    """The Rust crate and the Python code that loads it specify the same version."""
    cargo = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())
    assert cargo["package"]["version"] == native.VERSION


def test_no_requirement_names_the_compiled_decoder():
    """The decoder is on no package index, so anybody could take its name: nothing asks for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "native" not in extras
    assert "sfpubsub-native" not in str([project["dependencies"], extras])


def test_the_compiled_decoder_forbids_unsafe_code():
    """The Rust source contains `#![forbid(unsafe_code)]`."""
    assert "#![forbid(unsafe_code)]" in (ROOT / "native" / "src" / "lib.rs").read_text()
