"""Typed tables as directories of Parquet files, readable by any engine.

::

    _tables.json, _steps.json               the source of the tables, and the newest step
    _lease                                  the process that writes (raw/lease.py)
    _step                                   the last published step
    _staging/                               a step in progress, or left by a crash
    _ready/                                 a committed step that is being published
    Order_Event__e/_table.json              the table's columns and metadata
    Order_Event__e/step=0000000042/part-0.parquet

A step (steps.py) is staged, committed by renaming it to ``_ready``, and then published, with one
rename per table. After a crash, a committed step is completed first. So a step is published
completely or not at all, and the rows that it adds to a table become visible together. The file
system must be local (POSIX).
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from sfpubsub.durable import make_directory, replace_file, sync, sync_directory_and_files
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.lease import LEASE_NAME, Lease
from sfpubsub.spark.raw.parquet import SETTINGS
from sfpubsub.spark.raw.paths import EXACT_PATHS, file_url
from sfpubsub.spark.runtime.session import jvm_of, own_session
from sfpubsub.spark.tables.target import Place, Target, TargetTable

# Files with the source of the tables, and with the newest step (steps.py).
IDENTITY_FILE = "_tables.json"
STEPS_FILE = "_steps.json"

TABLE_NAME = "_table.json"
STEP_NAME = "_step"
STAGING_NAME = "_staging"
READY_NAME = "_ready"
STEP_PREFIX = "step="

# File in `_ready` that lists the tables whose older steps this step replaces.
_CLEARED_NAME = "_cleared.json"


class ParquetTarget(Target):
    """A directory with typed tables. See `Target`.

    Raises:
        ConfigurationError: Another process is writing there, or the directory contains other files
            or cannot be created.
        WriteError: A step that an earlier process committed could not be published.
    """

    def __init__(self, spark: SparkSession, place: Place) -> None:
        if place.local is None:
            raise AssertionError("bug in sfpubsub: a parquet target must be a local directory")
        super().__init__(own_session(spark, SETTINGS), place)
        self.path = place.local
        self._tables: dict[str, ParquetTargetTable] = {}
        self.staging = self.path / STAGING_NAME / uuid.uuid4().hex
        try:
            make_directory(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be created ({error.strerror}): choose another directory"
            ) from error
        self._lease = Lease.acquire(self.path, jvm_of(spark).pid)
        with ExitStack() as unless_done:
            unless_done.callback(self._lease.release)
            self._check_ours()
            try:
                finish(self.path)
            except OSError as error:
                raise WriteError(
                    f"a committed step of {self.path} could not be published ({error}): fix the "
                    f"problem and restart, which publishes that step before it does new work"
                ) from error
            shutil.rmtree(self.path / STAGING_NAME, ignore_errors=True)
            unless_done.pop_all()

    @property
    def can_merge(self) -> bool:
        """See `Target`."""
        return False

    def table(self, name: str) -> TargetTable:
        """See `Target`."""
        return self._tables.setdefault(name, ParquetTargetTable(self, name))

    def names(self) -> list[str]:
        """See `Target`."""
        return sorted(path.parent.name for path in self.path.glob(f"*/{TABLE_NAME}"))

    def finish(self, step: int) -> None:
        """See `Target`. Flush the staged step, commit it with one rename, and publish it."""
        try:
            if self.staging.exists():
                replace_file(self.staging / STEP_NAME, json.dumps({"v": 1, "step": step}))
                for directory in sorted(self.staging.glob(f"*/{STEP_PREFIX}*")):
                    sync_directory_and_files(directory)
                    sync(directory.parent)
                sync(self.staging)
                os.rename(self.staging, self.path / READY_NAME)
                sync(self.path)
            finish(self.path)
        except OSError as error:
            raise WriteError(
                f"step {step} of {self.path} could not be published ({error}): fix the problem "
                f"and restart to complete the step"
            ) from error

    def close(self) -> None:
        """See `Target`. Discards an unfinished step."""
        try:
            shutil.rmtree(self.staging, ignore_errors=True)
        finally:
            self._lease.release()

    def _check_ours(self) -> None:
        # An interrupted first start leaves at most a lease and a temporary identity file.
        own = (LEASE_NAME, IDENTITY_FILE)
        if (self.path / IDENTITY_FILE).exists():
            return
        foreign = sorted(name for name in os.listdir(self.path) if not name.startswith(own))
        if foreign:
            raise ConfigurationError(
                f"{self.path} is not empty and does not contain sfpubsub tables (it contains "
                f"{foreign[0]!r}): choose another directory"
            )


class ParquetTargetTable(TargetTable):
    """One directory of Parquet files. See `TargetTable`."""

    def __init__(self, target: ParquetTarget, name: str) -> None:
        super().__init__(name)
        self._target = target
        self._path = target.path / name

    def exists(self) -> bool:
        """See `TargetTable`."""
        return (self._path / TABLE_NAME).exists()

    def step(self) -> int:
        """See `TargetTable`. All tables have the same step: the target's last published one."""
        return last_step(self._target.path) if self.exists() else 0

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        return dict(self._record()["facts"]) if self.exists() else {}

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        return list(columns_in(self._path).names) if self.exists() else []

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`. *columns* must include all existing columns."""
        if merged:
            self._target.check_merge("tables whose rows are replaced")
        kept = self.facts() if facts is None else dict(facts)
        record = {"v": 1, "facts": kept, "spark_schema": spark_schema(columns).jsonValue()}
        if self.exists() and self._record() == record:
            return
        with self._errors("was not created"):
            make_directory(self._path)
            replace_file(self._path / TABLE_NAME, json.dumps(record))

    def append(self, files: Sequence[bytes], step: int) -> bool:
        """See `TargetTable`. Readers see the rows once `Target.finish` has returned."""
        if last_step(self._target.path) >= step:
            return False
        place = self._target.staging / self.name / f"{STEP_PREFIX}{step:010d}"
        with self._errors("was not written"):
            make_directory(place)
            for number, content in enumerate(files):
                (place / f"part-{number}.parquet").write_bytes(content)
        return True

    def merge(
        self,
        source: DataFrame,
        on: Sequence[str],
        step: int,
        *,
        replaced: Sequence[str] | None = None,
    ) -> None:
        """See `TargetTable`. Not supported by this format."""
        self._target.check_merge("tables whose rows are replaced")

    def insert(self, source: DataFrame, step: int) -> None:
        """See `TargetTable`. Not supported by this format."""
        self._target.check_merge("tables that are written by Spark")

    def delete(self, condition: str, step: int) -> None:
        """See `TargetTable`. This format accepts only the condition ``true``, that is, all rows."""
        if condition != "true":
            self._target.check_merge("tables from which rows are removed")
        if last_step(self._target.path) >= step:
            return
        with self._errors("was not emptied"):
            make_directory(self._target.staging)
            cleared = self._target.staging / _CLEARED_NAME
            names = json.loads(cleared.read_text()) if cleared.exists() else []
            replace_file(cleared, json.dumps([*names, self.name]))

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        return read_parquet(self._target.spark, self._path)

    def _record(self) -> dict[str, Any]:
        with self._errors("cannot be read"):
            return dict(json.loads((self._path / TABLE_NAME).read_text(encoding="utf-8")))

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise WriteError(f"{self._path} {what}: {error}") from error


def columns_in(table: Path) -> StructType:
    """Return the recorded columns of a table directory.

    Raises:
        ConfigurationError: The directory is not a table.
    """
    try:
        record = json.loads((table / TABLE_NAME).read_text(encoding="utf-8"))
        return StructType.fromJson(record["spark_schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{table} is not a table created by sfpubsub: {error}") from error


def read_parquet(spark: SparkSession, table: Path) -> DataFrame:
    """Return a table as a DataFrame with all its recorded columns, and the column ``step``."""
    schema = StructType([*columns_in(table), StructField("step", LongType())])
    return spark.read.options(**EXACT_PATHS).schema(schema).parquet(file_url(table))


def last_step(path: Path) -> int:
    """Return the number of the last published step; 0 if no step was published.

    Raises:
        WriteError: The record of the step cannot be read.
    """
    note = path / STEP_NAME
    try:
        return int(json.loads(note.read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WriteError(
            f"{note} cannot be read ({error}): restore the file, or build the tables in another "
            f"target"
        ) from error


def finish(path: Path) -> None:
    """Publish the committed step of a target, if there is one.

    This can be repeated after an interruption.

    1. Older steps of cleared tables are removed.
    2. Each table receives its rows with one rename.
    3. The step is recorded as published, and its leftovers are removed.
    """
    ready = path / READY_NAME
    if not ready.exists():
        return
    cleared = ready / _CLEARED_NAME
    new = {place.relative_to(ready) for place in ready.glob(f"*/{STEP_PREFIX}*")}
    newest = f"{STEP_PREFIX}{json.loads((ready / STEP_NAME).read_text())['step']:010d}"
    for name in json.loads(cleared.read_text()) if cleared.exists() else []:
        for old in sorted((path / name).glob(f"{STEP_PREFIX}*")):
            if old.name < newest:
                shutil.rmtree(old)
        sync(path / name)
    for place in sorted(new):
        target = path / place
        make_directory(target.parent)
        if not target.exists():  # it exists if a crash happened right after the rename
            os.rename(ready / place, target)
        sync(target.parent)
    replace_file(path / STEP_NAME, (ready / STEP_NAME).read_text(encoding="utf-8"))
    # Rename `_ready` before removing it, because a partly removed directory would be ambiguous.
    done = path / STAGING_NAME / uuid.uuid4().hex
    make_directory(done.parent)
    os.rename(ready, done)
    shutil.rmtree(done, ignore_errors=True)
