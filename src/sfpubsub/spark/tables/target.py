"""The interface of targets for derived tables, in Delta or Iceberg format.

A `Target` is a directory, a URL, or a schema of a catalog, which contains tables by name. Each
change of a `TargetTable` is one transaction with the number of a step (steps.py). A table accepts
each number once and in order, which makes steps repeatable. Invariant: a table whose
`TargetTable.step` is N contains exactly the changes of the steps up to N. This module does not
depend on events.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.paths import Location, locate
from sfpubsub.spark.runtime.sql import quoted

FORMATS = ("delta", "iceberg")
"""Formats of derived tables: those whose rows can be replaced."""

# Table property that marks a table as created by this package and stores its facts.
FACTS = "sfpubsub.facts"


@dataclass(frozen=True, kw_only=True)
class Place(Location):
    """The location of a target. Create one with `parse`."""

    format: str
    """One of `FORMATS`."""

    @classmethod
    def parse(cls, target: str | os.PathLike[str], format: str) -> Place:  # noqa: A002
        """Return the place for a path, a URL or the name of a schema, such as ``catalog.schema``.

        The rule is that of `kind_of`.

        Raises:
            ConfigurationError: *target* is not valid for the format, or the format is unknown.
        """
        if format not in FORMATS:
            raise ConfigurationError(
                f"format {format!r} is not a format of derived tables, whose rows must be "
                f"replaceable: use one of {', '.join(FORMATS)}"
            )
        found = locate(target, "schema")
        return cls(
            format=format, address=found.address, local=found.local, in_catalog=found.in_catalog
        )

    def of(self, name: str) -> str:
        """Return the address of a table for Spark: a URL, or its quoted name in the catalog."""
        if self.in_catalog:
            return quoted(*self.address.split("."), name)
        return f"{self.url}/{name}"


class TargetTable(ABC):
    """One table of a target. Only one thread at a time may change it.

    Each change has the number of a step (steps.py) and is made at most once: if the table already
    has the same or a higher number, nothing happens. A change is visible to readers when the method
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
    def step(self) -> int:
        """Return the number of the newest step in the table; 0 if there is no step or no table."""

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
    def append(self, files: Sequence[bytes], step: int) -> bool:
        """Add the rows of Parquet files.

        Args:
            files: Complete Parquet files from `parquet_of`, whose columns match the table's by name
                and type; missing columns are null. If there are no files, only the step's number is
                recorded.
            step: Number of the step that adds the rows.

        Returns:
            Whether this call added the rows; False if the table already has the step.

        Raises:
            WriteError: Writing failed. The rows were added anyway if `TargetTable.step` now returns
                at least *step*.
        """

    @abstractmethod
    def merge(
        self,
        source: DataFrame,
        on: Sequence[str],
        step: int,
        *,
        replaced: Sequence[str] | None = None,
    ) -> None:
        """Replace existing rows with those of *source* that have the same key, and add the others.

        Args:
            source: A DataFrame of `Target.spark` with columns of the table, by name and with their
                complete types. If *source* lacks columns, existing rows keep their values in these
                columns, and *source* must not contain new rows. The DataFrame is evaluated more
                than once, and must yield the same rows each time.
            on: The key columns; not null, and unique within *source*.
            step: See `append`.
            replaced: Columns of existing rows to update; None updates all columns of *source*.

        Raises:
            WriteError: Writing failed. The change was made anyway if `TargetTable.step` now returns
                at least *step*.
        """

    @abstractmethod
    def insert(self, source: DataFrame, step: int) -> None:
        """Add the rows of a DataFrame, all of which must be new, without looking for existing rows.

        Args:
            source: See `merge`. The DataFrame is evaluated once.
            step: See `append`.

        Raises:
            WriteError: Writing failed. The change was made anyway if `TargetTable.step` now returns
                at least *step*.
        """

    @abstractmethod
    def delete(self, condition: str, step: int) -> None:
        """Remove the rows for which an SQL condition over the table's columns is true.

        Args:
            condition: SQL text; ``true`` removes all rows.
            step: See `append`.

        Raises:
            WriteError: Writing failed. The change was made anyway if `TargetTable.step` now returns
                at least *step*.
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

    def __init__(self, spark: SparkSession, place: Place) -> None:
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
