"""Compare the compiled decoder with the Python code on damaged payloads.

``python -m tests.avro.hostile [COUNT]`` decodes COUNT payloads, by default a million, of all
schemas in the corpus and of one schema with all Avro types. Prints the seed, and one JSON line.
"""

from __future__ import annotations

import json
import random
import sys
import time

import pyarrow as pa
import pytest

from sfpubsub import native
from sfpubsub.avro.arrow_values import Values
from sfpubsub.avro.codec import Codec
from sfpubsub.errors import DecodeError, SchemaError

from .schemas import CORPUS, golden, schema_text

# Byte values at the limits of encodings.
_EDGES = (0, 1, 2, 3, 4, 0x7E, 0x7F, 0x80, 0x81, 0xC3, 0xED, 0xFE, 0xFF)

# Number of payloads per comparison.
_PIECE = 500

EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": ["null", "float"]},
        {"name": "d", "type": "double"},
        {"name": "y", "type": ["null", "bytes"]},
        {"name": "s", "type": "string"},
        {"name": "x", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}},
        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "u", "type": ["int", "null", "string", "E"]},
        {
            "name": "r",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "n", "type": ["null", "Four"]},
                        {"name": "k", "type": "long"},
                    ],
                },
            },
        },
        {"name": "o", "type": ["null", "Inner"]},
    ],
}


class DecoderPair:
    """The compiled decoder and the Python decoder for one schema."""

    def __init__(self, schema_json: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "compiled", None)
            self.pure = Codec("id", schema_json)
            self.pure._make_read()
        self.compiled = Codec("id", schema_json)
        self.is_compiled = self.compiled.compiled is not None
        try:
            self.values = [Values("id", schema_json, native=way) for way in (True, False)]
        except SchemaError:  # the schema cannot be converted to Arrow
            self.values = []

    def check(self, raws: list[bytes]) -> int:
        """Check that both decoders return the same for *raws*; return the number of valid ones."""
        good = sum(map(self._check, raws))
        if self.values:
            (fast, left), (slow, bad) = (values.decode(raws) for values in self.values)
            fast.validate(full=True)
            assert fast.type == slow.type
            assert repr(fast.to_pylist()) == repr(slow.to_pylist())  # NaN is not equal to NaN
            assert {n: str(e) for n, e in left.items()} == {n: str(e) for n, e in bad.items()}
            assert len(raws) - len(bad) == good
        if self.is_compiled:
            self._check_arrow_json(raws)
        return good

    def _check(self, raw: bytes) -> bool:
        """Check the decoders' results for one payload; return whether it is valid."""
        try:
            value, text = self.pure.decode_with_json(raw)
        except DecodeError as error:
            expected = f"error {error}"
            for way in (self.compiled.decode, self.compiled.to_json, self.compiled.facts_and_json):
                assert outcome(way, raw) == expected
            return False
        assert repr(self.compiled.decode(raw)) == repr(value)
        assert self.compiled.to_json(raw) == text
        found, expected = (c.facts_and_json(raw) for c in (self.compiled, self.pure))
        assert repr(found) == repr(expected)
        return True

    def _check_arrow_json(self, raws: list[bytes]) -> None:
        """Check the JSON texts and the first field's values that `to_arrow_json` returns."""
        decoder, types = self.compiled.compiled, self.values and self.values[0].type
        for field, name in enumerate(self.compiled.fields if types else ()):
            message, left = decoder.to_arrow_json(raws, field)
            columns = pa.schema([("text", pa.string()), ("value", types.field(name).type)])
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), columns)
            batch.validate(full=True)
            taken = [raw for number, raw in enumerate(raws) if number not in left]
            assert batch["text"].to_pylist() == [self.pure.to_json(raw) for raw in taken]
            array, bad = self.values[0].decode(taken)
            assert not bad
            assert repr(batch["value"].to_pylist()) == repr(array.field(name).to_pylist())
            break  # one field is enough; the first one is the header


def outcome(way, raw: bytes) -> object:
    """Return what the function *way* returns for *raw*, or the text of its `DecodeError`."""
    try:
        return way(raw)
    except DecodeError as error:
        return f"error {error}"


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Return a payload with some bytes changed, removed or inserted."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            del found[at : at + rng.randrange(4)]
        elif kind == 2:
            found[at:at] = bytes(rng.choices(_EDGES, k=rng.randrange(1, 12)))
        elif kind == 3 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif at < len(found):
            found[at] = rng.choice(_EDGES) if kind == 4 else rng.randrange(256)
    return bytes(found)


def everything(rng: random.Random) -> dict[str, object]:
    """Return a random value of the schema `EVERYTHING`."""

    def text() -> str:
        return "".join(rng.choices('aZ9 "\\\n\x01éß東🙂', k=rng.randrange(9)))

    def inner() -> dict[str, object]:
        return {"n": rng.choice((None, rng.randbytes(4))), "k": rng.getrandbits(63)}

    return {
        "b": rng.random() < 0.5,
        "i": rng.choice((0, -1, 2**31 - 1, -(2**31))),
        "l": rng.choice((None, rng.getrandbits(63))),
        "f": rng.choice((None, 0.1, -0.0)),
        "d": rng.choice((1e16, 0.1, 5e-324, float(rng.getrandbits(60)))),
        "y": rng.choice((None, rng.randbytes(rng.randrange(5)))),
        "s": text(),
        "x": rng.randbytes(4),
        "e": rng.choice("ABC"),
        "a": [rng.choice((None, text())) for _ in range(rng.randrange(4))],
        "m": {text(): [rng.randrange(300)] for _ in range(rng.randrange(4))},
        "u": rng.choice((None, 7, text())),
        "r": [inner() for _ in range(rng.randrange(4))],
        "o": rng.choice((None, inner())),
    }


def main() -> None:
    """Compare the decoders on many damaged payloads, and print the counts."""
    if not native.is_installed():
        sys.exit("sfpubsub-native is not installed: run scripts/native.sh")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = random.randrange(2**32)
    print("seed", seed, flush=True)
    rng = random.Random(seed)
    kinds = [(DecoderPair(schema_text(name)), [raw for raw, _ in golden(name)]) for name in CORPUS]
    ways = DecoderPair(json.dumps(EVERYTHING))
    kinds += [(ways, [ways.pure.encode(everything(rng)) for _ in range(200)])] * len(CORPUS)
    assert all(ways.is_compiled for ways, _ in kinds)
    began, done, good = time.monotonic(), 0, 0
    while done < count:
        ways, raws = kinds[done // _PIECE % len(kinds)]
        good += ways.check([damaged(rng, rng.choice(raws)) for _ in range(_PIECE)])
        done += _PIECE
    seconds = round(time.monotonic() - began)
    print(json.dumps({"payloads": done, "good": good, "seconds": seconds}))


if __name__ == "__main__":
    main()
