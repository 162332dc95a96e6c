"""The raw table as a directory of Parquet files, readable by any engine.

::

    orders/_table.json                                         the sources and the layout
    orders/_lease                                              the active writer (lease.py)
    orders/_position                                           positions stored without rows
    orders/ingest_date=2026-11-20/batch=b…042/part-….parquet   the rows of a batch
    orders/ingest_date=2026-11-20/batch=b…042/_position        positions after these rows
    orders/ingest_date=2026-11-20/batch=b…042/_name            the batch's name, if it has one
    .orders.sfpubsub/_staging/<batch>.<attempt>/               a write in progress, or a failed one

Readers see only published batches, and never part of one: every ``*.parquet`` file in the table's
tree is published, a batch's directory appears atomically, and no directory is ever removed
(sidecar_paths.py).
A batch's id contains the ``ingest_seq`` of its first row, padded with zeros, so that names sort in
order of arrival. Ids begin with a letter: otherwise, engines that infer the types of partition
columns could choose different types for different ids. The day is the day of writing and never
decreases, even if the clock does. So the newest batch is the last name in the last directory;
modification times are not used.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sfpubsub.durable import replace_file, sync, sync_directory_and_files
from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.frames import frame_of, spark_schema
from sfpubsub.spark.raw.layout import PREFIX, day_of, end_of, start_of
from sfpubsub.spark.raw.ownership import BATCH_PREFIX, POSITION_NAME, org_of, sources_of
from sfpubsub.spark.raw.schema import SCHEMA, joined_keys
from sfpubsub.spark.raw.sidecar_paths import STAGING_NAME
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.table import REMEMBERED_NAMES, RawTable, StoredRow, rows_among
from sfpubsub.spark.runtime.paths import EXACT_PATHS, file_url
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line, own_session
from sfpubsub.types import ReplayId

_NAME = "_name"

# Directory to which the tasks of a Spark job's first attempt write. Hadoop's file committer deletes
# it afterwards.
_HADOOP_STAGING = Path("_temporary", "0", "_temporary")

# Columns read by a lookup.
_STORED = spark_schema(pa.schema([SCHEMA.field(name) for name in StoredRow.COLUMNS]))

_READ_ERRORS = (OSError, pa.ArrowException)

# Settings of a session that writes Parquet. With Spark's default, INT96, times are read back
# without a zone.
SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}

WRITE_OPTIONS = {
    "compression": "snappy",
    # Always write the _SUCCESS file, which marks a complete write; a cluster may not by default.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    # Store no minimum and maximum: they imply an order, which replay ids do not have.
    "parquet.column.statistics.enabled#replay_id": "false",
} | {
    # Values are almost always unique, and building a dictionary takes a tenth of the write time.
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("event_id", "dedupe_key", "replay_id", "ingest_seq", "payload", "payload_json")
}


@dataclass(frozen=True)
class _Batch:
    path: Path

    @property
    def id(self) -> str:
        return self.path.name.removeprefix(BATCH_PREFIX)

    @property
    def first_seq(self) -> int:
        return int(self.id.removeprefix("b"))

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("part-*.parquet"))

    @property
    def name(self) -> str | None:
        try:
            return (self.path / _NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    @property
    def rows(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self.files)


class ParquetTable(RawTable):
    """A raw table in a directory of a local (POSIX) file system. Not thread-safe.

    Args:
        spark: Session from which the writing session is created; its settings are not changed.
        path: The table's directory, which must exist and be leased to this process.
        place: Directory for staging, as returned by `sfpubsub.spark.raw.ownership.claim_table`.
    """

    def __init__(self, spark: SparkSession, path: Path, place: Path) -> None:
        self.path = path
        self._staging = place / STAGING_NAME
        self._next_seq = 0
        self._positions: dict[str, ReplayId] = {}
        self._newest: _Batch | None = None
        self._names: deque[str] = deque(maxlen=REMEMBERED_NAMES)
        self._spark = own_session(spark, SETTINGS)

    @property
    def next_seq(self) -> int:
        """See `RawTable`."""
        return self._next_seq

    @property
    def sources(self) -> tuple[Source, ...]:
        """See `RawTable`."""
        return sources_of(self.path)

    @property
    def org_id(self) -> str | None:
        """See `RawTable`."""
        return org_of(self.path)

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """See `RawTable`."""
        return self._positions

    @property
    def newest_time(self) -> float:
        """See `RawTable`. This is the start of the newest batch's partition."""
        return start_of(_day_of(self._newest.path.parent)) if self._newest else 0.0

    @property
    def names(self) -> Collection[str]:
        """See `RawTable`."""
        return self._names

    def recover(self) -> None:
        """See `RawTable`. The lease excludes other writers (lease.py).

        1. Remove staging directories. A task that is still running after a failed write uses a
           directory that no later write uses.
        2. Flush the directories that contain the newest batch. Its writer may have died between
           rename and flush, and later acks rely on that batch.
        3. Read the names of the newest batches and the newest positions, and determine the next
           ``ingest_seq``. The newest positions are those in the newest batch, or those that were
           stored without rows after it.
        """
        try:
            shutil.rmtree(self._staging, ignore_errors=False)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise WriteError(
                f"{self._staging} cannot be removed: {error}; delete this directory, and start the "
                f"writer again"
            ) from error
        try:
            newest = list(islice(self._batches_backwards(), REMEMBERED_NAMES))
            self._newest = newest[0] if newest else None
            self._names.clear()
            names = (batch.name for batch in reversed(newest))
            self._names.extend(name for name in names if name is not None)
            if self._newest is not None:
                sync(self._newest.path.parent)
            sync(self.path)
            self._next_seq = self._newest.first_seq + self._newest.rows if self._newest else 0
            self._positions = self._read_positions()
        except (*_READ_ERRORS, ValueError, KeyError) as error:
            raise WriteError(f"the newest batch of {self.path} cannot be read: {error}") from error

    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """See `RawTable`. Each time is the end of the partition that contains the rows."""
        first = _name_of(oldest)
        try:
            for partition in self._partitions():
                if partition.name >= first:
                    end = end_of(_day_of(partition))
                    files = [file for batch in _batches(partition) for file in batch.files]
                    for keys in _scan_keys(files):
                        yield end, keys
        except (*_READ_ERRORS, ValueError) as error:
            raise WriteError(f"the dedupe keys of {self.path} cannot be read: {error}") from error

    def rows_with(
        self, keys: Collection[bytes], spans: Sequence[tuple[float, float]]
    ) -> Mapping[bytes, StoredRow]:
        """See `RawTable`."""
        named = [(_name_of(first), _name_of(last)) for first, last in spans]
        partitions = [
            file_url(partition)
            for partition in self._partitions()
            if any(first <= partition.name <= last for first, last in named)
        ]
        if not partitions or not keys:
            return {}
        try:
            reader = self._spark.read.options(**EXACT_PATHS, basePath=file_url(self.path))
            rows = reader.schema(_STORED).parquet(*partitions)
            return rows_among(self._spark, rows, keys)
        except SPARK_ERRORS as error:
            raise WriteError(
                f"the dedupe keys of {self.path} cannot be read: {first_line(error)}"
            ) from error

    def append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """See `RawTable`.

        1. Stage: Spark writes to a directory that is outside the table and used only by this
           attempt. It writes one file, or on a cluster one file per 32 MiB. A failure leaves files
           there that no reader sees and no later write touches.
        2. Check that Spark reports the write as complete, and that the files contain all rows.
        3. Add the positions and the batch's name to that directory.
        4. Flush the files and their directory.
        5. Publish with one rename. Before it, readers see nothing of the batch; after it, they see
           the whole batch, including the positions.
        6. Flush the source and target directories; only now is the batch durable.

        If step 6 fails, the batch is in the table nevertheless. So after any failure, the caller
        has to call `recover`.
        """
        batch = f"b{self._next_seq:019d}"
        staged = self._staging / f"{batch}.{uuid.uuid4().hex}"
        partition = self.path / _name_of(now)
        try:
            self._stage(rows.select(SCHEMA.names), staged)
            _check(staged, len(rows))
            after = {**self._positions, **positions}
            if after:
                (staged / POSITION_NAME).write_text(_positions_text(after), encoding="utf-8")
            if name is not None:
                (staged / _NAME).write_text(name, encoding="utf-8")
            sync_directory_and_files(staged)
            published = _Batch(partition / f"{BATCH_PREFIX}{batch}")
            self._publish(staged, published.path)
        except (*SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(
                f"writing batch {batch} of {len(rows)} events to {self.path} failed, so nothing "
                f"was acked: {first_line(error)}"
            ) from error
        self._newest = published
        self._next_seq += len(rows)
        self._positions = after
        if name is not None:
            self._names.append(name)
        return batch

    def move(self, positions: Mapping[str, ReplayId]) -> None:
        """See `RawTable`."""
        after = {**self._positions, **positions}
        try:
            replace_file(self.path / POSITION_NAME, _positions_text(after, self._newest))
        except OSError as error:
            raise WriteError(
                f"the position of {self.path} was not written: {error.strerror}"
            ) from error
        self._positions = after

    def _stage(self, rows: pa.Table, staged: Path) -> None:
        # For each directory that it creates, Hadoop starts a process to set its mode, in total a
        # tenth of the write time. Existing directories are used as they are.
        (staged / _HADOOP_STAGING).mkdir(parents=True)
        with frame_of(self._spark, rows, scratch=staged.parent) as frame:
            frame.write.options(**WRITE_OPTIONS).mode("append").parquet(file_url(staged))

    def _publish(self, staged: Path, target: Path) -> None:
        partition = target.parent
        if not partition.exists():
            partition.mkdir()
            sync(self.path)
        os.rename(staged, target)  # fails if the target contains files
        sync(partition)
        sync(staged.parent)

    def _partitions(self) -> list[Path]:
        found = sorted(p for p in self.path.iterdir() if p.name.startswith(PREFIX))
        for partition in found:
            try:
                _day_of(partition)
            except ValueError as error:
                raise WriteError(
                    f"{partition} was not created by sfpubsub, but readers would treat it as part "
                    f"of the table: remove it"
                ) from error
        return found

    def _batches_backwards(self) -> Iterator[_Batch]:
        for partition in reversed(self._partitions()):
            yield from reversed(_batches(partition))  # none if a write failed before its rename

    def _read_positions(self) -> dict[str, ReplayId]:
        """Return the positions in the newest batch or in the table's own file, whichever are newer.

        The table's file names the batch after which it was written. If a later batch exists, the
        positions in that batch are newer.
        """
        file = self.path / POSITION_NAME
        moved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        newest = self._newest
        if moved is not None and (newest is None or moved.get("batch", "") >= newest.id):
            return _positions_of(moved)
        own = None if newest is None else newest.path / POSITION_NAME
        if own is None or not own.exists():  # all sources are managed subscriptions
            return {}
        return _positions_of(json.loads(own.read_text(encoding="utf-8")))


def _positions_text(positions: Mapping[str, ReplayId], after: _Batch | None = None) -> str:
    record = {"positions": {name: place.base64() for name, place in positions.items()}}
    return json.dumps(record | ({"batch": after.id} if after else {}))


def _positions_of(record: Mapping[str, Any]) -> dict[str, ReplayId]:
    return {name: ReplayId.from_base64(text) for name, text in record["positions"].items()}


def _name_of(time: float) -> str:
    return f"{PREFIX}{day_of(time)}"


def _day_of(partition: Path) -> date:
    return date.fromisoformat(partition.name.removeprefix(PREFIX))


def _check(staged: Path, expected: int) -> None:
    found = _Batch(staged).rows
    if not (staged / "_SUCCESS").exists() or found != expected:
        raise WriteError(
            f"Spark wrote {found} of {expected} events to {staged}: check that its executors share "
            f"this file system"
        )


def _batches(partition: Path) -> list[_Batch]:
    return [_Batch(p) for p in sorted(partition.iterdir()) if p.name.startswith(BATCH_PREFIX)]


def _scan_keys(files: Collection[Path]) -> Iterator[bytes]:
    if not files:
        return
    column = pa.schema([("dedupe_key", pa.binary())])
    keys = ds.dataset([str(file) for file in files], schema=column, format="parquet")
    for batch in keys.to_batches():
        yield joined_keys(batch.column(0))
