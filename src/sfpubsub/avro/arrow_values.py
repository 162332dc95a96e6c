"""Payloads of one schema as one Arrow array, without a Python object a field where possible.

Two routes that give equal results: by the compiled decoder (`sfpubsub.avro.native`), or by way of
dicts (`Codec`, then pyarrow). What the compiled decoder does not take, the dicts decide. Invariant:
a payload is in the array with all its bytes used, or it is rejected. Immutable after construction
and safe to share between threads.
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
    raise MissingExtraError("the Arrow form of events", "arrow") from missing

# Payload bytes decoded in one call: Arrow's 32-bit offsets hold 2 GiB a column, and an enum's
# symbol can be much longer than the byte that stands for it.
MAX_PAYLOAD_BYTES = 64 * 2**20

Rejects: TypeAlias = dict[int, DecodeError]


class Values:
    """Decodes the payloads of one schema into Arrow arrays.

    Args:
        schema_id: The service's id of the schema, for messages.
        schema_json: The Avro schema as JSON text.
        native: Whether to use the compiled decoder where it takes the schema.

    Raises:
        SchemaError: The schema has no Arrow form; see `shape_of`.
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
        """Whether the compiled decoder takes this schema."""
        return self._compiled is not None

    def decode(self, payloads: Sequence[bytes]) -> tuple[pa.StructArray, Rejects]:
        """Return the values of all good payloads in their order, and the errors of the others.

        Args:
            payloads: `MAX_PAYLOAD_BYTES` in sum at most.
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
            else:  # it fits, and the compiled decoder could not hold it
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
        # Nothing here can fail: the codec lets no number pass that its type cannot hold.
        return pa.array(rows, type=self.type), rejected


@functools.lru_cache(maxsize=512)  # as many as SchemaCache keeps
def values_of(schema_id: str, schema_json: str, native: bool) -> Values:
    """Return the decoder of a schema, made once.

    Raises:
        SchemaError: The schema has no Arrow form; see `shape_of`.
    """
    return Values(schema_id, schema_json, native=native)
