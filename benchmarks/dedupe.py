"""Cost of deduplication, with few keys in the window and with many.

    python -m benchmarks dedupe [--keys 10000000] [--rounds 60] [--directory DIR] [--no-write]

Two windows of 73 h contain the keys: ``few`` a million keys, ``many`` all of ``--keys``. Then
batches of 10,000 new events of 150 bytes are checked against both windows and added to them, in
turn, so that other load slows down both. The time includes computing marks from the payloads,
looking the keys up, and adding them. Times are means, because keys are sorted into blocks with
every 13th batch only. ``processor`` is the CPU time of this process, and ``find`` the part of it
that looks the keys up. ``write`` is the time in which a writer writes such a batch to a raw Parquet
table through Spark, once per round, and ``start`` the time in which it opens a table with
``--keys`` rows in files of 10,000, and reads their keys.

``ratio`` compares the two windows, ``batch_ratio`` the whole batches including their writes.
``peak_mb`` is the growth of the process at its peak, while the large window is loaded and used, and
``resident_mb`` its growth after that. ``asked`` is the share of new keys that the window reported
as known, which would be wrong.

Targets: a batch ratio of 1.5, and for 10 million keys 400 MB and a start within 60 s.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.avro.schemas import payload, values

from sfpubsub.avro.json import to_json
from sfpubsub.spark.ingest.dedupe import Marker, judge
from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW, KeyWindow
from sfpubsub.spark.ingest.settings import DEFAULT_WINDOW_KEYS
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.types.events import KEY_BYTES

TOPIC = "/event/Order_Event__e"
FEW = 1_000_000
BATCH = 10_000
READ_IN = 1_000_000  # keys that are loaded at a time
WARM_UP = 15
TARGET_RATIO = 1.5
TARGET_MB = 400
TARGET_START = 60


def resident(which: str) -> int:
    """Return the resident memory of this process in bytes: current (VmRSS) or peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))


def fill(count: int) -> KeyWindow:
    """Return a new window with *count* random keys, spread over its time span."""
    window = KeyWindow(max_keys=max(count * 5 // 4, DEFAULT_WINDOW_KEYS))
    for first in range(0, count, READ_IN):
        at = NOW - window.length * (1 - first / count)
        window.load(os.urandom(KEY_BYTES * min(READ_IN, count - first)), at)
    window.loaded(NOW - window.length)
    return window


def rows() -> pa.Table:
    """Return a table of `BATCH` raw rows of platform events."""
    kinds = [(payload("order_event", v), to_json(v)) for v in values("order_event", 1_000)]
    events = [kinds[number % len(kinds)] for number in range(BATCH)]
    columns: dict[str, Any] = {
        "event_id": [f"{n:08x}-0000-4000-8000-000000000000" for n in range(BATCH)],
        "dedupe_key": [bytes(KEY_BYTES)] * BATCH,
        "replay_id": [os.urandom(10) for _ in range(BATCH)],
        "topic": [TOPIC] * BATCH,
        "subscription": [TOPIC] * BATCH,
        "schema_id": ["RbpV-G3Rszn8SpHk7tdnlw"] * BATCH,
        "event_name": ["Order_Event__e"] * BATCH,
        "event_time": [round(NOW * 1e6)] * BATCH,
        "received_at": [round(NOW * 1e6)] * BATCH,
        "ingest_seq": range(BATCH),
        "payload": [data for data, _ in events],
        "payload_json": [text for _, text in events],
    }
    others = {name: pa.nulls(BATCH, SCHEMA.field(name).type) for name in SCHEMA.names}
    return pa.Table.from_pydict(others | columns, schema=SCHEMA)


def with_new_keys(batch: pa.Table) -> pa.Table:
    """Return the same rows with new random dedupe keys, so that they are new events."""
    keys = pa.array([os.urandom(KEY_BYTES) for _ in range(len(batch))], pa.binary())
    return batch.set_column(1, "dedupe_key", keys)


class Dedupe:
    """Performs a writer's deduplication on one window, and records its times."""

    def __init__(self, window: KeyWindow) -> None:
        self.window = window
        self.marker = Marker()
        self.times: list[float] = []
        self.processor: list[float] = []
        self.find: list[float] = []
        self.known = 0

    def batch(self, batch: pa.Table) -> None:
        """Check a batch of new events against the window, add it, and record the times."""
        started, processor = time.perf_counter(), time.process_time()
        marks = self.marker.marks(batch, NOW)
        verdict = judge(batch, marks, self.window, lambda k, s: {}, now=NOW, is_live=True)
        self.window.add(batch["dedupe_key"].to_pylist(), marks, NOW)
        self.times.append(time.perf_counter() - started)
        self.processor.append(time.process_time() - processor)
        self.known += len(batch) - len(verdict.new)
        keys = [os.urandom(KEY_BYTES) for _ in range(BATCH)]
        processor = time.process_time()
        self.window.find(keys)
        self.find.append(time.process_time() - processor)


def main() -> None:
    """Measure both windows and print the result."""
    few, batch = Dedupe(fill(FEW)), rows()
    few.batch(with_new_keys(batch))
    before, started = resident("VmRSS"), time.perf_counter()
    many = Dedupe(fill(arguments.keys))
    load = time.perf_counter() - started
    writes, start = [], None
    with ExitStack() as stack:
        if arguments.write:
            prefix, directory = "sfpubsub-dedupe-", arguments.directory
            place = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=directory))
            )
            spark = stack.enter_context(spark_session())
            start = time_of_start(spark, place / "large")
            writer = stack.enter_context(EventWriter(spark, place / "small", topic=TOPIC))
        for _ in range(WARM_UP + arguments.rounds):
            for one in (few, many):
                one.batch(with_new_keys(batch))
            if arguments.write:
                new, started = with_new_keys(batch), time.perf_counter()
                writer.write_rows(new)
                writes.append(time.perf_counter() - started)
        memory = resident("VmHWM") - before, resident("VmRSS") - before
        print(json.dumps(figures(few, many, writes, load, start, memory)))


def time_of_start(spark: SparkSession, path: Path) -> float:
    """Return the seconds in which a writer opens a table with ``--keys`` rows of 73 h."""
    EventWriter(spark, path, topic=TOPIC).close()
    for first in range(0, arguments.keys, BATCH):
        at = NOW - DEFAULT_WINDOW * (1 - first / arguments.keys)
        day = time.strftime("%Y-%m-%d", time.gmtime(at))
        directory = path / f"ingest_date={day}" / f"batch=b{first:019d}"
        directory.mkdir(parents=True)
        keys = pa.array([os.urandom(KEY_BYTES) for _ in range(BATCH)], pa.binary())
        # The other columns are not read at the start.
        pq.write_table(pa.table({"dedupe_key": keys}), directory / "part-0.parquet")
    started = time.perf_counter()
    EventWriter(spark, path, topic=TOPIC).close()
    return time.perf_counter() - started


def figures(
    few: Dedupe,
    many: Dedupe,
    writes: list[float],
    load: float,
    start: float | None,
    memory: tuple[int, int],
) -> dict[str, Any]:
    """Return the figures to print, from the recorded times and sizes."""
    means = {}
    for name, one in (("few", few), ("many", many)):
        means[f"{name}_ms"] = statistics.mean(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_median_ms"] = statistics.median(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_most_ms"] = max(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_processor_ms"] = statistics.mean(one.processor[-arguments.rounds :]) * 1e3
        means[f"{name}_find_ms"] = statistics.mean(one.find[-arguments.rounds :]) * 1e3
    peak, grown = memory
    found = {
        "benchmark": "dedupe",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "cores": os.cpu_count(),
        "keys": len(many.window),
        "rounds": arguments.rounds,
        "load_s": round(load, 1),
        "peak_mb": round(peak / 1e6, 1),
        "resident_mb": round(grown / 1e6, 1),
        "asked": many.known / len(many.times) / BATCH,
        **{name: round(value, 2) for name, value in means.items()},
        "ratio": round(means["many_ms"] / means["few_ms"], 2),
        "processor_ratio": round(means["many_processor_ms"] / means["few_processor_ms"], 2),
    }
    reached = peak <= TARGET_MB * 1e6
    if writes and start is not None:
        whole = [
            (f + w, m + w)
            for f, m, w in zip(
                few.times[-arguments.rounds :],
                many.times[-arguments.rounds :],
                writes[-arguments.rounds :],
                strict=True,
            )
        ]
        batch_ratio = operator.truediv(
            *(sum(times) for times in list(zip(*whole, strict=True))[::-1])
        )
        found["start_s"] = round(start, 1)
        found["write_ms"] = round(statistics.median(writes[-arguments.rounds :]) * 1e3, 1)
        found["batch_ratio"] = round(batch_ratio, 3)
        reached = reached and batch_ratio <= TARGET_RATIO and start <= TARGET_START
    return found | {"reached": reached}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=DEFAULT_WINDOW_KEYS)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--directory", help="directory for the tables; default: the system's")
    parser.add_argument("--no-write", dest="write", action="store_false")
    arguments = parser.parse_args()
    NOW = time.time()
    main()
