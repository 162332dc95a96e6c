"""Decode payloads of one schema into an Arrow array.

The compiled decoder (`sfpubsub.avro.compiled`) creates no Python object per field. If it does not
support a schema or payload, `Codec` decodes to dicts, and pyarrow converts the dicts. The results
are equal. Invariant: a payload is either decoded with all its bytes used, or rejected. Immutable
after construction and thread-safe.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from sfpubsub.avro.arrow_types import shape_of
from sfpubsub.avro.codec import Codec
from sfpubsub.errors import DecodeError, MissingExtraError

try:
    import pyarrow as pa
except ImportError as missing:
    raise MissingExtraError("converting events to Arrow", "arrow") from missing

# Maximum payload bytes decoded in one call: Arrow's 32-bit offsets limit a column to 2 GiB, and an
# enum symbol can be much longer than the byte that encodes it.
MAX_PAYLOAD_BYTES = 64 * 2**20

Rejects: TypeAlias = dict[int, DecodeError]


class Values:
    """Decodes the payloads of one schema into Arrow arrays.

    Args:
        schema_id: The service's id for the schema, for error messages.
        schema_json: The Avro schema as JSON text.
        native: Whether to use the compiled decoder if it supports the schema.

    Raises:
        SchemaError: The schema cannot be converted to Arrow types; see `shape_of`.
    """

    def __init__(self, schema_id: str, schema_json: str, *, native: bool) -> None:
        self.schema_id = schema_id
        self.shape = shape_of(schema_json)
        self.type: pa.StructType = self.shape.type
        self._codec = Codec(schema_id, json.dumps(self.shape.dicts))
        self._compiled = Codec(schema_id, schema_json).compiled if native else None
        self._column = pa.schema([("value", self.type)])

    @property
    def is_native(self) -> bool:
        """Whether the compiled decoder is tried first for payloads of this schema."""
        return self._compiled is not None

    def decode(self, payloads: Sequence[bytes]) -> tuple[pa.StructArray, Rejects]:
        """Decode payloads into one struct array.

        Args:
            payloads: The payloads; at most `MAX_PAYLOAD_BYTES` bytes in total.

        Returns:
            The values of the valid payloads, in order, and a dict from the index of each invalid
            payload to its error.
        """
        if self._compiled is None:
            return self._decode_dicts(payloads)
        message, left = self._compiled.to_arrow(payloads)
        rejected: Rejects = {}
        for number in left:
            try:
                self._codec.decode(payloads[number])
            except DecodeError as error:
                rejected[number] = error
            else:  # it is valid, but the compiled decoder does not support it
                return self._decode_dicts(payloads)
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._column)
        return batch.column(0), rejected

    def _decode_dicts(self, payloads: Sequence[bytes]) -> tuple[pa.StructArray, Rejects]:
        rows: list[dict[str, Any]] = []
        rejected: Rejects = {}
        for number, payload in enumerate(payloads):
            try:
                rows.append(self._codec.decode(payload))
            except DecodeError as error:
                rejected[number] = error
        # This cannot fail: the codec rejects numbers that do not fit their type.
        return pa.array(rows, type=self.type), rejected


@functools.lru_cache(maxsize=512)  # the same number as SchemaCache keeps
def values_of(schema_id: str, schema_json: str, native: bool) -> Values:
    """Return the decoder of a schema, from a cache if possible.

    Raises:
        SchemaError: The schema cannot be converted to Arrow types; see `shape_of`.
    """
    return Values(schema_id, schema_json, native=native)
