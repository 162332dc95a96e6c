"""Speed from the service into a raw table, compared with the writer alone.

    python -m benchmarks ingest [--events 200000] [--batch 10000] [--rounds 5] [--kind platform]

Prints one JSON line. ``ingest`` is the whole path: `IngestJob`, `EventWriter` and the client read
events over TLS from the server of the other benchmarks, and write them into a new Parquet table.
Each write is flushed to the disk before its events are acked. The other ways have the same rows in
memory, in the same batches:

- ``write``: `EventWriter.write_rows`, an upper bound for the speed of ``ingest``, because it does
  not receive or decode. It deduplicates, flushes and publishes.
- ``create_frame``: ``createDataFrame(Arrow data)`` and append, as in a simple program. It does not
  flush, and uses Spark's slower path for Arrow data (frames.py).
- ``naive``: ``createDataFrame(list of dicts)`` and append, with the columns that need no schema.

The four ways are interleaved. Times are medians of the rounds, and ratios are medians of the ratios
per round. Client, Spark and server share this machine's cores. The accelerator is used if it is
installed; ``SFPUBSUB_NATIVE=0`` in the environment disables it.

Targets: with batches of 10,000 events, `cases.INGEST` for ``ingest`` relative to ``write``; with
batches of 100,000 events, ``write`` at least 4 times as fast as ``naive``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import operator
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
from pyspark.sql import SparkSession

from benchmarks.cases import INGEST
from benchmarks.feed import KINDS, corpus
from benchmarks.server import serving
from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.runtime.session import spark_session

WARM_UP = 2  # rounds that are not measured, in which the JVM compiles code that runs often


def topic() -> str:
    """Return the topic on the server: up to 100 events per response, limited by credit only."""
    return f"/data/{arguments.kind}_100_0_0"


def ingest(spark: SparkSession, client: PubSubClient, path: Path) -> float:
    """Run the whole path once; return the seconds from the subscription's start to the last ack."""
    with EventWriter(spark, path, topic=topic()) as writer:
        started = time.perf_counter()
        with client.subscribe(
            topic(),
            replay=TableReplayStore(writer),
            ack="manual",
            max_unacked=2 * arguments.batch + 1_000,
        ) as subscription:
            job = IngestJob(
                subscription,
                writer,
                batch_events=arguments.batch,
                batch_seconds=600.0,
                max_events=arguments.events,
            )
            summary = job.run()
            taken = time.perf_counter() - started
    assert summary.progress.rows == arguments.events, summary
    return taken


def write(spark: SparkSession, batches: list[pa.Table], path: Path) -> float:
    """Return the seconds in which the writer writes batches from memory, with deduplication."""
    schema, _ = corpus(arguments.kind)
    schemas = {schema.schema_id: schema.text}
    with EventWriter(spark, path, topic=topic()) as writer:
        started = time.perf_counter()
        for batch in batches:
            writer.write_rows(batch, schemas=schemas)
        return time.perf_counter() - started


def create_frame(spark: SparkSession, batches: list[Any], path: Path) -> float:
    """Return the seconds to append *batches* (Arrow tables or lists of dicts) as DataFrames."""
    started = time.perf_counter()
    for batch in batches:
        frame = spark.createDataFrame(batch)
        if not isinstance(batch, list):
            frame = frame.coalesce(1)  # one file per batch, as the writer creates
        frame.write.mode("append").parquet(f"file://{path}")
    return time.perf_counter() - started


def plain(rows: pa.Table) -> list[str]:
    """Return the columns whose types Spark can infer."""
    return [
        field.name
        for field in rows.schema
        if not pa.types.is_nested(field.type) and rows[field.name].null_count < len(rows)
    ]


def measure(spark: SparkSession, client: PubSubClient, directory: Path) -> dict[str, Any]:
    """Run all ways in several rounds; return their speeds and ratios."""
    table = directory / "first"
    ingest(spark, client, table)
    rows = ds.dataset(table).to_table(columns=SCHEMA.names)
    batches = [rows.slice(at, arguments.batch) for at in range(0, len(rows), arguments.batch)]
    dicts = [batch.select(plain(rows)).to_pylist() for batch in batches]
    ways: dict[str, Callable[[Path], float]] = {
        "ingest": lambda path: ingest(spark, client, path),
        "write": lambda path: write(spark, batches, path),
        "create_frame": lambda path: create_frame(spark, batches, path),
        "naive": lambda path: create_frame(spark, dicts, path),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + arguments.rounds):
        for name, way in ways.items():
            path = directory / f"{name}-{number}"
            seconds = way(path)
            shutil.rmtree(path)
            if number >= WARM_UP:
                taken[name].append(seconds)
    figures = {
        f"{name}_events_per_s": round(arguments.events / statistics.median(seconds))
        for name, seconds in taken.items()
    }
    pairs = (
        ("ingest", "write"),
        ("ingest", "create_frame"),
        ("ingest", "naive"),
        ("write", "naive"),
    )
    ratios = {
        f"{one}_to_{other}": round(
            statistics.median(map(operator.truediv, taken[other], taken[one])), 2
        )
        for one, other in pairs
    }
    return {**figures, **ratios}


def main() -> None:
    """Start Spark and the server, measure, and print the result."""
    with (
        tempfile.TemporaryDirectory(prefix="sfpubsub-ingest-") as place,
        spark_session() as spark,  # before the server, because starting the JVM forks
        serving() as server,
        PubSubClient(
            Session("token", "https://127.0.0.1", "00D000000000001AAA"),
            endpoint=server.target(0),
            ca_file=server.ca_file,
        ) as client,
    ):
        gc.freeze()  # like `sfpubsub ingest`
        figures = measure(spark, client, Path(place))
    has_native = importlib.util.find_spec("sfpubsub_native") is not None
    is_native = has_native and os.environ.get("SFPUBSUB_NATIVE") != "0"
    target = INGEST["native" if is_native else "pure"]
    print(
        json.dumps(
            {
                "benchmark": "ingest",
                "python": platform.python_version(),
                "pyspark": pyspark.__version__,
                "cores": os.cpu_count(),
                "warning": server.warning,
                **vars(arguments),
                "native": is_native,
                **figures,
                "target": target,
                "reached": figures["ingest_to_write"] >= target,
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=KINDS, default="platform")
    arguments = parser.parse_args()
    main()
