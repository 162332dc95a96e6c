"""Decodes the raw rows of a step on executors, all event types of it in one Spark job.

What comes back to the driver is a Parquet file for each event type and task, encoded where it was
decoded: a few hundred kilobytes, which the target's own format then takes as they are. Invariant:
every row is in one of the files, or in those of `UNDECODABLE_NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from sfpubsub.avro.columns import BATCH, ENVELOPE
from sfpubsub.avro.typed_rows import Plan, decode_rows
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.tables.target import parquet_of

UNDECODABLE_NAME = "_undecodable"

# Columns of the raw table that are read: not the JSON.
READ = (*ENVELOPE.names, "event_name", "payload", *BATCH.names)

# Bytes of payload that are one task's. A task makes a file for each event type, so small steps are
# one task and a file a type; and this is about a second of decoding.
_TASK_BYTES = 8 * 2**20

_FILES = pa.schema([("name", pa.string()), ("rows", pa.int64()), ("file", pa.binary())])


@dataclass(frozen=True)
class Decoded:
    """What the rows of a step became."""

    files: Mapping[str, tuple[bytes, ...]]
    """Parquet files by event type, and under `UNDECODABLE_NAME`."""
    rows: Mapping[str, int]
    """How many rows are in them, by the same names."""


def decode(rows: DataFrame, plans: Mapping[str, Plan], size: int) -> Decoded:
    """Decode rows of a raw table.

    Args:
        rows: With the columns `READ`.
        plans: By event type; made for the schemas that the rows name.
        size: Bytes of their payloads in sum.
    """
    tasks = max(1, size // _TASK_BYTES)
    found = rows.select(*READ).coalesce(tasks)
    table = found.mapInArrow(partial(_files, plans), spark_schema(_FILES)).toArrow()
    files: dict[str, list[bytes]] = {}
    counts: dict[str, int] = {}
    for row in table.to_pylist():
        files.setdefault(row["name"], []).append(row["file"])
        counts[row["name"]] = counts.get(row["name"], 0) + row["rows"]
    return Decoded({name: tuple(made) for name, made in files.items()}, counts)


def _files(
    plans: Mapping[str, Plan], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    parts: dict[str, list[pa.RecordBatch]] = {}
    for name, part in decode_rows(batches, plans):
        parts.setdefault(name or UNDECODABLE_NAME, []).append(part)
    for name in sorted(parts):
        rows = pa.Table.from_batches(parts.pop(name))
        yield pa.RecordBatch.from_pylist(
            [{"name": name, "rows": len(rows), "file": parquet_of(rows)}], _FILES
        )
