"""The columns and the partitioning of a raw table: its layout, identified by a number.

All formats share one numbering. A table records its layout together with its identity: Parquet in
its identity file, table formats with every transaction. The rules:

- A layout adds columns to the one before. A column never changes its type or meaning, and never
  goes away.
- *Readers* match columns by name: a column that the table lacks is null, and columns that they do
  not know are ignored. So every version reads every table.
- A *writer* writes every layout that it knows unchanged, and refuses a table with a newer one: it
  would leave the columns that it does not know empty, and nobody would notice. It leaves columns
  that others added empty.

1. Parquet: staging and sidecars inside the table. Table formats: as layout 2.
2. Partitions by hour, as text.
3. ``org_id``, ``change_header``, ``headers``. Partitions by day: appends come in the order of
   time, so every file's statistics are as selective as clustering would make them, and clustering
   would write everything once more. Partitions exist so that old days can be removed at no cost;
   days have a type that every engine can compare, and are few enough for any catalog.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from sfpubsub.spark.raw.schema import BATCH_COLUMN, FIRST_COLUMNS, SCHEMA


@dataclass(frozen=True)
class Layout:
    """One layout. Use `layout_of`, or `NEWEST`."""

    number: int
    columns: pa.Schema
    """What a row has, without the partition and the batch."""
    partition: str
    """The column by which the table is partitioned."""
    kind: pa.DataType
    """Its type."""
    format: str
    """Its form as text, whose order is its order in time."""
    seconds: float
    """Its length."""

    @property
    def added(self) -> tuple[str, str]:
        """Columns that readers see after `columns`. In Parquet the directories' names carry them.

        The time of writing (UTC), and the batch's id.
        """
        return self.partition, BATCH_COLUMN

    @property
    def stored(self) -> pa.Schema:
        """All columns, as a table format stores them."""
        kinds = (self.kind, pa.string())
        return pa.schema([*self.columns, *zip(self.added, kinds, strict=True)])

    @property
    def prefix(self) -> str:
        """What the names of a Parquet table's directories begin with."""
        return f"{self.partition}="

    def text_of(self, time: float) -> str:
        """Return the partition of a time in seconds since 1970 UTC, as text."""
        return datetime.fromtimestamp(time, UTC).strftime(self.format)

    def value_of(self, time: float) -> str | date:
        """Return the partition of a time in seconds since 1970 UTC, as it is stored."""
        return self.text_of(time) if pa.types.is_string(self.kind) else _utc(time).date()

    def start_of(self, value: str | date) -> float:
        """Return the beginning of a partition, in seconds since 1970 UTC.

        Raises:
            ValueError: It is not one.
        """
        text = value if isinstance(value, str) else value.isoformat()
        return datetime.strptime(text, self.format).replace(tzinfo=UTC).timestamp()

    def end_of(self, value: str | date) -> float:
        """Return the end of a partition, in seconds since 1970 UTC.

        Raises:
            ValueError: It is not one.
        """
        return self.start_of(value) + self.seconds


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)


_HOURS = pa.schema([SCHEMA.field(name) for name in FIRST_COLUMNS])
_HOUR = timedelta(hours=1).total_seconds()
_DAY = timedelta(days=1).total_seconds()

# Seconds by which a row's partition may end after the row was written.
LONGEST_PARTITION = _DAY

NEWEST = Layout(3, SCHEMA, "ingest_date", pa.date32(), "%Y-%m-%d", _DAY)
LAYOUTS = {
    1: Layout(1, _HOURS, "ingest_hour", pa.string(), "%Y-%m-%d-%H", _HOUR),
    2: Layout(2, _HOURS, "ingest_hour", pa.string(), "%Y-%m-%d-%H", _HOUR),
    3: NEWEST,
}

# Of the directories of a Parquet table, whatever its layout.
PREFIXES = tuple({layout.prefix: None for layout in LAYOUTS.values()})


def layout_with(columns: Collection[str]) -> Layout:
    """Return the layout of a table with these columns, for one that does not name it."""
    return LAYOUTS[1] if LAYOUTS[1].partition in columns else NEWEST


def newer_layout(table: object, number: object) -> str:
    """Return why a table of a layout that is not known is not written."""
    return (
        f"{table} has layout {number}, of a newer sfpubsub; this one would leave its new "
        f"columns empty: use that version, or name another destination"
    )
