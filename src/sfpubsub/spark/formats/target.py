"""A target: a location with derived tables, each of which applies each step once, in any format.

A `Target` is a directory, a URL, or a schema of a catalog, which contains tables by name. Each
change of a `TargetTable` is one transaction with the number of a step, and of a part of the step if
it changes the table several times. A table accepts each of these once and in order, which makes
steps repeatable. Invariant: a table whose `TargetTable.step` is N contains exactly the changes of
the steps up to N, and perhaps some parts of the next one. This module does not depend on events.

On a local path, a lease (lease.py) excludes other processes, as for a raw table. At a URL or in a
catalog, there is no lease: a process detects another writer when a table is not at the step that
the process expects.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.durable import make_directory
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import FORMATS, Conflict, FormatError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.flushing import Flusher
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.lease import Lease
from sfpubsub.spark.formats.listing import paths_of_files
from sfpubsub.spark.formats.store import UNORDERED, Notes, Sessions, TableStore, open_store
from sfpubsub.spark.runtime.checks import check_file_system, check_session
from sfpubsub.spark.runtime.session import SPARK_ERRORS, driver_at, first_line

LAST = 3
"""The last part of a step. Parts are numbered from 0; most steps consist of this one only."""

# How far the numbers of two steps are apart.
_PARTS = LAST + 1

# Table property that marks a table as created by this package and stores its facts.
FACTS = "sfpubsub.table"

# Key of the number of a change in its note.
_NUMBER = "sfpubsub.change"


class Target:
    """A location with tables, which only one process at a time may change. A context manager.

    Different tables may be changed by different threads.

    Args:
        spark: Any Spark session; the target uses new sessions of the same driver.
        place: Location of the tables; a missing local directory is created.

    Raises:
        ConfigurationError: Another process is writing there, the directory cannot be created, or
            Spark does not support the format or the file system.
    """

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        check_session(spark, place.format)
        if place.local is None and not place.in_catalog:
            check_file_system(spark, place.address)
        self.place: Destination = place
        self.sessions: Sessions = Sessions(spark, place)
        self._tables: dict[str, TargetTable] = {}
        self._lock = Lock()
        """Guards the opened tables."""
        self._lease: Lease | None = None
        self._flusher: Flusher | None = None
        if place.local is not None:
            self._flusher = Flusher(place.format, place.local)
            try:
                make_directory(place.local)
            except OSError as error:
                raise ConfigurationError(
                    f"{place} cannot be created ({error.strerror}): choose another directory"
                ) from error
            self._lease = Lease.acquire(place.local, driver_at(spark, place.local).pid)

    @property
    def spark(self) -> SparkSession:
        """The target's own session, whose time zone is UTC. Frames passed to `TargetTable.merge`
        and `TargetTable.insert` must belong to it.
        """
        return self.sessions.changing

    def table(self, name: str) -> TargetTable:
        """Return the table with this name, which need not exist.

        The same name always returns the same object.
        """
        with self._lock:
            if name not in self._tables:
                self._tables[name] = TargetTable(self, name)
            return self._tables[name]

    def names(self) -> list[str]:
        """Return the names of the existing tables that this package created, sorted."""
        try:
            return sorted(name for name in self._listed() if self._is_ours(name))
        except SPARK_ERRORS as error:
            raise WriteError(f"{self.place} cannot be listed: {first_line(error)}") from error

    def finish(self, step: int) -> None:
        """Make all changes up to *step* durable.

        Local files are flushed; elsewhere, each transaction is already durable.

        Raises:
            WriteError: The changes may not be durable; call `finish` again.
        """
        if self._flusher is None:
            return
        try:
            self._flusher.flush(self._directories())
        except OSError as error:
            raise WriteError(
                f"step {step} of {self.place} was not flushed to the disk ({error}): fix the "
                f"problem and restart to complete the step"
            ) from error

    def close(self) -> None:
        """Release the target for other processes. Can be called repeatedly."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_ours(self, name: str) -> bool:
        try:
            return self.table(name).exists()
        except ConfigurationError:
            return False

    def _directories(self) -> list[Path]:
        """Return the directories in a local target, which may be tables."""
        local = self.place.local
        return [] if local is None else [Path(each) for each in os.scandir(local) if each.is_dir()]

    def _listed(self) -> list[str]:
        if self.place.in_catalog:
            rows = self.spark.sql(f"SHOW TABLES IN {self.place.in_sql}").collect()
            return [str(row["tableName"]) for row in rows]
        if self.place.local is not None:
            return [entry.name for entry in self._directories()]
        url, format_ = self.place.address, FORMATS[self.place.format]
        found = paths_of_files(self.spark, f"{url}/*/{format_.log}/{format_.every}")
        return list({path.removeprefix(url).lstrip("/").partition("/")[0] for path in found})


class TargetTable:
    """One table of a target. Only one thread at a time may change it.

    Each change has the number of a step and of its part, and is made at most once: if the table
    already `has` it, nothing happens. A change is visible to readers when the method returns, and
    durable when `Target.finish` returns.

    All methods that change the table raise WriteError if writing failed. The change was made anyway
    if the table now `has` it.

    Args:
        target: The target.
        name: Name of the table.
    """

    def __init__(self, target: Target, name: str) -> None:
        self.name = name
        self.place: Destination = target.place.table(name)
        self._sessions = target.sessions
        self.store: TableStore = open_store(target.sessions, self.place, _NOTES)
        self._exists = False

    def exists(self) -> bool:
        """Return whether the table exists.

        Raises:
            ConfigurationError: A table with this name exists, but was not created by this package.
        """
        with self._errors("cannot be read"):
            if not self._exists and self.store.exists():
                if FACTS not in self.store.properties():
                    raise ConfigurationError(
                        f"{self.place} is a table that sfpubsub did not create: choose another "
                        f"target"
                    )
                self._exists = True
        return self._exists

    def newest(self) -> tuple[int, int]:
        """Return the step and the part of the newest change; (0, `LAST`) if there is none.

        Also (0, `LAST`) if Delta's log no longer tells.
        """
        number = self._number() if self.exists() else None
        return divmod(number, _PARTS) if number else (0, LAST)

    def step(self) -> int:
        """Return the number of the newest step that the table has completely; 0 if there is none.

        A step is complete with its part `LAST`.
        """
        step, part = self.newest()
        return step if part == LAST else step - 1

    def has(self, step: int, part: int = LAST) -> bool:
        """Return whether the table already has this part of a step, or a later change."""
        return self.newest() >= (step, part)

    def facts(self) -> dict[str, str]:
        """Return the metadata (*facts*) that `make` stored; empty if there is no table."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self.store.properties()[FACTS]))

    def columns(self) -> list[str]:
        """Return the names of the table's columns in order; empty if there is no table."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return list(self.store.columns().fieldNames())

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
        """
        text = json.dumps(dict(facts or {}))
        there = self.exists()
        with self._errors("cannot be created"):
            if not there:
                self.store.create(spark_schema(columns), {FACTS: text}, merged=merged)
                self._exists = True
                return
            self.store.widen(spark_schema(columns))
            if facts is not None and self.store.properties()[FACTS] != text:
                self.store.set({FACTS: text})

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
        """
        number = _PARTS * step + part
        with self._errors("was not written"):
            rows = [pq.read_table(io.BytesIO(file)) for file in files]
            everything = pa.concat_tables(rows) if rows else None
            is_made = self.store.append(everything, number, _note_of(number))
        if not is_made:
            found = self._number()
            if found is not None and found < number:
                raise WriteError(f"{self.place} is still at step {found // _PARTS}, not {step}")
        return is_made

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
        """
        number = _PARTS * step + part
        with self._errors("was not changed"):
            is_made = self.store.merge(
                source, on, number, _note_of(number), replaced=replaced, added=added
            )
        self._check_ours(number, is_made=is_made)

    def insert(self, source: DataFrame, step: int, part: int = LAST) -> None:
        """Add the rows of a DataFrame, all of which must be new, without looking for existing rows.

        Args:
            source: See `merge`. The DataFrame is evaluated once.
            step: See `append`.
            part: See `append`.
        """
        number = _PARTS * step + part
        with self._errors("was not written"):
            is_made = self.store.insert(source, number, _note_of(number))
        self._check_ours(number, is_made=is_made)

    def delete(self, condition: str, step: int, part: int = LAST) -> None:
        """Remove the rows for which an SQL condition over the table's columns is true.

        Args:
            condition: SQL text; ``true`` removes all rows.
            step: See `append`.
            part: See `append`.
        """
        number = _PARTS * step + part
        with self._errors("was not changed"):
            is_made = self.store.delete(condition, number, _note_of(number))
        self._check_ours(number, is_made=is_made)

    def read(self) -> DataFrame:
        """Return the table's current rows as a DataFrame of the session `Target.spark`."""
        with self._errors("cannot be read"):
            return self.store.read(self._sessions.changing)

    def _number(self) -> int | None:
        with self._errors("cannot be read"):
            return self.store.number()

    def _check_ours(self, number: int, *, is_made: bool) -> None:
        """Check that no other process has gone on, if a change was not made.

        Raises:
            WriteError: The table has a later change.
        """
        found = None if is_made else self._number()
        if found is not None and found > number:
            raise WriteError(
                f"{self.place} is at step {found // _PARTS}, but this process expected step "
                f"{number // _PARTS}, so another process is writing to it: stop that process"
            )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Conflict as error:
            raise WriteError(
                f"{self.place} was changed by another process at the same time: stop that process "
                f"({error})"
            ) from error
        except (FormatError, *SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{self.place} {what}: {first_line(error)}") from error


def _note_of(number: int) -> str:
    """Return the note of a change; each attempt has another one."""
    return json.dumps({_NUMBER: number, "attempt": uuid.uuid4().hex})


def _number_in(note: str | None) -> int | None:
    try:
        return int(json.loads(note or "null")[_NUMBER])
    except (ValueError, KeyError, TypeError):
        return None


_NOTES = Notes(application="sfpubsub:tables", key=_NUMBER, number_of=_number_in)


def facts_of(spark: SparkSession, table: Destination) -> dict[str, str]:
    """Return the facts of a table that may be in use; empty if there is none of ours."""
    store = open_store(Sessions(spark, table), table, _NOTES)
    try:
        found = store.properties() if store.exists() else {}
    except ConfigurationError:  # a table of another format
        return {}
    return dict(json.loads(found.get(FACTS, "{}")))


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
        use_dictionary=[name for name in rows.column_names if name not in _DISTINCT],
    )
    return content.getvalue()


# Columns with almost always unique values.
_DISTINCT = ("event_id", "dedupe_key", "replay_id", "ingest_seq")
