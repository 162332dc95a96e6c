"""Speed of writing typed tables: many event types compared with one, and with the driver alone.

Prints one JSON line. Uses two cores. Rounds are interleaved, and ratios of medians are computed
within one run. On a busy machine, use the ratio of the CPU times.

``types``: a complete step of `EventTables` (planning, decoding, commits, flushes) for 12,800
platform events in 32 raw batches, of 1, 10 and 40 event types, in wall-clock time and in CPU time
of all processes. The tables exist already.

``pe`` and ``acct``, for Delta only: 100,000 events of one type, a platform event of 9 fields or
an Account change event of 60 or more. ``executors`` is the step; ``driver`` reads the raw files
with pyarrow, decodes them in this process, and passes the Arrow data to Spark, which writes it.

Usage: python -m benchmarks typed [delta|iceberg]. Iceberg requires a PySpark version for
which it has jars (scripts/test_iceberg.sh).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.avro.schemas import payload, schema_text, values

from benchmarks.processes import processor_seconds
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.columns import BATCH, columns_of
from sfpubsub.avro.typed_rows import Plan, decode_rows
from sfpubsub.spark.raw.ownership import claim_table
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import dedupe_key

ROUNDS = 5
TYPES = (1, 10, 40)
SCHEMAS = {"pe": "order_event", "acct": "account_change"}
# Maximum time with 40 types relative to one; minimum speed relative to the driver.
TARGETS = {"types": 2.0, "driver": 0.8}
DAY = date(2026, 11, 21)
TOPIC = "/event/All__chn"
WHEN = 1_771_300_995_000_000


def payloads(name: str) -> list[bytes]:
    """Return 2,000 encoded events of a schema."""
    codec = Codec(name, schema_text(name))
    made = []
    for number, value in enumerate(values(name, 2_000)):
        if codec.is_change_event and value["ChangeEventHeader"]["changedFields"]:
            bitmap = ["0x06", "0x4080", "0x30006"][number % 3]
            value["ChangeEventHeader"]["changedFields"] = [bitmap]
        made.append(payload(name, value))
    return made


def write_raw(
    path: Path,
    schemas: Sequence[tuple[str, str]],
    made: list[bytes],
    first: int,
    count: int,
    of: int,
) -> None:
    """Write raw batches directly, in the form that `EventWriter` writes, which would be slower.

    Args:
        path: The raw table.
        schemas: Schema ids and texts, which the events use in turn.
        made: Payloads that match all schemas.
        first: Number of the first batch.
        count: Number of batches.
        of: Number of events per batch.
    """
    path.mkdir(parents=True, exist_ok=True)
    claim_table(path, [Source("topic", TOPIC)])
    store = FileSchemaStore(path.parent / f".{path.name}.sfpubsub" / "_schemas")
    for schema_id, text in schemas:
        store.put(schema_id, text)
    names = {schema_id: Codec(schema_id, text).name for schema_id, text in schemas}
    for batch in range(first, first + count):
        rows = []
        for seq in range(batch * of, (batch + 1) * of):
            schema_id, raw = schemas[seq % len(schemas)][0], made[seq % len(made)]
            row = {
                "event_id": f"{seq:08x}-0000-4000-8000-000000000000",
                "dedupe_key": dedupe_key(str(seq), schema_id, raw),
                "replay_id": b"%010d" % seq,
                "topic": TOPIC,
                "subscription": TOPIC,
                "schema_id": schema_id,
                "event_name": names[schema_id],
                "event_time": WHEN,
                "received_at": WHEN,
                "ingest_seq": seq,
                "payload": raw,
                "payload_json": None,
            }
            rows.append(row)
        place = path / f"ingest_date={DAY}" / f"batch=b{batch * of:019d}"
        place.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), place / "part-0.parquet")


def step_of(tables: EventTables, events: int) -> float:
    """Run one step that must process *events* events; return its seconds."""
    before = time.perf_counter()
    report = tables.step()
    taken = time.perf_counter() - before
    assert report is not None
    assert sum(report.rows.values()) == events, report
    return taken


def many_types(spark: SparkSession, here: Path, format_: str) -> dict[str, object]:
    """Measure steps with the same number of events, of 1, 10 and 40 types."""
    text, made = schema_text("order_event"), payloads("order_event")
    times: dict[int, list[tuple[float, float]]] = {types: [] for types in TYPES}
    with ExitStack() as opened:
        engines: dict[int, EventTables] = {}
        for number in range(ROUNDS + 2):
            for types in TYPES:
                names = [f"Order_{number}__e" for number in range(types)]
                schemas = [(name, text.replace("Order_Event__e", name)) for name in names]
                raw = here / f"raw-{types}"
                write_raw(raw, schemas, made, number * 32, 32, 400)
                if types not in engines:
                    to = here / f"tables-{types}"
                    tables = EventTables(spark, raw, to, format=format_)
                    engines[types] = opened.enter_context(tables)
                used = processor_seconds()
                taken = step_of(engines[types], 12_800)
                used = processor_seconds() - used
                said = f"{types} types: {taken:.2f} s, {used:.2f} s of CPU time"
                print(said, file=sys.stderr, flush=True)
                if number > 1:  # the first step creates the tables, and the first two warm up
                    times[types].append((taken, used))
    report: dict[str, object] = {}
    for place, name in enumerate(("seconds", "processor_seconds")):
        found = {types: [each[place] for each in taken] for types, taken in times.items()}
        medians = {types: statistics.median(each) for types, each in found.items()}
        report[name] = {types: round(median, 2) for types, median in medians.items()}
        report[f"{name}_spread"] = {
            types: [round(min(each), 2), round(max(each), 2)] for types, each in found.items()
        }
        report[f"{name}_ratios"] = {
            types: round(median / medians[1], 2) for types, median in medians.items()
        }
    return report


def on_the_driver(spark: SparkSession, raw: Path, to: Path, name: str) -> float:
    """Return the seconds in which the driver alone does the work of a step."""
    text = schema_text(name)
    plans = {"T": Plan({name: text}, columns_of(text))}
    before = time.perf_counter()
    parts: list[pa.RecordBatch] = []
    for place in sorted(raw.glob("ingest_date=*/batch=*")):
        rows = pq.read_table(next(place.glob("*.parquet")))
        for field, value in zip(BATCH, (DAY, place.name.removeprefix("batch=")), strict=True):
            rows = rows.append_column(field, pa.array([value] * len(rows), field.type))
        batches = rows.combine_chunks().to_batches()
        parts += [part for _, part in decode_rows(batches, plans)]
    frame = spark.createDataFrame(pa.Table.from_batches(parts))
    frame.write.format("delta").save(f"file://{to}")
    return time.perf_counter() - before


def against_the_driver(spark: SparkSession, here: Path, name: str) -> dict[str, float]:
    """Measure a step with 100,000 events of one type, and the same work on the driver."""
    write_raw(here / "raw", [(name, schema_text(name))], payloads(name), 0, 10, 10_000)
    times: dict[str, list[float]] = {"executors": [], "driver": []}
    for number in range(ROUNDS + 1):
        with EventTables(spark, here / "raw", here / f"typed-{number}") as tables:
            executors = step_of(tables, 100_000)
        driver = on_the_driver(spark, here / "raw", here / f"driver-{number}", name)
        if number:
            times["executors"].append(executors)
            times["driver"].append(driver)
    medians = {route: statistics.median(taken) for route, taken in times.items()}
    return {
        **{route: round(taken, 3) for route, taken in medians.items()},
        "ratio": round(medians["driver"] / medians["executors"], 2),
    }


def main(format_: str) -> None:
    """Run all measurements for a table format, and print the result."""
    report: dict[str, object] = {"format": format_, "targets": TARGETS}
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session("local[2]", format=format_) as spark,
    ):
        here = Path(directory)
        report["types"] = many_types(spark, here, format_)
        if format_ == "delta":
            for short, name in SCHEMAS.items():
                report[short] = against_the_driver(spark, here / short, name)
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "delta")
