"""The interface of targets for derived tables, in Delta or Iceberg format.

A `Target` is a directory, a URL, or a schema of a catalog, which contains tables by name. Each
change of a `TargetTable` is one transaction with the number of a step, and of a part of the step if
it changes the table several times. A table accepts each of these once and in order, which makes
steps repeatable. Invariant: a table whose `TargetTable.step` is N contains exactly the changes of
the steps up to N, and perhaps some parts of the next one. This module does not depend on events.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.spark.formats.destination import Destination

LAST = 3
"""The last part of a step. Parts are numbered from 0; most steps consist of this one only."""

# Table property that marks a table as created by this package and stores its facts.
FACTS = "sfpubsub.table"


class TargetTable(ABC):
    """One table of a target. Only one thread at a time may change it.

    Each change has the number of a step and of its part, and is made at most once: if the table
    already `has` it or a later one, nothing happens. A change is visible to readers when the method
    returns, and durable when `Target.finish` returns.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the table exists.

        Raises:
            ConfigurationError: A table with this name exists, but was not created by this package.
        """

    @abstractmethod
    def newest(self) -> tuple[int, int]:
        """Return the step and the part of the newest change; (0, `LAST`) if there is none."""

    def step(self) -> int:
        """Return the number of the newest step that the table has completely; 0 if there is none.

        A step is complete with its part `LAST`.
        """
        step, part = self.newest()
        return step if part == LAST else step - 1

    def has(self, step: int, part: int = LAST) -> bool:
        """Return whether the table already has this part of a step, or a later change."""
        return self.newest() >= (step, part)

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the metadata (*facts*) that `make` stored; empty if there is no table."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the names of the table's columns in order; empty if there is no table."""

    @abstractmethod
    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """Create the table, or add missing columns. Cheap if nothing is missing.

        Columns are only added at the end, also within structs, lists and maps. After a crash, the
        next call completes the table.

        Args:
            columns: All required columns. Timestamps must have a time zone.
            facts: Metadata to store with the table, replacing all previous metadata; None leaves
                the metadata unchanged.
            merged: Whether `merge` will be used: if so, a new table marks rows as deleted instead
                of rewriting files.

        Raises:
            ConfigurationError: A table with this name exists, but was not created by this package.
            WriteError: The table could not be created or changed.
        """

    @abstractmethod
    def append(self, files: Sequence[bytes], step: int, part: int = LAST) -> bool:
        """Add the rows of Parquet files.

        Args:
            files: Complete Parquet files from `parquet_of`, whose columns match the table's by name
                and type; missing columns are null. If there are no files, only the step's number is
                recorded.
            step: Number of the step that adds the rows.
            part: The part of the step.

        Returns:
            Whether this call added the rows; False if the table already has the change.

        Raises:
            WriteError: Writing failed. The rows were added anyway if the table now `has` the
                change.
        """

    @abstractmethod
    def merge(
        self,
        source: DataFrame,
        on: str,
        step: int,
        part: int = LAST,
        *,
        replaced: Mapping[str, str] | None = None,
        added: str | None = None,
    ) -> None:
        """Replace existing rows with those of *source* that match them, and add the others.

        Args:
            source: A DataFrame of `Target.spark` with columns of the table, by name and with their
                complete types. If *source* lacks columns, existing rows keep their values in these
                columns, and *source* must not contain new rows. The DataFrame is evaluated more
                than once, and must yield the same rows each time.
            on: SQL condition that a row ``s`` of *source* matches a row ``t`` of the table. At most
                one row of *source* may match a row.
            step: See `append`.
            part: See `append`.
            replaced: Columns of existing rows to update, with their new values in SQL; None copies
                all columns of *source*.
            added: SQL condition over ``s`` for the rows to add; None adds all that do not match.

        Raises:
            WriteError: Writing failed. The change was made anyway if the table now `has` it.
        """

    @abstractmethod
    def insert(self, source: DataFrame, step: int, part: int = LAST) -> None:
        """Add the rows of a DataFrame, all of which must be new, without looking for existing rows.

        Args:
            source: See `merge`. The DataFrame is evaluated once.
            step: See `append`.
            part: See `append`.

        Raises:
            WriteError: Writing failed. The change was made anyway if the table now `has` it.
        """

    @abstractmethod
    def delete(self, condition: str, step: int, part: int = LAST) -> None:
        """Remove the rows for which an SQL condition over the table's columns is true.

        Args:
            condition: SQL text; ``true`` removes all rows.
            step: See `append`.
            part: See `append`.

        Raises:
            WriteError: Writing failed. The change was made anyway if the table now `has` it.
        """

    @abstractmethod
    def read(self) -> DataFrame:
        """Return the table's current rows as a DataFrame of the session `Target.spark`."""


class Target(ABC):
    """A location with tables, which only one process at a time may change. A context manager.

    Different tables may be changed by different threads. Use `sfpubsub.spark.tables.open_target`.
    """

    spark: SparkSession
    """The target's own session, whose time zone is UTC. Frames passed to `TargetTable.merge` and
    `TargetTable.insert` must belong to it.
    """

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self.spark = spark
        self.place = place

    @abstractmethod
    def table(self, name: str) -> TargetTable:
        """Return the table with this name, which need not exist.

        The same name always returns the same object.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the existing tables that this package created, sorted."""

    @abstractmethod
    def finish(self, step: int) -> None:
        """Make all changes up to *step* durable.

        Raises:
            WriteError: The changes may not be durable; call `finish` again.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the target for other processes. Can be called repeatedly."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parquet_of(rows: pa.Table) -> bytes:
    """Return rows as one Parquet file for `TargetTable.append`."""
    content = io.BytesIO()
    pq.write_table(
        rows,
        content,
        compression="snappy",
        # Store no minimum and maximum: they imply an order, which replay ids do not have.
        write_statistics=[name for name in rows.column_names if name not in UNORDERED],
        # No dictionary: values are almost always unique.
        use_dictionary=[name for name in rows.column_names if name not in DISTINCT],
    )
    return content.getvalue()


# Columns whose values have no meaningful order.
UNORDERED = ("replay_id", "dedupe_key")

# Columns with almost always unique values.
DISTINCT = ("event_id", "dedupe_key", "replay_id", "ingest_seq")
