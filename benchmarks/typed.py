"""How fast typed tables are derived on executors, against the driver's own native decoding.

Prints one JSON line. Both routes read the same raw batches and write the same typed Parquet, on two
cores, wall-clock; rounds are interleaved, the medians' ratio is inside one run. ``executors`` is
`TypedTables.derive` with everything it does (counting, flushing, publishing). ``driver`` reads the
raw files with pyarrow, decodes them natively in this process, hands the Arrow data to Spark and
lets it write them, all at once. Two schemas: a platform event of 9 fields and an Account change
event of 60 or more. Usage: python benchmarks/typed.py
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.avro.schemas import payload, schema_text, values  # noqa: E402

from sfpubsub.avro.codec import Codec  # noqa: E402
from sfpubsub.avro.columns import BATCH, Plan, columns_of, decode_rows  # noqa: E402
from sfpubsub.spark.raw.destination import Source, claim_table  # noqa: E402
from sfpubsub.spark.raw.schema import SCHEMA  # noqa: E402
from sfpubsub.spark.runtime.session import spark_session  # noqa: E402
from sfpubsub.spark.tables.typed import Derived, TypedTables  # noqa: E402
from sfpubsub.stores.schema_store import FileSchemaStore  # noqa: E402
from sfpubsub.types import dedupe_key  # noqa: E402

ROUNDS = 5
BATCHES = 10
EVENTS = 10_000  # of one raw batch, as `ingest` writes them by default
SCHEMAS = {"pe": "order_event", "acct": "account_change"}
TARGET = 0.8
HOUR = "2026-11-21-00"


def write_raw(path: Path, name: str) -> None:
    """Write a raw table as the writer does, without its time."""
    FileSchemaStore(path / "_schemas").put(name, schema_text(name))
    codec = Codec(name, schema_text(name))
    claim_table(path, [Source("topic", codec.topic)])
    made = []
    for value in values(name, 2_000):
        if codec.is_change_event and value["ChangeEventHeader"]["changedFields"]:
            value["ChangeEventHeader"]["changedFields"] = ["0x06", "0x4080", "0x30006"][
                len(made) % 3 : len(made) % 3 + 1
            ]
        made.append(payload(name, value))
    for batch in range(BATCHES):
        rows = []
        for seq in range(batch * EVENTS, (batch + 1) * EVENTS):
            raw = made[seq % len(made)]
            row = {
                "event_id": f"{seq:08x}-0000-4000-8000-000000000000",
                "dedupe_key": dedupe_key(str(seq), name, raw),
                "replay_id": b"%010d" % seq,
                "topic": codec.topic,
                "subscription": codec.topic,
                "schema_id": name,
                "event_name": codec.name,
                "event_time": 1_771_300_995_000_000,
                "received_at": 1_771_300_995_000_000,
                "ingest_seq": seq,
                "payload": raw,
                "payload_json": None,
            }
            rows.append(row)
        place = path / f"ingest_hour={HOUR}" / f"batch=b{batch * EVENTS:019d}"
        place.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), place / "part-0.parquet")


def on_executors(spark: SparkSession, raw: Path, to: Path) -> float:
    """Return the seconds of one derivation."""
    before = time.perf_counter()
    with TypedTables(spark, raw, to) as tables:
        done = sum(tables.derive(), Derived())
    taken = time.perf_counter() - before
    assert sum(done.rows.values()) == BATCHES * EVENTS, done
    return taken


def on_the_driver(spark: SparkSession, raw: Path, to: Path, name: str) -> float:
    """Return the seconds of the same by the driver."""
    text = schema_text(name)
    plan = Plan({name: text}, columns_of(text))
    before = time.perf_counter()
    parts: list[pa.RecordBatch] = []
    for place in sorted(raw.glob("ingest_hour=*/batch=*")):
        rows = pq.read_table(next(place.glob("*.parquet")))
        for field, value in zip(BATCH, (HOUR, place.name.removeprefix("batch=")), strict=True):
            rows = rows.append_column(field, pa.array([value] * len(rows), field.type))
        parts += decode_rows(rows.combine_chunks().to_batches(), plan)
    frame = spark.createDataFrame(pa.Table.from_batches(parts))
    frame.write.partitionBy(*BATCH.names).parquet(f"file://{to}")
    return time.perf_counter() - before


def main() -> None:
    """Measure both schemas and print the ratios."""
    report: dict[str, object] = {"events": BATCHES * EVENTS, "target": TARGET}
    with tempfile.TemporaryDirectory() as directory, spark_session("local[2]") as spark:
        for short, name in SCHEMAS.items():
            here = Path(directory) / short
            write_raw(here / "raw", name)
            times: dict[str, list[float]] = {"executors": [], "driver": []}
            for number in range(ROUNDS + 1):
                executors = on_executors(spark, here / "raw", here / f"typed-{number}")
                driver = on_the_driver(spark, here / "raw", here / f"driver-{number}", name)
                if number:  # the first one warms the JVM and the workers
                    times["executors"].append(executors)
                    times["driver"].append(driver)
            medians = {route: statistics.median(taken) for route, taken in times.items()}
            report[short] = {
                **{route: round(taken, 3) for route, taken in medians.items()},
                "ratio": round(medians["driver"] / medians["executors"], 2),
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
