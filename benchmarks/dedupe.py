"""Cost of deduplication, with few keys in the window and with many.

    python -m benchmarks dedupe [--keys 30000000] [--rounds 60] [--directory DIR] [--no-write]

Two windows of 73 h contain the keys: ``few`` a million keys, ``many`` all of ``--keys``. Then
batches of 10,000 new events of 150 bytes are checked against both windows and added to them, in
turn, so that other load slows down both. The time includes computing marks from the payloads,
looking them up, adding them, and merging runs. ``write`` is the time in which the writer appends
such a batch to a raw Parquet table through Spark, once per round. Times are means, because a run is
written with every 13th batch only, and merges are spread over all batches. ``processor`` is the CPU
time of this process.

``ratio`` compares the two windows, ``batch_ratio`` the whole batches including their writes.
``resident_mb`` is the peak growth of the process while the large window is loaded, reopened and
used; ``fixed_mb`` is the part of it that is not the filter and index of the keys. ``asked`` is the
share of new keys that the window reported as possibly known, which a job would look up in the
table.

Targets: a batch ratio of 1.5, 500 MB for 300 million keys, and readiness within 60 s of a restart.
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
from tests.avro.schemas import payload, values

from sfpubsub.avro.json import to_json
from sfpubsub.spark.ingest.dedupe import Marker, judge
from sfpubsub.spark.ingest.key_window import Covered, KeyWindow, hour_of
from sfpubsub.spark.raw.ownership import claim_table
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.types.events import KEY_BYTES

FEW = 1_000_000
BATCH = 10_000
READ_IN = 1_000_000  # keys that are loaded at a time
WARM_UP = 15
TARGET_RATIO = 1.5
TARGET_MB = 500
TARGET_READY = 60


def resident(which: str) -> int:
    """Return the resident memory of this process in bytes: current (VmRSS) or peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))


def fill(name: str, place: Path, count: int, now: float) -> KeyWindow:
    """Return a new window with *count* random keys, spread over its time span."""
    window = KeyWindow(name, place)
    for first in range(0, count, READ_IN):
        at = now - window.length * (1 - first / count)
        window.load(os.urandom(KEY_BYTES * min(READ_IN, count - first)), at)
    window.loaded(Covered(count - 1, bytes(KEY_BYTES).hex(), hour_of(now)), now - window.length)
    return window


def rows() -> pa.Table:
    """Return a table of `BATCH` raw rows of platform events."""
    kinds = [(payload("order_event", v), to_json(v)) for v in values("order_event", 1_000)]
    events = [kinds[number % len(kinds)] for number in range(BATCH)]
    columns: dict[str, Any] = {
        "event_id": [f"{n:08x}-0000-4000-8000-000000000000" for n in range(BATCH)],
        "dedupe_key": [bytes(KEY_BYTES)] * BATCH,
        "replay_id": [os.urandom(10) for _ in range(BATCH)],
        "topic": ["/event/Order_Event__e"] * BATCH,
        "subscription": ["/event/Order_Event__e"] * BATCH,
        "schema_id": ["RbpV-G3Rszn8SpHk7tdnlw"] * BATCH,
        "event_name": ["Order_Event__e"] * BATCH,
        "event_time": [round(NOW * 1e6)] * BATCH,
        "received_at": [round(NOW * 1e6)] * BATCH,
        "ingest_seq": range(BATCH),
        "payload": [data for data, _ in events],
        "payload_json": [text for _, text in events],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def with_new_keys(batch: pa.Table) -> pa.Table:
    """Return the same rows with new random dedupe keys, so that they are new events."""
    keys = pa.array([os.urandom(KEY_BYTES) for _ in range(len(batch))], pa.binary())
    return batch.set_column(1, "dedupe_key", keys)


class Dedupe:
    """Performs a writer's deduplication on one window, and records its times."""

    def __init__(self, window: KeyWindow) -> None:
        self.window = window
        self.marker = Marker()
        self.seq = len(window)
        self.times: list[float] = []
        self.processor: list[float] = []
        self.known = 0

    def batch(self, batch: pa.Table) -> None:
        """Check a batch of new events against the window, add it, and record the times."""
        started, processor = time.perf_counter(), time.process_time()
        self.window.expire(NOW)
        marks = self.marker.marks(batch, NOW)
        verdict = judge(batch, marks, self.window, lambda k, s: {}, now=NOW, is_live=True)
        self.seq += len(batch)
        self.window.add(batch["dedupe_key"].to_pylist(), marks, NOW, self.seq - 1)
        self.times.append(time.perf_counter() - started)
        self.processor.append(time.process_time() - processor)
        self.known += len(batch) - len(verdict.new)


def main() -> None:
    """Measure both windows and print the result."""
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sfpubsub-dedupe-", dir=arguments.directory)
            )
        )
        write = writer(stack, place) if arguments.write else None
        few = Dedupe(fill("few", place / "few", FEW, NOW))
        batch = rows()
        few.batch(with_new_keys(batch))
        before, started = resident("VmRSS"), time.perf_counter()
        window = fill("many", place / "many", arguments.keys, NOW)
        read_in = time.perf_counter() - started
        window.close()
        del window
        started = time.perf_counter()
        window = KeyWindow("many", place / "many")
        ready = time.perf_counter() - started
        assert window.covered is not None
        window.begin()
        window.loaded(None, 0.0)
        many = Dedupe(window)
        writes = []
        for _ in range(WARM_UP + arguments.rounds):
            for one in (few, many):
                one.batch(with_new_keys(batch))
            if write is not None:
                started = time.perf_counter()
                write(batch)
                writes.append(time.perf_counter() - started)
        index = sum(run.index_bytes for run in window._runs)
        print(
            json.dumps(
                figures(few, many, writes, read_in, ready, resident("VmHWM") - before, index)
            )
        )


def writer(stack: ExitStack, place: Path) -> Any:
    """Return a function that appends a batch to a raw Parquet table."""
    spark = stack.enter_context(spark_session())
    path = place / "table"
    path.mkdir()
    table = ParquetTable(spark, path, claim_table(path, [Source("managed", "benchmark")]))
    return lambda batch: table.append(batch, None, NOW)


def figures(
    few: Dedupe,
    many: Dedupe,
    writes: list[float],
    read_in: float,
    ready: float,
    grown: int,
    index: int,
) -> dict[str, Any]:
    """Return the figures to print, from the recorded times and sizes."""
    means = {}
    for name, one in (("few", few), ("many", many)):
        means[f"{name}_ms"] = statistics.mean(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_median_ms"] = statistics.median(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_most_ms"] = max(one.times[-arguments.rounds :]) * 1e3
        means[f"{name}_processor_ms"] = statistics.mean(one.processor[-arguments.rounds :]) * 1e3
    ratio = means["many_ms"] / means["few_ms"]
    processor_ratio = means["many_processor_ms"] / means["few_processor_ms"]
    found = {
        "benchmark": "dedupe",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "cores": os.cpu_count(),
        "keys": len(many.window),
        "rounds": arguments.rounds,
        "runs": len(many.window._runs),
        "read_in_s": round(read_in, 1),
        "ready_s": round(ready, 1),
        "resident_mb": round(grown / 1e6, 1),
        "fixed_mb": round((grown - index) / 1e6, 1),
        "bits_a_key": round(8 * index / len(many.window), 2),
        "asked": many.known / sum(map(len, [many.times])) / BATCH,
        **{name: round(value, 2) for name, value in means.items()},
        "ratio": round(ratio, 2),
        "processor_ratio": round(processor_ratio, 2),
    }
    reached = grown <= TARGET_MB * 1e6 and ready <= TARGET_READY
    if writes:
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
        found["write_ms"] = round(statistics.median(writes[-arguments.rounds :]) * 1e3, 1)
        found["batch_ratio"] = round(batch_ratio, 3)
        reached = reached and batch_ratio <= TARGET_RATIO
    return found | {"reached": reached}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=30_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--directory", help="directory for the key files; default: the system's")
    parser.add_argument("--no-write", dest="write", action="store_false")
    arguments = parser.parse_args()
    NOW = time.time()
    main()
