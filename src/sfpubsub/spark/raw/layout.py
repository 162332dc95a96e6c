"""The layout of a raw table: the version of its columns and of its partitioning.

A table records the number of its layout together with its identity: Parquet in its identity file,
Delta and Iceberg with every transaction. The rules:

- A later layout may add columns. A column never changes its type or meaning, and is never removed.
- *Readers* match columns by name, and ignore unknown columns.
- A *writer* rejects a table with a newer layout, because it would silently leave the new columns
  empty. Columns added by other programs stay empty.
- Every layout stays readable and writable. ``tests/data/layouts`` contains a stored table of each.

Rows are partitioned by the day of writing (UTC), so that old days can be deleted cheaply. Every
engine can compare dates, and one partition per day is not too many for any catalog. Rows are
appended in chronological order, so file statistics are as selective as after clustering, without
rewriting any files.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.schema import BATCH_COLUMN, SCHEMA, with_comments

LAYOUT = 1
"""Number of the layout of the tables that this version creates."""

PARTITION = "ingest_date"
"""Name of the partition column, the day of writing (UTC)."""

STORED = with_comments(pa.schema([*SCHEMA, (PARTITION, pa.date32()), (BATCH_COLUMN, pa.string())]))
"""All columns of a raw table. A Parquet table stores the values of the last two in the names of
directories.
"""

PREFIX = f"{PARTITION}="
"""Prefix of the partition directories of a Parquet table."""

# Longest time from the write of a row to the end of its partition, in seconds.
LONGEST_PARTITION = timedelta(days=1).total_seconds()


def day_of(time: float) -> date:
    """Return the partition of rows written at *time*, in seconds since the epoch."""
    return datetime.fromtimestamp(time, UTC).date()


def start_of(day: date) -> float:
    """Return the start of a partition, in seconds since the epoch."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def end_of(day: date) -> float:
    """Return the exclusive end of a partition, in seconds since the epoch."""
    return start_of(day) + LONGEST_PARTITION


def before(day: date) -> str:
    """Return the SQL condition for the rows of the days before *day*."""
    return f"{PARTITION} < DATE '{day}'"


def check_layout(table: object, number: object) -> None:
    """Check that this version can write to a table of the layout *number*.

    Raises:
        ConfigurationError: The layout is newer, or there is no such layout.
    """
    if number == LAYOUT:
        return
    if isinstance(number, int) and number > LAYOUT:
        raise ConfigurationError(
            f"{table} has layout {number}, which a newer version of sfpubsub wrote; this version "
            f"would leave its new columns empty: use the newer version, or choose another "
            f"destination"
        )
    raise ConfigurationError(
        f"{table} has the unknown layout {number!r}: choose another destination"
    )
