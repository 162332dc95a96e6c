"""How fast events get from a service into a raw table, beside two references: one JSON line.

    python -m benchmarks ingest [--events 200000] [--batch 10000] [--rounds 5] [--schema NAME]

``ingest`` is the whole path: `IngestJob`, `EventWriter` and client take events from an emulator
that holds them already, a process of its own on loopback without TLS, and write them into a new
Parquet table, each write flushed to the disk and acked. What it is compared with has the same rows
in memory, in the same batches:

- ``write``: `EventWriter.write_rows`, the best there is: what ``ingest`` would take if receiving
  and decoding cost nothing. It dedupes, flushes and publishes.
- ``create_frame``: ``createDataFrame(Arrow data)`` and append, as one would write it by hand. It
  flushes nothing, and takes Spark's slower way for Arrow data (frames.py).
- ``naive``: ``createDataFrame(list of dicts)`` and append.

The four take turns; the figures are medians of the rounds and the ratios medians of the ratios of
each round. Client, Spark and emulator share this machine's cores, so ``ingest`` pays for the
emulator as well.

Targets: with batches of 10,000 ``ingest`` at 0.6 or more of ``create_frame``; with batches of
100,000 the writer 4 times or more ``naive``.
"""

from __future__ import annotations

import argparse
import gc
import json
import operator
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
from pyspark.sql import SparkSession

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.runtime.session import spark_session

TOPICS = {"order_event": "/event/Order_Event__e", "account_change": "/data/AccountChangeEvent"}
WARM_UP = 2  # rounds: the JVM compiles what it has run some times
PUBLISH = 1_000  # events that are put into the emulator at once


def serve(directory: str, schema: str, events: int) -> None:
    """Be the emulator's process until standard input ends."""
    from tests.avro.schemas import schema_text, values

    from sfpubsub.emulator.org.schemas import Schema
    from sfpubsub.emulator.server import EmulatorServer

    with EmulatorServer(data_dir=directory) as emulator:
        topic = TOPICS[schema]
        emulator.bus.put_topic(topic, Schema(schema_text(schema)))
        kinds = [young(value) for value in values(schema, PUBLISH)]
        for start in range(0, events, PUBLISH):
            emulator.bus.publish_values(topic, kinds[: min(PUBLISH, events - start)])
        ready = [emulator.grpc_target, emulator.access_token, emulator.instance_url]
        print(json.dumps([*ready, emulator.tenant_id]), flush=True)
        sys.stdin.read()


def young(value: dict[str, Any]) -> dict[str, Any]:
    """Return an event of now: one older than the dedupe window would be looked up in the table."""
    now = round(time.time() * 1000)
    if "ChangeEventHeader" in value:
        return {**value, "ChangeEventHeader": value["ChangeEventHeader"] | {"commitTimestamp": now}}
    return {**value, "CreatedDate": now}


@contextmanager
def emulator_process(directory: Path) -> Iterator[PubSubClient]:
    """Start it, and yield a client of it. Start Spark first: the JVM is started by a fork."""
    command = [sys.executable, __file__, "--serve", str(directory)]
    command += ["--schema", arguments.schema, "--events", str(arguments.events)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        target, *session = json.loads(process.stdout.readline())
        try:
            with PubSubClient(Session(*session), endpoint=target, insecure="1") as client:
                yield client
        finally:
            process.stdin.close()


def ingest(spark: SparkSession, client: PubSubClient, path: Path) -> float:
    """Return the seconds from the subscription's start to the last ack."""
    topic = TOPICS[arguments.schema]
    with EventWriter(spark, path, topic=topic) as writer:
        started = time.perf_counter()
        with client.subscribe(
            topic,
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
    """Return the seconds that the writer needs for rows in memory, each batch exactly once."""
    with EventWriter(spark, path, topic=TOPICS[arguments.schema]) as writer:
        started = time.perf_counter()
        for batch in batches:
            writer.write_rows(batch)
        return time.perf_counter() - started


def create_frame(spark: SparkSession, batches: list[Any], path: Path) -> float:
    """Return the seconds to append *batches*, Arrow tables or lists of dicts, by way of frames."""
    started = time.perf_counter()
    for batch in batches:
        frame = spark.createDataFrame(batch)
        if not isinstance(batch, list):
            frame = frame.coalesce(1)  # one file a batch, as in the table
        frame.write.mode("append").parquet(f"file://{path}")
    return time.perf_counter() - started


def measure(spark: SparkSession, client: PubSubClient, directory: Path) -> dict[str, Any]:
    """Return the figures."""
    table = directory / "first"
    ingest(spark, client, table)
    rows = ds.dataset(table).to_table(columns=SCHEMA.names)
    batches = [rows.slice(at, arguments.batch) for at in range(0, len(rows), arguments.batch)]
    dicts = [batch.to_pylist() for batch in batches]
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
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory(prefix="sfpubsub-ingest-") as place,
        spark_session() as spark,
        emulator_process(Path(place) / "org") as client,
    ):
        gc.freeze()  # as `sfpubsub ingest` does
        figures = measure(spark, client, Path(place))
    print(
        json.dumps(
            {
                "benchmark": "ingest",
                "python": platform.python_version(),
                "pyspark": pyspark.__version__,
                "cores": os.cpu_count(),
                "schema": arguments.schema,
                "events": arguments.events,
                "batch": arguments.batch,
                "rounds": arguments.rounds,
                **figures,
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schema", choices=TOPICS, default="order_event")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.schema, arguments.events)
    else:
        main()
