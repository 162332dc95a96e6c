"""Thousands of steps of one table, compacted by its job, and by another program.

``python -m tests.spark.tables.kept_small DIRECTORY FORMAT [STEPS]``; 5,000 by default.

After a tenth, two fifths, and all of the steps, prints a JSON line: the live files of the table,
the files that a query for one record opens, the files and rows of the log that a start reads, and
how long the start takes. Fails if a step fails, if rows are missing, or if the last of these
figures is more than 1.3 times the first one. The other program compacts the table too, in the same
Spark, because two programs cannot commit to a Delta table on a local disk at the same moment.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.store import MOST_FILES, Notes, Sessions, open_store
from sfpubsub.spark.formats.target import Target, parquet_of
from sfpubsub.spark.runtime.session import SPARK_ERRORS, spark_session
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.maintenance import Upkeep

NAME = "Order_Event__e"
COLUMNS = pa.schema([("record_id", pa.string()), ("ingest_seq", pa.int64())])
ROWS = 20
"""Rows of a step."""
MOST = 1.3


def rows_of(step: int) -> pa.Table:
    numbers = range(step * ROWS, (step + 1) * ROWS)
    return pa.table(
        {"record_id": [f"a01{n:015d}" for n in numbers], "ingest_seq": numbers}, COLUMNS
    )


def figures(spark: SparkSession, directory: str, format_: str, step: int) -> dict[str, float]:
    """Return what a start and a query for one record cost."""
    began = time.perf_counter()
    with open_target(spark, directory, format_) as target:
        table = target.table(NAME)
        assert table.newest()[0] == step
        seconds = time.perf_counter() - began
        found = table.read().where(f"record_id = 'a01{ROWS * step - 1:015d}'")
        opened = len(found.inputFiles())
        assert found.count() == 1
        return {
            "files": table.store.files().count,
            "opened": opened,
            "log": len(log_files(Path(directory) / NAME)),
            "seconds": round(seconds, 2),
        }


def log_files(table: Path) -> list[Path]:
    """Return the files of the log that a reader opens: the newest state, and what follows it."""
    if not (table / "_delta_log").exists():
        return [max(table.glob("metadata/*.metadata.json"))]
    last = table / "_delta_log" / "_last_checkpoint"
    newest = json.loads(last.read_text())["version"] if last.exists() else -1
    commits = [each for each in table.glob("_delta_log/*.json") if int(each.stem) > newest]
    return [*commits, *table.glob(f"_delta_log/{newest:020d}.checkpoint*")]


def write(target: Target, steps: range, upkeep: Upkeep) -> None:
    table = target.table(NAME)
    for step in steps:
        table.append([parquet_of(rows_of(step - 1))], step)
        target.finish(step)
        try:
            while upkeep.next(step):
                pass
        except WriteError as error:  # the other program was first; a job only logs it
            print(error, file=sys.stderr)


@contextmanager
def compacted_by_another(spark: SparkSession, place: Destination) -> Iterator[None]:
    """Compact the table every few seconds, as another program may, which may lose against us."""
    store = open_store(Sessions(spark, place), place, Notes("other", "other", lambda _: None))
    done, lost = threading.Event(), 0

    def compact() -> None:
        nonlocal lost
        while not done.wait(5.0):
            try:
                store.compact()
            except SPARK_ERRORS:
                lost += 1

    other = threading.Thread(target=compact)
    other.start()
    try:
        yield
    finally:
        done.set()
        other.join(300)
        print(json.dumps({"conflicts of the other program": lost}))


def main() -> None:
    directory, format_ = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 5_000
    marks = [steps // 10, 2 * steps // 5, steps]
    told = []
    settings = {"spark.sql.shuffle.partitions": "2"}
    with spark_session(format=format_, settings=settings) as spark:
        with open_target(spark, directory, format_) as target:
            target.table(NAME).make(COLUMNS)
        with compacted_by_another(spark, Destination.of_tables(directory, format_).table(NAME)):
            last = 0
            for mark in marks:
                with open_target(spark, directory, format_) as target:
                    write(target, range(last + 1, mark + 1), Upkeep(target, last))
                last = mark
                told.append({"steps": mark, **figures(spark, directory, format_, mark)})
                print(json.dumps(told[-1]), flush=True)
        with open_target(spark, directory, format_) as target:
            seqs = sorted(
                row[0] for row in target.table(NAME).read().select("ingest_seq").collect()
            )
        if seqs != list(range(steps * ROWS)):
            raise WriteError(f"{steps * ROWS} rows were written, and {len(seqs)} are there")
    for name in ("files", "opened", "log"):
        most = max(MOST * told[0][name], MOST_FILES)
        if told[-1][name] > most:
            raise SystemExit(f"{name}: {told[0][name]} at first, {told[-1][name]} at last")


if __name__ == "__main__":
    main()
