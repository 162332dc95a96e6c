"""What it costs to tell which events are new, beside the batch's Spark write: one JSON line.

    python benchmarks/dedupe.py [--keys 10000000] [--rounds 9]

A `KeyWindow` of 73 h holds the keys; then batches of 10,000 and of 100,000 new keys are looked up
and added (``dedupe``), each in turn with the write of a batch of as many events of 150 bytes into a
raw Parquet table by Spark (``write``: from Arrow data in memory to renamed and flushed files, the
writer's own). ``share`` is the median of the rounds' ratios. ``bytes_a_key`` is all that the
process grew by when the window was read in, with everything that was needed on the way.

Targets: a share of 0.15 at most, and at most 40 bytes a key.
"""

from __future__ import annotations

import argparse
import gc
import json
import operator
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa
import pyspark
from tests.avro.schemas import payload, values

from sfpubsub.avro.json import to_json
from sfpubsub.spark.ingest.dedupe import DEFAULT_WINDOW, KeyWindow, drop_repeats
from sfpubsub.spark.raw.destination import Source, claim_table
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.types.events import KEY_BYTES

BATCHES = (10_000, 100_000)
READ_IN = 100_000  # keys that are added at once, as from one file of a table
WARM_UP = 3  # writes of each size: the JVM compiles what it has run some times
TARGET_SHARE = 0.15
TARGET_BYTES = 40


def resident() -> int:
    """Return the bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill(window: KeyWindow, count: int, now: float) -> dict[str, float]:
    """Read *count* keys in, spread over the window's time, and return what it took."""
    gc.collect()
    before, started = resident(), time.perf_counter()
    for first in range(0, count, READ_IN):
        at = now - window.length * (1 - first / count)
        window.add(os.urandom(KEY_BYTES * min(READ_IN, count - first)), at)
    assert not window.known([bytes(KEY_BYTES)])
    seconds = time.perf_counter() - started
    return {
        "read_in_s": round(seconds, 1),
        "bytes_a_key": round((resident() - before) / count, 1),
    }


def rows(count: int) -> pa.Table:
    """Return raw rows of *count* platform events."""
    kinds = [(payload("order_event", v), to_json(v)) for v in values("order_event", 1_000)]
    events = [kinds[number % len(kinds)] for number in range(count)]
    columns: dict[str, Any] = {
        "event_id": [f"{n:08x}-0000-4000-8000-000000000000" for n in range(count)],
        "dedupe_key": [os.urandom(KEY_BYTES) for _ in range(count)],
        "replay_id": [os.urandom(10) for _ in range(count)],
        "topic": ["/event/Order_Event__e"] * count,
        "subscription": ["/event/Order_Event__e"] * count,
        "schema_id": ["RbpV-G3Rszn8SpHk7tdnlw"] * count,
        "event_name": ["Order_Event__e"] * count,
        "event_time": [1_790_000_000_000_000] * count,
        "received_at": [1_790_000_000_000_000] * count,
        "ingest_seq": range(count),
        "payload": [data for data, _ in events],
        "payload_json": [text for _, text in events],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def measure(table: ParquetTable, window: KeyWindow, size: int, now: float) -> dict[str, float]:
    """Return the figures of one size of batch, in milliseconds."""
    batch = rows(size)
    taken: dict[str, list[float]] = {"dedupe": [], "write": []}
    for number in range(WARM_UP + arguments.rounds):
        keys = [os.urandom(KEY_BYTES) for _ in range(size)]
        started = time.perf_counter()
        window.expire(now)
        kept = drop_repeats(keys, window)
        window.add(b"".join([keys[index] for index in kept]), now)
        window.known([])  # gives the new keys their places; else the next batch would pay for it
        looked_up = time.perf_counter()
        assert len(kept) == size
        table.append(batch, None, now)
        written = time.perf_counter()
        if number >= WARM_UP:
            taken["dedupe"].append(looked_up - started)
            taken["write"].append(written - looked_up)
    share = statistics.median(map(operator.truediv, taken["dedupe"], taken["write"]))
    medians = {f"{name}_ms": round(1e3 * statistics.median(t), 1) for name, t in taken.items()}
    return {**medians, "share": round(share, 3)}


def main() -> None:
    """Measure and print."""
    window, now = KeyWindow(DEFAULT_WINDOW), time.time()
    filled = fill(window, arguments.keys, now)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-dedupe-") as place, spark_session() as spark:
        path = Path(place, "table")
        path.mkdir()
        source = Source("managed", "benchmark")
        table = ParquetTable(spark, path, claim_table(path, [source]))
        figures = {str(size): measure(table, window, size, now) for size in BATCHES}
    share = max(figure["share"] for figure in figures.values())
    print(
        json.dumps(
            {
                "benchmark": "dedupe",
                "python": platform.python_version(),
                "pyspark": pyspark.__version__,
                "cores": os.cpu_count(),
                "keys": arguments.keys,
                "rounds": arguments.rounds,
                **filled,
                **figures,
                "reached": share <= TARGET_SHARE and filled["bytes_a_key"] <= TARGET_BYTES,
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    main()
