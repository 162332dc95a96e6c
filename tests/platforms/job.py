"""What one process of a platform test does with Spark: ``python -m tests.platforms.job …``.

Its arguments: what to do (``ingest``, ``raw`` or ``all``), the format, and a directory. Each writes
the raw table, and prints a line after each batch. ``ingest`` does so until it is killed; ``raw``
prints all that it reads after that, as JSON, and ``all`` also builds the tables. With
``SPARK_REMOTE`` in the environment, the session is one of Spark Connect.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.spark import (
    EventTables,
    Ingest,
    IngestSettings,
    Mirror,
    MirrorSettings,
    Source,
    read_typed,
    spark_session,
)

ORDERS = "/event/Order_Event__e"
ACCOUNTS = "/data/AccountChangeEvent"

# Small enough that an ingest writes several batches.
_BATCH = 60

# The emulator's answers do not lag behind its events.
_MARGIN = 1.0


def ingest(spark: SparkSession, format: str, directory: Path, *, until_caught_up: bool) -> None:  # noqa: A002
    """Write the events to the raw table, and print a line after each batch."""
    settings = IngestSettings(
        batch_events=_BATCH, batch_seconds=0.2, until_caught_up=until_caught_up
    )
    sources = [Source("topic", ORDERS), Source("topic", ACCOUNTS)]
    with Ingest(
        sources,
        to=directory / "raw",
        format=format,
        settings=settings,
        spark=spark,
        on_progress=lambda *_: print("written", flush=True),
    ) as job:
        job.run()


def note(what: str) -> None:
    """Say on stderr, which a failed test shows, what was done, and when."""
    print(f"{time.monotonic():.1f} s: {what}", file=sys.stderr, flush=True)


def rows(frame: DataFrame, *columns: str) -> list[list[Any]]:
    """Return the values of some columns, sorted."""
    return sorted(list(row) for row in frame.select(*columns).collect())


def report(
    spark: SparkSession,
    format: str,  # noqa: A002
    directory: Path,
    what: str,
) -> dict[str, Any]:
    """Build all tables of a format, and return what is in them."""
    written = spark.read.format(format).load(f"file://{directory}/raw")
    found: dict[str, Any] = {
        "versions": [pyspark.__version__, spark.version],
        "raw": rows(written, "topic", "event_id"),
    }
    if what == "raw" or format == "parquet":
        return found
    raw, to = directory / "raw", directory / "tables"
    with EventTables(spark, raw, to, format=format, current=True) as tables:
        while tables.step() is not None:
            pass
    note("tables")
    typed = read_typed(spark, directory / "tables", "Order_Event__e", format=format)
    found["typed"] = rows(typed, "event_id")
    current = read_typed(spark, directory / "tables", "Account", format=format)
    found["current"] = rows(current.where("NOT _is_deleted"), "record_id")
    settings = MirrorSettings(margin=_MARGIN, batch_seconds=0.2)
    lake = directory / "lake"
    note("read")
    with Mirror(["Account"], to=lake, format=format, spark=spark, settings=settings) as mirror:
        mirror.run(once=True)
    note("mirrored")
    mirrored = read_typed(spark, lake, "Account", format=format)
    found["mirrored"] = rows(mirrored.where("NOT _is_deleted"), "record_id", "Name")
    return found


def main() -> None:
    what, format_, place = sys.argv[1:]
    directory = Path(place)
    with spark_session(format=format_, settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        note("started")
        ingest(spark, format_, directory, until_caught_up=what != "ingest")
        note("raw")
        print(json.dumps(report(spark, format_, directory, what)), flush=True)


if __name__ == "__main__":
    main()
