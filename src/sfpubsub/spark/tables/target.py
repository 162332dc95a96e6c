"""The interface of targets for derived tables, in any format.

A `Target` holds tables by name: a directory, a URL, or a schema of a catalog. Each change of a
`TargetTable` is one transaction that carries the number of a step, and a table accepts each number
once and in order, which makes steps repeatable. Invariant: a table whose `TargetTable.step` is N
contains exactly the changes of the steps up to N. Knows nothing about events.
"""

from __future__ import annotations

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import check_format
from sfpubsub.spark.raw.paths import SCHEME, file_url, local_path

# A schema of the session's catalog, or of another one, as Spark SQL writes it without quotes.
_CATALOG_SCHEMA = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Place:
    """The location of a target. Create one with `parse`."""

    format: str
    """``parquet``, ``delta`` or ``iceberg``."""
    address: str
    """An absolute path, a URL without a slash at its end, or the name of a schema."""
    local: Path | None = None
    """The directory, if it is local."""
    in_catalog: bool = False
    """Whether `address` is the name of a catalog schema."""

    @classmethod
    def parse(cls, target: str | os.PathLike[str], format: str) -> Place:  # noqa: A002
        """Parse *target*.

        With a table format, a name without a slash is a schema; use ``./name`` for a directory.

        Raises:
            ConfigurationError: It is not valid for the format, or the format is unknown.
        """
        check_format(format)
        text = os.fspath(target)
        if format != "parquet":
            if isinstance(target, str) and _CATALOG_SCHEMA.fullmatch(text):
                return cls(format, text, in_catalog=True)
            scheme = SCHEME.match(text)
            if scheme is not None and scheme[1] != "file":
                return cls(format, text.rstrip("/"))
        path = local_path(text)
        return cls(format, str(path), path)

    def of(self, name: str) -> str:
        """Return the address of the table *name* for Spark: a URL, or its quoted name."""
        if self.in_catalog:
            return f"{self.schema_in_sql}.`{name}`"
        return f"{self.url}/{name}"

    @property
    def url(self) -> str:
        """`address` as a URL, with a scheme if it is a path."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def schema_in_sql(self) -> str:
        """The quoted name of the catalog schema."""
        return ".".join(f"`{part}`" for part in self.address.split("."))

    def __str__(self) -> str:
        return self.address


class TargetTable(ABC):
    """One table of a target. Only one thread at a time may change it.

    Each change carries a step's number and is made at most once: if the table already has the same
    or a higher number, nothing happens. A change is visible to readers when the method returns,
    except for Parquet targets, which publish a complete step in `Target.finish`. It is durable
    after `Target.finish`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the table exists.

        Raises:
            ConfigurationError: A foreign table with this name exists.
        """

    @abstractmethod
    def step(self) -> int:
        """Return the newest step of the table; 0 if there is no step or no table."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the facts stored by `make`; empty if there is no table."""

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
            columns: All required columns. Times have a zone.
            facts: Stored with the table, replacing all previous ones; None leaves them unchanged.
            merged: Whether `merge` will be used: if so, a new table marks rows as deleted instead
                of rewriting files.

        Raises:
            ConfigurationError: A foreign table with this name exists.
            WriteError: It failed.
        """

    @abstractmethod
    def append(self, files: Sequence[bytes], step: int) -> bool:
        """Add rows.

        Args:
            files: Complete Parquet files from `parquet_of`, whose columns match the table's by name
                and type; missing columns are null. If empty, only the step's number is recorded.
            step: Step of the rows.

        Returns:
            Whether this call added them; False if the table already has the step.

        Raises:
            WriteError: `step` tells whether the rows are in the table.
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
        """Replace existing rows by those of *source*, and add new ones.

        Args:
            source: A frame of `Target.spark` with columns of the table, by name and with their
                complete types. If columns are missing, existing rows keep those values, and there
                must be no new rows. It is evaluated more than once, and must yield the same rows
                each time.
            on: The key columns; not null, and unique within *source*.
            step: See `append`.
            replaced: Columns of existing rows to update; None updates all columns of *source*.

        Raises:
            ConfigurationError: The format does not support this.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def insert(self, source: DataFrame, step: int) -> None:
        """Add the rows of a frame without looking for existing ones. For many rows that are all
        new.

        Args:
            source: See `merge`; it is evaluated once.
            step: See `append`.

        Raises:
            ConfigurationError: The format does not support this.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def delete(self, condition: str, step: int) -> None:
        """Remove the rows for which an SQL condition over the table's columns is true.

        Args:
            condition: ``true`` removes all.
            step: See `append`.

        Raises:
            ConfigurationError: The format does not support this.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def read(self) -> DataFrame:
        """Return the current table as a frame of `Target.spark`."""


class Target(ABC):
    """A place with tables. Only one process at a time may change them. A context manager.

    Different tables may be changed by different threads. Use `sfpubsub.spark.tables.open_target`.
    """

    spark: SparkSession
    """The session that writes: an exclusive one, with times in UTC. Frames passed to
    `TargetTable.merge` must belong to it.
    """

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self.spark = spark
        self.place = place

    @property
    @abstractmethod
    def can_merge(self) -> bool:
        """Whether its tables support `TargetTable.merge` and `TargetTable.delete`."""

    @abstractmethod
    def table(self, name: str) -> TargetTable:
        """Return the table with this name, whether or not it exists. Always returns the same
        object.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the sorted names of our existing tables."""

    @abstractmethod
    def finish(self, step: int) -> None:
        """Make all changes up to *step* durable and visible.

        Raises:
            WriteError: It failed; call it again.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the target. Can be called repeatedly."""

    def check_merge(self, what: str) -> None:
        """Check that the target supports tables with merges.

        Args:
            what: For messages, such as ``current tables``.

        Raises:
            ConfigurationError: It does not.
        """
        if not self.can_merge:
            raise ConfigurationError(
                f"{what} need a table format, whose rows can be replaced: use --format delta or "
                f"iceberg (format=); {self.place} is of format {self.place.format}"
            )

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
        # No minimum and maximum: they imply an order, which replay ids do not have.
        write_statistics=[name for name in rows.column_names if name not in UNORDERED],
        # Values are almost always unique.
        use_dictionary=[name for name in rows.column_names if name not in DISTINCT],
    )
    return content.getvalue()


# Columns whose values have no meaningful order.
UNORDERED = ("replay_id", "dedupe_key")

# Columns with almost always unique values.
DISTINCT = ("event_id", "dedupe_key", "replay_id", "ingest_seq")
