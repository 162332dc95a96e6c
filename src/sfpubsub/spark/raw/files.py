"""Small text files of a table, on a local disk or, for other tables, as rows of another table.

Each `Files` object handles one directory: it lists the names of the files, and reads, replaces or
removes a file. A reader sees either the old or the new contents of a file, and after
`Files.replace` the new contents are durable.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.store import name_in_sql
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.runtime.paths import Location
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.runtime.sql import sql_text

FILES_NAME = "sidecars"
"""Name of the table with the files of a table that is not on a local disk, after an underscore."""

FILE_COLUMNS = ("directory", "name", "text")
"""Columns of that table."""

# Attempts to change that table, and what errors say if another writer was first. A table has few
# writers, each with a change every few seconds.
_TRIES = 5
_CONFLICTS = ("[DELTA_CONCURRENT_", "CommitFailedException", "Found conflicting files")


class Files(ABC):
    """The files of one directory. Thread-safe, if each file has only one writer."""

    is_slow = False
    """Whether a change takes about a second."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Path or URL of the directory, for messages and for Spark."""

    @abstractmethod
    def make(self) -> None:
        """Create the directory, so that Spark can read it even while it is empty.

        Raises:
            WriteError: The directory could not be created.
        """

    @abstractmethod
    def read(self, name: str) -> str | None:
        """Return the contents of a file, or None if it does not exist.

        Raises:
            ConfigurationError: The file cannot be read.
        """

    @abstractmethod
    def replace(self, name: str, text: str) -> None:
        """Replace the contents of a file durably.

        Raises:
            WriteError: The file could not be replaced; it has either the old or the new contents.
        """

    def add(self, texts: Mapping[str, str]) -> None:
        """Write those of some files that do not exist, durably.

        Args:
            texts: The contents of each file, by name.

        Raises:
            ConfigurationError: A file cannot be read.
            WriteError: See `replace`.
        """
        for name, text in texts.items():
            if self.read(name) is None:  # a file gets its name only once it is complete
                self.replace(name, text)

    @abstractmethod
    def names(self) -> list[str]:
        """Return the sorted names of the files; empty if the directory does not exist.

        They include temporary files (``*.tmp``) that an interrupted `replace` has left behind.

        Raises:
            ConfigurationError: The directory cannot be listed.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists. It may reappear after a crash.

        Raises:
            WriteError: The file could not be removed.
        """


class LocalFiles(Files):
    """A directory on a local POSIX file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def place(self) -> str:
        """See `Files`."""
        return str(self._directory)

    def make(self) -> None:
        """See `Files`."""
        try:
            make_directory(self._directory)
        except OSError as error:
            raise WriteError(f"{self.place} cannot be created: {error.strerror}") from error

    def read(self, name: str) -> str | None:
        """See `Files`."""
        path = self._directory / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error

    def replace(self, name: str, text: str) -> None:
        """See `Files`."""
        try:
            replace_file(self._directory / name, text)
        except OSError as error:
            raise WriteError(
                f"{self._directory / name} was not written: {error.strerror}"
            ) from error

    def names(self) -> list[str]:
        """See `Files`."""
        try:
            return sorted(entry.name for entry in os.scandir(self._directory) if entry.is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"{self.place} cannot be listed: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """See `Files`."""
        path = self._directory / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise WriteError(f"{path} was not removed: {error.strerror}") from error


class TableFiles(Files):
    """The files of one directory as rows of a table in Delta or Iceberg format.

    An object store, or a catalog, is reached only through Spark, whose documented interfaces write
    tables, but no files with a given name. All directories of a raw table or target share one
    table, which `make` creates. Each change is a commit, of about a second.

    Args:
        spark: A session of ours.
        table: Quoted name of the table in the session.
        format: Its format.
        place: Path or URL of the table, for messages.
        directory: Name of the directory.
    """

    is_slow = True

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        format: str,  # noqa: A002  # named as in Spark
        place: str,
        directory: str,
    ) -> None:
        self._spark = spark
        self._table = table
        self._format = format
        self._place = f"{place}/{directory}"
        self._mine = f"directory = {sql_text(directory)}"
        self._directory = directory
        self._is_made = False

    @property
    def place(self) -> str:
        """See `Files`."""
        return self._place

    def make(self) -> None:
        """See `Files`."""
        if not self._is_made:
            columns = ", ".join(f"{name} STRING" for name in FILE_COLUMNS)
            self._change(
                f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) USING {self._format}", ""
            )
            self._is_made = True

    def read(self, name: str) -> str | None:
        """See `Files`."""
        rows = self._query(f"SELECT text FROM {self._table} WHERE {self._named(name)}")  # noqa: S608
        return None if not rows else str(rows[0][0])

    def add(self, texts: Mapping[str, str]) -> None:
        """See `Files`."""
        self._merge(texts, "")

    def replace(self, name: str, text: str) -> None:
        """See `Files`."""
        self._merge({name: text}, "WHEN MATCHED THEN UPDATE SET text = s.text")

    def names(self) -> list[str]:
        """See `Files`."""
        rows = self._query(f"SELECT name FROM {self._table} WHERE {self._mine}")  # noqa: S608
        return sorted(str(name) for (name,) in rows)

    def remove(self, name: str) -> None:
        """See `Files`."""
        self._change(f"DELETE FROM {self._table} WHERE {self._named(name)}", name)  # noqa: S608

    def _named(self, name: str) -> str:
        return f"{self._mine} AND name = {sql_text(name)}"

    def _merge(self, texts: Mapping[str, str], matched: str) -> None:
        if not texts:
            return
        rows = [(self._directory, name, text) for name, text in texts.items()]
        view = f"texts_{uuid.uuid4().hex}"
        schema = StructType([StructField(name, StringType()) for name in FILE_COLUMNS])
        frame_of_rows(self._spark, rows, schema).createOrReplaceTempView(view)
        try:
            self._change(
                f"MERGE INTO {self._table} t USING {view} s "
                f"ON t.directory = s.directory AND t.name = s.name {matched} "
                f"WHEN NOT MATCHED THEN INSERT *",
                next(iter(texts)),
            )
        finally:
            self._spark.catalog.dropTempView(view)

    def _query(self, query: str) -> list[Any]:
        if not self._is_made and not self._exists():
            return []
        try:
            if self._format == "iceberg":  # catalogs keep tables, and miss commits of others
                self._spark.catalog.refreshTable(self._table)
            return self._spark.sql(query).collect()
        except SPARK_ERRORS as error:
            raise ConfigurationError(f"{self._place} cannot be read: {first_line(error)}") from (
                error
            )

    def _exists(self) -> bool:
        try:
            self._spark.table(self._table)
        except AnalysisException:
            return False
        self._is_made = True
        return True

    def _change(self, statement: str, name: str) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._spark.sql(statement)
            except SPARK_ERRORS as error:
                if left and any(word in str(error) for word in _CONFLICTS):
                    continue
                place = os.path.join(self._place, name)
                raise WriteError(f"{place} was not written: {first_line(error)}") from error
            return


def files_of(table: Location, format: str, name: str, spark: SparkSession | None) -> Files:  # noqa: A002
    """Return the `Files` object for the directory *name* of a raw table or a target.

    Args:
        table: A table, or a directory or URL with tables.
        format: Format of the table or the tables.
        name: Name of the directory, such as ``_gaps``.
        spark: A session of ours, used only by this directory and others of the same table; not
            needed if *table* is local.

    Raises:
        ConfigurationError: *table* is not local, and *spark* is None.
    """
    if table.local is not None:
        return LocalFiles(table.local / name)
    if spark is None:
        raise ConfigurationError(f"{table} is not local: pass a Spark session to access it")
    address = f"{table.address}{'_' if table.in_catalog else '/_'}{FILES_NAME}"
    place = Destination(format=format, address=address, in_catalog=table.in_catalog)
    return TableFiles(spark, name_in_sql(spark, place), format, address, name)
