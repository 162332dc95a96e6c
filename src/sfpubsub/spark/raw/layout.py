"""The columns and the partitioning of a raw table: its layout, identified by a number.

All formats share one numbering. A table records its layout together with its identity: Parquet in
its identity file, Delta and Iceberg with every transaction. The rules:

- A layout adds columns to the previous one. A column never changes its type or meaning, and is
  never removed.
- *Readers* match columns by name: missing columns are null, and unknown columns are ignored. So
  every version can read every table.
- A *writer* supports every layout up to its newest one, and does not change the layout of a table.
  It rejects a table with a newer layout, because it would silently leave the new columns empty.
  Columns added by other programs stay empty.

The layouts:

1. Parquet: staging and sidecars inside the table. Delta and Iceberg: as layout 2.
2. Partitions by hour, as text.
3. New columns ``org_id``, ``change_header`` and ``headers``. Partitions by day, so that old days
   can be deleted cheaply. Every engine can compare dates, and one partition per day is not too many
   for any catalog. Rows are appended in chronological order, so file statistics are as selective as
   after clustering, without rewriting any files.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from sfpubsub.spark.raw.schema import BATCH_COLUMN, FIRST_COLUMNS, SCHEMA


@dataclass(frozen=True)
class Layout:
    """The layout of a table. Use an entry of `LAYOUTS`, or `NEWEST`."""

    number: int
    columns: pa.Schema
    """Columns of a row, without the partition and batch columns."""
    partition: str
    """Name of the partition column."""
    kind: pa.DataType
    """Type of the partition column."""
    format: str
    """``strftime`` format of a partition's name; names sort by time."""
    seconds: float
    """Length of a partition, in seconds."""

    @property
    def added(self) -> tuple[str, str]:
        """Names of the two columns after `columns`: the partition and the batch id.

        The partition is the day or hour of writing (UTC). A Parquet table stores the values of both
        columns in the names of directories.
        """
        return self.partition, BATCH_COLUMN

    @property
    def stored(self) -> pa.Schema:
        """All columns, including those of the partition and the batch id."""
        kinds = (self.kind, pa.string())
        return pa.schema([*self.columns, *zip(self.added, kinds, strict=True)])

    @property
    def prefix(self) -> str:
        """Prefix of the partition directories of a Parquet table."""
        return f"{self.partition}="

    def text_of(self, time: float) -> str:
        """Return the name of the partition that contains *time*, in seconds since the epoch."""
        return datetime.fromtimestamp(time, UTC).strftime(self.format)

    def value_of(self, time: float) -> str | date:
        """Return the value of the partition column for *time*, in seconds since the epoch."""
        return self.text_of(time) if pa.types.is_string(self.kind) else _utc(time).date()

    def start_of(self, value: str | date) -> float:
        """Return the start of the partition *value*, in seconds since the epoch.

        Raises:
            ValueError: *value* is not a partition of this layout.
        """
        text = value if isinstance(value, str) else value.isoformat()
        return datetime.strptime(text, self.format).replace(tzinfo=UTC).timestamp()

    def end_of(self, value: str | date) -> float:
        """Return the exclusive end of the partition *value*, in seconds since the epoch.

        Raises:
            ValueError: *value* is not a partition of this layout.
        """
        return self.start_of(value) + self.seconds


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)


_HOURS = pa.schema([SCHEMA.field(name) for name in FIRST_COLUMNS])
_HOUR = timedelta(hours=1).total_seconds()
_DAY = timedelta(days=1).total_seconds()

# Longest time from the write of a row to the end of its partition, in seconds.
LONGEST_PARTITION = _DAY

NEWEST = Layout(3, SCHEMA, "ingest_date", pa.date32(), "%Y-%m-%d", _DAY)
LAYOUTS = {
    1: Layout(1, _HOURS, "ingest_hour", pa.string(), "%Y-%m-%d-%H", _HOUR),
    2: Layout(2, _HOURS, "ingest_hour", pa.string(), "%Y-%m-%d-%H", _HOUR),
    3: NEWEST,
}

# Prefixes of partition directories of a Parquet table of any layout.
PREFIXES = tuple({layout.prefix: None for layout in LAYOUTS.values()})


def layout_with(columns: Collection[str]) -> Layout:
    """Infer a table's layout from its columns.

    Layouts 1 and 2 have the same columns; layout 1 is returned for both.
    """
    return LAYOUTS[1] if LAYOUTS[1].partition in columns else NEWEST


def newer_layout(table: object, number: object) -> str:
    """Return the error message for a table with a layout that this version does not know yet."""
    return (
        f"{table} has layout {number}, which a newer version of sfpubsub wrote; this version would "
        f"leave its new columns empty: use the newer version, or choose another destination"
    )
