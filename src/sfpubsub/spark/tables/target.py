"""Where tables made of a raw table go: what the engine asks of a target, whatever its format.

A `Target` is a place that holds tables by name: a directory, a URL, or a schema of a catalog. Each
change of a `TargetTable` is one transaction that carries the number of a step, and a table takes
each number once and in order: that is what makes a step repeatable. Invariant: a table whose
`TargetTable.step` is N holds exactly what the steps up to N have given it. Knows nothing of events.
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
    """Where a target is. Use `parse`."""

    format: str
    """``parquet``, ``delta`` or ``iceberg``."""
    address: str
    """An absolute path, a URL without a slash at its end, or the name of a schema."""
    local: Path | None = None
    """The directory, if it is one of this machine's."""
    in_catalog: bool = False
    """Whether `address` is the name of a catalog's schema."""

    @classmethod
    def parse(cls, target: str | os.PathLike[str], format: str) -> Place:  # noqa: A002
        """Return what *target* names.

        With a table format a name without a slash is a schema; a directory of the working
        directory is ``./name``.

        Raises:
            ConfigurationError: It is not for this format, or there is no such format.
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
        """Return where the table *name* is, for Spark: a URL, or its name with quotes."""
        if self.in_catalog:
            return f"{self.schema_in_sql}.`{name}`"
        return f"{self.url}/{name}"

    @property
    def url(self) -> str:
        """`address`, with its scheme if it is a path."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def schema_in_sql(self) -> str:
        """The name of the catalog's schema, with quotes."""
        return ".".join(f"`{part}`" for part in self.address.split("."))

    def __str__(self) -> str:
        return self.address


class TargetTable(ABC):
    """One table of a target. Changes of one table are made one after the other, by one thread.

    Each change carries a step's number and is made at most once: where the table has a number that
    is as high, nothing happens. What a method has done is visible to readers when it returns, but
    for `Target` s of Parquet files, which show a step as a whole in `Target.finish`; it is durable
    after `Target.finish`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table has been made.

        Raises:
            ConfigurationError: There is one of this name that is not ours.
        """

    @abstractmethod
    def step(self) -> int:
        """Return the newest step that the table has; 0 for none, and where there is no table."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return what `make` was given to keep with the table; empty where there is no table."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the names of the table's columns in order; none where there is no table."""

    @abstractmethod
    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """Make the table, or give it the columns that it lacks; cheap if it lacks nothing.

        Columns are only added, at the end, also within structs, lists and maps. A death in the
        middle leaves a table that the next call completes.

        Args:
            columns: All that the table is to have. Times have a zone.
            facts: Kept with the table, and replaced as a whole; None leaves them as they are.
            merged: Whether `merge` will be used: the format is told to mark rows as deleted rather
                than to write files again. Counts when the table is made.

        Raises:
            ConfigurationError: There is one of this name that is not ours.
            WriteError: It could not be done.
        """

    @abstractmethod
    def append(self, files: Sequence[bytes], step: int) -> bool:
        """Add rows.

        Args:
            files: Whole Parquet files, as `parquet_of` makes them, whose columns the table has by
                name and type; those that are missing in a file are null. With none, the step's
                number is all that is added.
            step: Of which the rows are.

        Returns:
            Whether this call has added them; False where the table has the step.

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
        """Replace the rows that *source* has by its own, and add those that are new.

        Args:
            source: A frame of `Target.spark`, with columns of the table by name, each of its whole
                type. Rows that are in the table keep the values of columns that are missing; such
                a source must not have new rows. It is evaluated more than once, and must yield the
                same rows each time.
            on: The columns that tell rows apart; not null, and unique within *source*.
            step: As for `append`.
            replaced: The columns of rows in the table that get the values of *source*; None for
                all that it has.

        Raises:
            ConfigurationError: The format cannot do that.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def insert(self, source: DataFrame, step: int) -> None:
        """Add rows of a frame, which a merge need not look for: for many rows that are all new.

        Args:
            source: As for `merge`; it is evaluated once.
            step: As for `append`.

        Raises:
            ConfigurationError: The format cannot do that.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def delete(self, condition: str, step: int) -> None:
        """Remove the rows for which an SQL condition over the table's columns is true.

        Args:
            condition: ``true`` removes all.
            step: As for `append`.

        Raises:
            ConfigurationError: The format cannot do that.
            WriteError: `step` tells whether it was done.
        """

    @abstractmethod
    def read(self) -> DataFrame:
        """Return the table as it is now, as a frame of `Target.spark`."""


class Target(ABC):
    """A place with tables. One process at a time changes what is in it. A context manager.

    Different tables may be changed by different threads. Use `sfpubsub.spark.tables.open_target`.
    """

    spark: SparkSession
    """The session that writes: nobody else's, with times in UTC. Frames given to
    `TargetTable.merge` are made in it."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self.spark = spark
        self.place = place

    @property
    @abstractmethod
    def can_merge(self) -> bool:
        """Whether its tables have `TargetTable.merge` and `TargetTable.delete`."""

    @abstractmethod
    def table(self, name: str) -> TargetTable:
        """Return the table of this name, which need not exist. The same object each time."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the tables of ours that there are, in order."""

    @abstractmethod
    def finish(self, step: int) -> None:
        """Make durable what has been done up to *step*, and visible if it is not.

        Raises:
            WriteError: It could not be done; call it again.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the place up. Does nothing the second time."""

    def check_merge(self, what: str) -> None:
        """Make sure that tables which take merges can be here.

        Args:
            what: For messages, such as ``current tables``.

        Raises:
            ConfigurationError: They cannot.
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
    """Return rows as one Parquet file, as `TargetTable.append` takes them."""
    content = io.BytesIO()
    pq.write_table(
        rows,
        content,
        compression="snappy",
        # A minimum and a maximum would be an order, and replay ids have none.
        write_statistics=[name for name in rows.column_names if name not in UNORDERED],
        # Hardly two rows have the same value.
        use_dictionary=[name for name in rows.column_names if name not in DISTINCT],
    )
    return content.getvalue()


# Columns whose values have no order that means anything.
UNORDERED = ("replay_id", "dedupe_key")

# Columns of which hardly two rows have the same value.
DISTINCT = ("event_id", "dedupe_key", "replay_id", "ingest_seq")
