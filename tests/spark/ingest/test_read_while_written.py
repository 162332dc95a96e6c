"""A table can be read while it is being written, by readers that are independent of this
package.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.raw import parquet
from tests.conftest import until
from tests.spark.sample_events import TOPIC, batch_of, replay_id

EVENTS_A_WRITE = 3

# One of this many writes fails, after its rows were written and before they are published.
FAILURES_EVERY = 5

# First event number of the writes that fail.
NEVER = 1_000_000

# Result of a read: event ids with their `ingest_seq`, and the files that contain them.
Found = tuple[list[tuple[str, int]], set[str]]


def by_pyarrow(table: Path) -> Found:
    data = ds.dataset(table, format="parquet", partitioning="hive")
    rows = data.to_table(columns=["event_id", "ingest_seq"])
    return list(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)), set(
        data.files
    )


def by_duckdb(table: Path) -> Found:
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT event_id, ingest_seq, filename FROM read_parquet(?, filename = true)",
            [f"{table}/**/*.parquet"],
        ).fetchall()
    return [row[:2] for row in rows], {row[2] for row in rows}


def by_polars(table: Path) -> Found:
    rows = (
        pl.scan_parquet(f"{table}/**/*.parquet", include_file_paths="file")
        .select("event_id", "ingest_seq", "file")
        .collect()
    )
    return list(rows.select("event_id", "ingest_seq").iter_rows()), set(rows["file"])


@dataclass
class RepeatedRead:
    """Reads a table repeatedly, and records results that no reader should ever see."""

    read: Callable[[Path], Found]
    table: Path
    count: int = 0
    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    """Number of rows that the last read returned."""

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.read_once()

    def read_once(self) -> None:
        self.count += 1
        try:
            rows, files = self.read(self.table)
        except Exception as error:  # noqa: BLE001  # errors of three libraries; all are reported
            self.wrong.append(f"failed: {type(error).__name__}: {str(error)[:200]}")
            return
        never = [event for event, _ in rows if int(event.removeprefix("event-")) >= NEVER]
        hidden = [file for file in files if "/ingest_date=" not in file]
        if never or hidden:
            self.wrong.append(f"not committed: {never} {hidden}")
        elif sorted(number for _, number in rows) != list(range(len(rows))):
            self.wrong.append("order: repeated or missing numbers")
        elif len(rows) % EVENTS_A_WRITE or len(rows) < self.rows:
            self.wrong.append(f"count: {len(rows)} rows after {self.rows}")
        self.rows = len(rows)


@contextmanager
def reading(readers: list[RepeatedRead]) -> Iterator[None]:
    """Run each reader in its own thread for the duration of a `with` block."""
    ended = threading.Event()
    threads = [threading.Thread(target=reader.run, args=(ended,)) for reader in readers]
    with ExitStack() as started:
        started.callback(ended.set)
        for thread in threads:
            thread.start()
            started.callback(thread.join)
            started.callback(ended.set)
        yield


@pytest.mark.parametrize("writes", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_readers_see_committed_rows_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
):
    """While a writer writes and some of its writes fail, no read by pyarrow, DuckDB or Polars
    fails, sees uncommitted rows, or sees fewer rows than an earlier read.
    """
    table = tmp_path / "orders"
    rename = os.rename

    def fail_if_never(source: Path, target: Path) -> None:
        if failing:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(parquet.os, "rename", fail_if_never)
    failing = False
    readers = [RepeatedRead(read, table) for read in (by_pyarrow, by_duckdb, by_polars)]
    with EventWriter(spark, table, topic=TOPIC) as writer:
        writer.write(batch_of(range(EVENTS_A_WRITE)))
        with reading(readers):
            for number in range(1, writes):
                first = number * EVENTS_A_WRITE
                if number % FAILURES_EVERY == 0:
                    failing = True
                    with pytest.raises(WriteError, match="No space left"):
                        writer.write(batch_of(range(first + NEVER, first + NEVER + 3)))
                    failing = False
                    writer.move(replay_id(number))
                assert writer.write(batch_of(range(first, first + 3))).rows == EVENTS_A_WRITE
            until(
                lambda: all(reader.rows == writes * EVENTS_A_WRITE for reader in readers),
                "a read of all rows",
            )
    for reader in readers:
        kinds = dict(Counter(what.split(":")[0] for what in reader.wrong))
        print(
            f"{reader.read.__name__}: {len(reader.wrong)} of {reader.count} reads are wrong {kinds}"
        )
    assert [reader.wrong[:3] for reader in readers] == [[], [], []]
    assert all(reader.count >= writes for reader in readers)
