"""Upgrade a raw table of an older layout to the newest one (layout.py).

Every row is rewritten with its ``ingest_seq``, its batch and all its values. Columns that the old
layout lacks are null, except for the headers of change events, which are taken from their JSON.
Delta and Iceberg tables are upgraded in one transaction. For Parquet, all rows are first written
next to the table, and their files are then moved into it. This can be interrupted at any step and
repeated. Once files may be moved, writers reject the table until the upgrade has finished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sfpubsub.durable import make_directory, replace_file, sync, sync_directory_and_files
from sfpubsub.errors import WriteError
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.destination import Destination, check_raw_table
from sfpubsub.spark.raw.layout import LAYOUTS, NEWEST
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.ownership import BATCH_PREFIX, claim_upgraded
from sfpubsub.spark.raw.parquet import WRITE_OPTIONS
from sfpubsub.spark.raw.sidecar_paths import STAGING_NAME, UPGRADE_NAME
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line, jvm_of, own_session

_OLD = LAYOUTS[2]

# Maximum number of batches that one Spark job rewrites.
_BATCHES_AT_ONCE = 64

# In the directory of an upgrade: the new table, and the marker that it is complete.
_NEW_NAME = "new"
_READY_NAME = "ready"


def upgrade_table(spark: SparkSession, table: Destination) -> bool:
    """Upgrade a raw table to the newest layout.

    Args:
        spark: See `EventWriter`.
        table: The table. No job may be reading or writing it, because readers of a Parquet table
            would see its files move.

    Returns:
        Whether an upgrade was necessary.

    Raises:
        ConfigurationError: *table* is not a raw table, is a path-only Iceberg table, or is a
            Parquet table with another active writer. (In other formats, the writer is fenced off.)
        WriteError: The upgrade failed; call this function again.
    """
    check_raw_table(table)
    if table.format == "delta":
        from sfpubsub.spark.raw.delta import DeltaTable

        return DeltaTable.of_any_source(spark, table).upgrade()
    if table.format == "iceberg":
        from sfpubsub.spark.raw.iceberg import IcebergTable

        return IcebergTable.of_any_source(spark, table).upgrade()
    if table.local is None:
        raise AssertionError("bug in sfpubsub: a parquet table that is not a local directory")
    lease = Lease.acquire(table.local, jvm_of(spark).pid)
    try:
        return _upgrade_files(spark, table, table.local)
    finally:
        lease.release()


def _upgrade_files(spark: SparkSession, table: Destination, path: Path) -> bool:
    """Upgrade a Parquet table.

    1. Write every batch next to the table, and flush everything.
    2. Write a marker file. From then on, the upgrade can only be completed, and `claim_table`
       rejects the table until the upgrade is complete.
    3. Record the newest layout in the table's identity. From then on, older versions of sfpubsub
       reject the table.
    4. Move the old directories, one per hour, out of the table, and the new ones, one per day, into
       it.
    5. Delete the old directories.
    """
    directory = table.sidecar_directory
    if directory is None:
        raise AssertionError("bug in sfpubsub: a parquet table without a sidecar directory")
    place = directory / UPGRADE_NAME
    try:
        if not (place / _READY_NAME).exists():
            if not any(path.glob(f"{_OLD.prefix}*")):
                return False
            shutil.rmtree(place, ignore_errors=True)
            _write_anew(spark, table, path, place)
            replace_file(place / _READY_NAME, "")
        claim_upgraded(path)
        old = place / "old"
        make_directory(old)
        for hour in sorted(path.glob(f"{_OLD.prefix}*")):
            os.rename(hour, old / hour.name)
        for day in sorted((place / _NEW_NAME).glob(f"{NEWEST.prefix}*")):
            os.rename(day, path / day.name)
        sync(path)
        done = directory / STAGING_NAME / "upgraded"
        make_directory(done.parent)
        shutil.rmtree(done, ignore_errors=True)
        os.rename(place, done)
        sync(directory)
        shutil.rmtree(done, ignore_errors=True)
    except (OSError, *SPARK_ERRORS) as error:
        raise WriteError(
            f"{path} was not upgraded: {first_line(error)}; run the upgrade again"
        ) from error
    return True


def _write_anew(spark: SparkSession, table: Destination, path: Path, place: Path) -> None:
    spark = own_session(spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"})
    raw = RawBatches(spark, table)
    new = place / _NEW_NAME
    waiting = iter(raw.after(None))
    while batches := list(islice(waiting, _BATCHES_AT_ONCE)):
        writer = raw.rows(batches).write.options(**WRITE_OPTIONS).partitionBy(*NEWEST.added)
        writer.mode("append").parquet(f"file://{new}")
    for batch in _batches(path, _OLD.prefix):
        found = next(new.glob(f"{NEWEST.prefix}*/{batch.name}"), None)
        if found is None or _rows(found) != _rows(batch):
            raise WriteError(
                f"batch {batch.name} of {path} was not written completely; run the upgrade again"
            )
        for file in batch.iterdir():
            if file.name.startswith("_") and file.name != "_SUCCESS":  # position and name
                shutil.copy(file, found / file.name)
        sync_directory_and_files(found)
        sync(found.parent)
    (new / "_SUCCESS").unlink(missing_ok=True)
    sync(new)


def _batches(path: Path, prefix: str) -> Iterator[Path]:
    for partition in sorted(path.glob(f"{prefix}*")):
        yield from sorted(partition.glob(f"{BATCH_PREFIX}*"))


def _rows(batch: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in batch.glob("part-*.parquet"))
