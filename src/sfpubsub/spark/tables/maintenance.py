"""Keep the tables of a raw table or a target small: few files, and no old files of our own tables.

Only rows of our own tables (their names begin with an underscore) are ever removed, and their jobs
do that themselves. What is removed here are files: of our own tables those that no version of the
last week needs, and of the others only if the caller says how long their versions are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import LOGS, FormatError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.flushing import Flusher
from sfpubsub.spark.formats.lease import Lease
from sfpubsub.spark.formats.store import MOST_FILES, Sessions, TableStore
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.layout import before, day_of
from sfpubsub.spark.raw.logged import raw_store
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.session import SPARK_ERRORS, driver_at, first_line
from sfpubsub.spark.tables import open_target

# How long the old files of our own tables are kept, in seconds, and at least those of others: a
# writer or a reader that began before may still need them. It is Delta's default.
OWN_VERSIONS = 7 * 86_400.0


@dataclass(frozen=True)
class Maintained:
    """What was done to one table, or what would be done."""

    table: str
    """Name of the table in its target, or its location."""
    files: int
    """Number of its files with rows before."""
    size: int
    """Their total size in bytes."""
    compacted: bool
    """Whether its small files were rewritten as larger ones."""
    expired: bool
    """Whether the files of its old versions were removed."""


def maintain(
    spark: SparkSession,
    to: str | os.PathLike[str],
    *,
    format: str = "delta",  # noqa: A002  # named as in Spark
    keep_versions: float | None = None,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> Iterator[Maintained]:
    """Compact the tables of a location that have many small files, one after the other.

    No row changes. In a raw table, only the days before today are compacted. Of our own tables in a
    target (``_steps`` and others), also the files of versions older than a week are removed.

    Args:
        spark: A session with the format's jars.
        to: A raw table or a target, spelled as for `EventWriter` and `EventTables`. No job may be
            writing there: on a local disk this is checked; elsewhere, the step of a job that runs
            at the same time may fail, and is repeated when the job is started again.
        format: ``delta`` or ``iceberg``.
        keep_versions: How long the versions of the other tables are kept, in seconds; older files
            are removed. None keeps all. Readers that follow a table's versions, RESTORE and time
            travel need them.
        dry_run: Whether to change nothing, and only tell.
        clock: The current time, in seconds since the epoch.

    Yields:
        What was done, for each table.

    Raises:
        ConfigurationError: There is no such table or target, another process is writing there, or
            *keep_versions* is less than a week.
        WriteError: A table could not be maintained. It is unchanged, or compacted.
    """
    if keep_versions is not None and keep_versions < OWN_VERSIONS:
        raise ConfigurationError(
            "versions are kept for at least 7 days, because running readers and writers may need "
            "them: name a longer time"
        )
    check_session(spark, format)
    raw = _raw_table(spark, to, format)
    opened = _targets(spark, to, format) if raw is None else _alone(spark, *raw, day_of(clock()))
    with opened as tables:
        for name, store, where in tables:
            age = OWN_VERSIONS if name.startswith("_") else keep_versions
            with _errors(name):
                files = store.files()
                is_compacted = files.are_many_and_small
                if is_compacted and not dry_run:
                    store.compact(where)
                    is_compacted = store.files().count < files.count
                if age is not None and not dry_run:
                    store.expire(age)
            yield Maintained(name, files.count, files.size, is_compacted, age is not None)


class Upkeep:
    """Keeps the tables of a target small while its job has nothing else to do. Not thread-safe.

    After every `MOST_FILES` steps, each of which adds at most a few files to a table, all tables
    are looked at, one at a time.

    Args:
        target: The job's target.
        step: Number of its newest step.
    """

    def __init__(self, target: Target, step: int) -> None:
        self._target = target
        self._step = step
        self._due: list[str] = []

    def next(self, step: int) -> bool:
        """Compact the next table, if it is due and has many small files.

        Of our own tables, also old files are removed, as in `maintain`.

        Args:
            step: Number of the newest step, which must be finished.

        Returns:
            Whether a table was due.

        Raises:
            WriteError: The table could not be maintained. It is unchanged, or compacted.
        """
        if step // MOST_FILES > self._step // MOST_FILES:
            self._due = self._target.names()
        self._step = step
        if not self._due:
            return False
        name = self._due.pop()
        with _errors(name):
            store = self._target.table(name).store
            if store.files().are_many_and_small:
                store.compact()
                if name.startswith("_"):
                    store.expire(OWN_VERSIONS)
        self._target.finish(step)
        return True


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (FormatError, *SPARK_ERRORS, pa.ArrowException) as error:
        raise WriteError(f"{name} was not maintained: {first_line(error)}") from error


# The name of each table, the table, and the condition for the rows whose files are compacted.
_Tables = Iterator[tuple[str, TableStore, str | None]]


def _raw_table(
    spark: SparkSession, to: str | os.PathLike[str], format_: str
) -> tuple[Destination, TableStore] | None:
    """Return the raw table at a location; None if there is none."""
    place = Destination.parse(to, format_)
    if place.local is not None and not (place.local / LOGS[format_]).is_dir():
        return None
    store = raw_store(Sessions(spark, place), place)
    try:
        return (place, store) if store.exists() and store.told().note is not None else None
    except (ConfigurationError, AnalysisException):  # of another format, or the name of a schema
        return None
    except SPARK_ERRORS as error:
        raise WriteError(f"{place} cannot be read: {first_line(error)}") from error


@contextmanager
def _alone(
    spark: SparkSession, place: Destination, store: TableStore, today: date
) -> Iterator[_Tables]:
    """Yield a raw table, and keep writers on this machine away from it."""
    with ExitStack() as done:
        if place.local is not None:
            lease = Lease.acquire(place.local, driver_at(spark, place.local).pid)
            done.callback(lease.release)
            done.callback(Flusher(place.format, place.local).flush, [place.local])
        yield iter([(str(place), store, before(today))])


@contextmanager
def _targets(spark: SparkSession, to: str | os.PathLike[str], format_: str) -> Iterator[_Tables]:
    """Yield the tables of a target, and keep jobs on this machine away from it."""
    place = Destination.of_tables(to, format_)
    if place.local is not None and not place.local.is_dir():
        raise ConfigurationError(f"{place} does not exist: check the path")
    with open_target(spark, to, format_) as target:
        names = target.names()
        if not names:
            raise ConfigurationError(
                f"{place} is neither a raw table nor has it tables that sfpubsub created, in "
                f"format {format_}: check the location and the format"
            )
        try:
            yield ((name, target.table(name).store, None) for name in names)
        finally:
            target.finish(0)
