"""Decode the raw rows of a step (steps.py) on executors, all event types in one Spark job.

Each task returns one Parquet file per event type, typically a few hundred kilobytes in size, to the
driver. The target (target.py) stores the files unchanged. Invariant: every row is in a file of its
event type, or in a file under `UNDECODABLE_NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from sfpubsub.avro.columns import BATCH, ENVELOPE
from sfpubsub.avro.typed_rows import Plan, decode_rows
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.target import parquet_of
from sfpubsub.spark.records.step import UNDECODABLE_NAME
from sfpubsub.spark.runtime.arrow import to_arrow

# Columns read from the raw table, without the JSON.
READ = (*ENVELOPE.names, "event_name", "payload", *BATCH.names)

# Payload bytes per task. A task creates a file per event type, so small steps have one task and one
# file per type; decoding this much takes about a second.
_TASK_BYTES = 8 * 2**20

_FILES = pa.schema([("name", pa.string()), ("rows", pa.int64()), ("file", pa.binary())])


@dataclass(frozen=True)
class Decoded:
    """The result of `decode`: the decoded rows of a step, as Parquet files."""

    files: Mapping[str, tuple[bytes, ...]]
    """Parquet files by event type; those of undecodable rows are under `UNDECODABLE_NAME`."""
    rows: Mapping[str, int]
    """Total number of rows in these files, by the same names."""


def decode(rows: DataFrame, plans: Mapping[str, Plan], size: int) -> Decoded:
    """Decode rows of a raw table to Parquet files, one per task and event type.

    Args:
        rows: Rows with the columns `READ`.
        plans: Decoding plans by event type, for the schemas of the rows.
        size: Total size of the rows' payloads, in bytes.
    """
    tasks = max(1, size // _TASK_BYTES)
    found = rows.select(*READ).coalesce(tasks)
    table = to_arrow(found.mapInArrow(partial(_files, plans), spark_schema(_FILES)))
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
