"""Payloads of one schema as one Arrow array, without a Python object a field where possible.

Two routes that give equal results: natively (pyruhvro, the extra ``arrow-native``), or by way of
dicts (`Codec`, then pyarrow). Where the native decoder fails, the dicts decide. Invariant: a
payload is in the array with all its bytes used, or it is rejected. Immutable after construction and
safe to share between threads.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Sequence
from typing import Any, TypeAlias

from sfpubsub.avro.arrow_types import Shape, shape_of
from sfpubsub.avro.codec import Codec
from sfpubsub.errors import DecodeError, MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise MissingExtraError("the Arrow form of events", "arrow") from missing

try:
    import pyruhvro
except ImportError:
    pyruhvro = None

# Payloads that are decoded one by one when one of them is bad. The native decoder costs about as
# much a call as dicts cost for this many events, so halving further would save nothing.
FEW = 16

# Payload bytes decoded in one call: Arrow's 32-bit offsets hold 2 GiB a column, and an enum's
# symbol can be much longer than the byte that stands for it.
MAX_PAYLOAD_BYTES = 64 * 2**20

# Bytes after each payload that show whether the native decoder stopped where the payload ends.
_SEAL_BYTES = 8

Rejects: TypeAlias = dict[int, DecodeError]


class Values:
    """Decodes the payloads of one schema into Arrow arrays.

    Args:
        schema_id: The service's id of the schema, for messages.
        schema_json: The Avro schema as JSON text.
        native: Whether to use the native decoder where it takes the schema.

    Raises:
        SchemaError: The schema has no Arrow form; see `shape_of`.
    """

    def __init__(self, schema_id: str, schema_json: str, *, native: bool) -> None:
        self.schema_id = schema_id
        self.shape = shape_of(schema_json)
        self.type: pa.StructType = self.shape.type
        self._codec = Codec(schema_id, json.dumps(self.shape.dicts))
        self._native = _Native.of(self.shape) if native else None

    @property
    def is_native(self) -> bool:
        """Whether the native decoder takes this schema."""
        return self._native is not None

    def decode(self, payloads: Sequence[bytes]) -> tuple[pa.StructArray, Rejects]:
        """Return the values of all good payloads in their order, and the errors of the others.

        Args:
            payloads: `MAX_PAYLOAD_BYTES` in sum at most.
        """
        parts: list[pa.StructArray] = []
        rejected: Rejects = {}
        self._decode(payloads, 0, parts, rejected)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts), rejected

    def _decode(
        self, payloads: Sequence[bytes], start: int, parts: list[pa.StructArray], rejected: Rejects
    ) -> None:
        """Decode natively, halving where that fails; a few at a time are decoded as dicts."""
        array = self._native.decode(payloads) if self._native and payloads else None
        if array is not None:
            parts.append(array)
        elif self._native is None or len(payloads) <= FEW:
            parts.append(self._decode_dicts(payloads, start, rejected))
        else:
            middle = len(payloads) // 2
            self._decode(payloads[:middle], start, parts, rejected)
            self._decode(payloads[middle:], start + middle, parts, rejected)

    def _decode_dicts(
        self, payloads: Sequence[bytes], start: int, rejected: Rejects
    ) -> pa.StructArray:
        rows: list[dict[str, Any]] = []
        for number, payload in enumerate(payloads, start):
            try:
                rows.append(self._codec.decode(payload))
            except DecodeError as error:
                rejected[number] = error
        # Nothing here can fail: the codec lets no number pass that its type cannot hold.
        return pa.array(rows, type=self.type)


class _Native:
    """pyruhvro for one schema, with the checks that it leaves out (seen with 0.4.0).

    It does not look at bytes after a value, cuts integers that do not fit ``int``, and does not
    look whether strings are UTF-8, which makes arrays that other software may crash on.
    """

    def __init__(self, shape: Shape, end: str) -> None:
        fields = [*shape.native["fields"], {"name": end, "type": "double"}]  # type: ignore[index]
        self._shape = shape
        self._schema = json.dumps({**shape.native, "fields": fields})  # type: ignore[dict-item]
        # Columns that come in another type than ours; the others are taken as they are.
        sample = pyruhvro.deserialize_array([], self._schema)
        self._others = [
            number
            for number, child in enumerate(shape.children)
            if str(sample.schema.field(number).type) != str(child.type) or _has_map(child)
        ]

    @classmethod
    def of(cls, shape: Shape) -> _Native | None:
        """Return a decoder, or None where pyruhvro does not take the schema."""
        if pyruhvro is None or shape.native is None:
            return None
        end = "end"
        while end in shape.type.names:
            end += "_"
        try:
            native = cls(shape, end)
        except ValueError:
            return None
        except BaseException as error:
            if not _is_panic(error):
                raise
            return None
        return native

    def decode(self, payloads: Sequence[bytes]) -> pa.StructArray | None:
        """Return all values, or None where one of the payloads is bad, or may be."""
        seal = _seal()
        try:
            batch = pyruhvro.deserialize_array([p + seal for p in payloads], self._schema)
            *columns, end = batch.columns
            if end.buffers()[1].to_pybytes()[: _SEAL_BYTES * len(end)] != seal * len(end):
                return None
            batch.validate(full=True)  # UTF-8, above all
            for number in self._others:
                columns[number] = _rebuilt(self._shape.children[number], columns[number], None)
        except (ValueError, pa.ArrowException):
            return None
        except BaseException as error:
            if not _is_panic(error):
                raise
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._shape.type))


def _has_map(shape: Shape) -> bool:
    # pyruhvro names the parts of a map in its own way, which only a comparison of types shows.
    return shape.kind == "map" or any(_has_map(child) for child in shape.children)


def _is_panic(error: BaseException) -> bool:
    """Whether the native code gave up: the class of that is no Exception and has no module."""
    return type(error).__name__ == "PanicException"


def _seal() -> bytes:
    """Return the bytes that are written behind every payload, as one more field.

    The field reads them unchanged only if the decoder stands exactly at the payload's end. Further
    left it reads bytes of the payload first: fewer than 8 of them cannot make up the seal, because
    no beginning of it is an end of it; 8 or more would have to contain it, and it is random and
    new for every call. Further right, less than a field is left.
    """
    while True:
        seal = secrets.token_bytes(_SEAL_BYTES)
        is_number = seal[-1] & 0x7F != 0x7F  # a NaN's bits need not survive everywhere
        if is_number and not any(seal[:n] == seal[-n:] for n in range(1, _SEAL_BYTES)):
            return seal


def _rebuilt(shape: Shape, array: pa.Array, validity: pa.Buffer | None) -> pa.Array:
    """Return a native array in our type, sharing its memory.

    Args:
        shape: Of the array's values.
        array: From the native decoder.
        validity: Bits that say which values are there, instead of the array's own.
    """
    if array.offset:
        raise ValueError("a sliced array")  # buffers are taken from their beginning
    if shape.kind == "optional":
        return _rebuilt(shape.children[0], array, validity)
    if shape.kind == "union":
        return _flattened(shape, array)
    if shape.kind == "null":
        return array
    buffers = array.buffers()
    if shape.kind == "record":
        children = [_rebuilt(child, array.field(n), None) for n, child in enumerate(shape.children)]
        own = buffers[:1]
    elif shape.kind == "array":
        children = [_rebuilt(shape.children[0], array.values, None)]
        own = buffers[:2]
    elif shape.kind == "map":
        entries = [array.keys, _rebuilt(shape.children[0], array.items, None)]
        fields = [shape.type.key_field, shape.type.item_field]
        children = [pa.StructArray.from_arrays(entries, fields=fields)]
        own = buffers[:2]
    else:
        if shape.kind == "int":
            # Read as long, which is written the same: one that is too large shows here.
            array = array.cast(pa.int32())
            buffers = array.buffers()
        children, own = None, buffers
    if validity is not None:
        own = [validity, *own[1:]]
    return pa.Array.from_buffers(shape.type, len(array), own, children=children)


def _flattened(shape: Shape, array: pa.UnionArray) -> pa.StructArray:
    """Return a union as a struct with one field a member, of which at most one is not null."""
    codes = array.type_codes
    members = [
        _rebuilt(child, array.field(branch), _bits(pc.equal(codes, pa.scalar(branch, pa.int8()))))
        for branch, child in zip(shape.branches, shape.children, strict=True)
    ]
    there = None
    if shape.null_branch is not None:
        there = _bits(pc.not_equal(codes, pa.scalar(shape.null_branch, pa.int8())))
    return pa.Array.from_buffers(shape.type, len(array), [there], children=members)


def _bits(flags: pa.BooleanArray) -> pa.Buffer:
    return flags.buffers()[1]


@functools.lru_cache(maxsize=512)  # as many as SchemaCache keeps
def values_of(schema_id: str, schema_json: str, native: bool) -> Values:
    """Return the decoder of a schema, made once.

    Raises:
        SchemaError: The schema has no Arrow form; see `shape_of`.
    """
    return Values(schema_id, schema_json, native=native)


def has_native() -> bool:
    """Whether the native decoder is installed."""
    return pyruhvro is not None
