"""The columns of a raw table: one row an event, as it was received.

Knows no Spark, no files and no position's meaning: `replay_id` is bytes that are stored, and never
compared, cast or ordered. Rows have an order of their own, ``ingest_seq``: the order of arrival.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.errors import LocalProtocolError
from sfpubsub.types.events import KEY_BYTES

SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),  # empty where the event has none
        ("dedupe_key", pa.binary()),
        ("replay_id", pa.binary()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("schema_id", pa.string()),
        ("event_name", pa.string()),
        ("event_time", TIME),  # null where the event does not say, or not in a way Spark can hold
        ("received_at", TIME),
        ("ingest_seq", pa.int64()),
        ("payload", pa.binary()),
        ("payload_json", pa.string()),  # null where the payload does not fit its schema
    ]
)

# Columns that readers see after those of `SCHEMA`, in every format: the hour of writing (UTC), by
# which the table is partitioned, and the batch's id. In Parquet the directories' names carry them.
ADDED_COLUMNS = ("ingest_hour", "batch")

# The form of `ingest_hour`, whose order as text is its order in time.
_HOUR_FORMAT = "%Y-%m-%d-%H"
HOUR_SECONDS = 3600.0


def check_rows(rows: pa.Table) -> pa.Table:
    """Return rows of any origin with the columns of `SCHEMA`; ``ingest_seq`` means nothing yet.

    ``ingest_seq`` may be missing, and `ADDED_COLUMNS` are dropped if present: the table that takes
    the rows makes its own.

    Raises:
        LocalProtocolError: Columns are missing, unknown, of other types, or a key is not one.
    """
    names = set(rows.column_names)
    if "ingest_seq" not in names:
        rows = rows.append_column("ingest_seq", pa.nulls(len(rows), pa.int64()))
        names.add("ingest_seq")
    wrong = names.symmetric_difference(SCHEMA.names) - set(ADDED_COLUMNS)
    if wrong:
        raise LocalProtocolError(
            f"rows for a raw table have its columns; missing or unknown: {', '.join(sorted(wrong))}"
        )
    try:
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LocalProtocolError(f"rows for a raw table have its types: {error}") from error
    lengths = set(pc.unique(pc.binary_length(rows["dedupe_key"])).to_pylist())
    if not lengths <= {KEY_BYTES}:
        raise LocalProtocolError(f"a dedupe_key of a raw table has {KEY_BYTES} bytes")
    return rows


def renumbered(rows: pa.Table, first_seq: int) -> pa.Table:
    """Return *rows* with ``ingest_seq`` counting from *first_seq*."""
    numbers = pa.array(range(first_seq, first_seq + len(rows)), pa.int64())
    return rows.set_column(rows.schema.get_field_index("ingest_seq"), "ingest_seq", numbers)


def joined_keys(keys: pa.Array | pa.ChunkedArray) -> bytes:
    """Return the dedupe keys of a column one after the other, as a `Window` takes them."""
    if isinstance(keys, pa.ChunkedArray):
        return b"".join([joined_keys(chunk) for chunk in keys.chunks])
    if not len(keys):
        return b""
    keys = keys.cast(pa.binary(KEY_BYTES))
    start = keys.offset * KEY_BYTES
    return bytes(memoryview(keys.buffers()[1])[start : start + len(keys) * KEY_BYTES])


def hour_of(time: float) -> str:
    """Return the ``ingest_hour`` of a time in seconds since 1970 UTC."""
    return datetime.fromtimestamp(time, UTC).strftime(_HOUR_FORMAT)


def hour_start(hour: str) -> float:
    """Return the beginning of an ``ingest_hour`` in seconds since 1970 UTC.

    Raises:
        ValueError: It is none.
    """
    return datetime.strptime(hour, _HOUR_FORMAT).replace(tzinfo=UTC).timestamp()
