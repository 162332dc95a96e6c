"""Cost of a step into a current table, by the size of the table and of the raw table's history.

``python -m benchmarks current [--records 100000 1000000] [--history 10 500] [--changes 2000]
[--steps 3]``

``records``: creates a Delta table for each size, whose records have twenty fields, and applies
similar steps to the tables in turn: updates of random records, with some creates and deletes.
``overflow`` is the cost of an overflow event, which marks every record.

``history``: for each number of raw batches, `EventTables` builds the typed and the current table of
Account from that many batches of 500 events, which concern the same 5,000 records in both cases,
and then performs similar steps in turn, each of one more batch with the changes.

Prints one JSON line: for each size the median seconds per step, in wall-clock time and in CPU time
of all processes, and the ratio of the largest size to the smallest. On a busy machine, use the
ratio of the CPU times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from tests.avro.schemas import schema_text, values

from benchmarks.processes import processor_seconds
from benchmarks.typed import write_raw
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.columns import columns_of
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.spark.formats.target import Target, parquet_of
from sfpubsub.spark.records.follower import RecordTables
from sfpubsub.spark.records.queue import QUEUE_NAME, RereadQueue
from sfpubsub.spark.records.rows import FLAGS
from sfpubsub.spark.records.step import StepPlan
from sfpubsub.spark.records.table import RecordTable
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.engine import EventTables

EVENT_TYPE = "AccountChangeEvent"
FIELDS = [f"Field_{number}__c" for number in range(20)]
START = datetime(2026, 11, 1, tzinfo=UTC)
TEXTS = {"type": "array", "items": "string"}
HEADER = {
    "entityName": "string",
    "recordIds": TEXTS,
    "changeType": "string",
    "commitTimestamp": "long",
    "commitNumber": "long",
    "sequenceNumber": "int",
    "nulledFields": TEXTS,
    "diffFields": TEXTS,
    "changedFields": TEXTS,
}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": EVENT_TYPE,
        "namespace": "com.sforce.eventbus",
        "fields": [
            {
                "name": "ChangeEventHeader",
                "type": {
                    "type": "record",
                    "name": "ChangeEventHeader",
                    "fields": [{"name": name, "type": kind} for name, kind in HEADER.items()],
                },
            },
            *({"name": name, "type": ["null", "string"]} for name in FIELDS),
        ],
    }
)
PLAN = Plan({"s": SCHEMA}, columns_of(SCHEMA))
# Rows per data file of the initial table, about 20 MiB.
FILE_ROWS = 100_000
# Records of the history's events, and events per batch of the history.
ACCOUNTS = 5_000
BATCH_EVENTS = 500
CODEC = Codec("account", schema_text("account_change"))
CHANGES = list(values("account_change", 2_000))


def record_id(number: int) -> str:
    return f"001{number:015d}"


def joined(text: str, column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(text), column, "")


def fill(target: Target, records: int) -> None:
    """Create the current table with its initial records, in the form that steps write."""
    found = RecordTable(target, "Account", EVENT_TYPE, None, history=False)
    fields = found.take_events(PLAN).schema.remove_metadata()
    schema = pa.schema([("record_id", pa.string()), *fields, *FLAGS])
    target.table(EVENT_TYPE).make(PLAN.output)
    files = []
    for first in range(0, records, FILE_ROWS):
        count = min(FILE_ROWS, records - first)
        numbers = pa.array(range(first, first + count), pa.int64())
        digits = pc.utf8_lpad(numbers.cast(pa.string()), 15, "0")
        columns = {
            "record_id": joined("001", digits),
            **{name: joined(f"{name} of ", digits) for name in FIELDS},
            "_is_deleted": pa.repeat(False, count),
            "_complete": pa.repeat(True, count),
            "_reread": pa.repeat(False, count),
            "_reread_reason": pa.nulls(count, pa.string()),
            "_commit_timestamp": pa.repeat(START, count),
            "_commit_number": pa.repeat(1, count),
            "_sequence_number": pa.repeat(1, count),
            "_ingest_seq": numbers,
            "_change_type": pa.repeat("CREATE", count),
        }
        files.append(parquet_of(pa.table(columns, schema=schema)))
    found.table.append(files, 1)
    RereadQueue(target).make(of_mirror=False, with_history=False)


def changes(rng: random.Random, records: int, count: int, step: int) -> pa.Table:
    """Return the typed rows of one step: *count* random changes to a table of *records* rows."""
    kinds = rng.choices(["UPDATE", "CREATE", "DELETE"], [90, 5, 5], k=count)
    new = iter(range(records + step * count, records + (step + 1) * count))
    names = [rng.sample(FIELDS, 3) if kind == "UPDATE" else [] for kind in kinds]
    ids = [record_id(next(new) if k == "CREATE" else rng.randrange(records)) for k in kinds]
    columns = {
        "ingest_seq": range(step * count, (step + 1) * count),
        "record_ids": [[each] for each in ids],
        "change_type": kinds,
        "commit_timestamp": [START + timedelta(seconds=step)] * count,
        "commit_number": range(step * count, (step + 1) * count),
        "sequence_number": [1] * count,
        "changed_fields": names,
        "nulled_fields": [[]] * count,
        "diff_fields": [[]] * count,
        **{name: [f"new {step}" if name in said else None for said in names] for name in FIELDS},
    }
    types = {field.name: field.type for field in PLAN.output}
    return pa.table({name: pa.array(column, types[name]) for name, column in columns.items()})


def overflow(step: int) -> pa.Table:
    rows = changes(random.Random(0), 10, 1, step).to_pylist()
    types = changes(random.Random(0), 10, 1, step).schema
    rows[0].update(change_type="GAP_OVERFLOW", record_ids=[], changed_fields=[])
    return pa.Table.from_pylist(rows, types)


class BenchmarkStep:
    """A step that reads its typed rows from a DataFrame instead of a typed table."""

    def __init__(self, target: Target, frame: DataFrame, number: int) -> None:
        self.plan = StepPlan(number, "rows", types=(EVENT_TYPE,))
        self.target = target
        self._frame = frame

    def rows(self, event_type: str) -> DataFrame:
        return self._frame

    def decoding(self, event_type: str) -> Plan:
        return PLAN


def take(target: Target, rows: pa.Table, number: int) -> tuple[float, float]:
    """Run one step, and return its wall-clock seconds and its CPU seconds."""
    frame = target.spark.createDataFrame(rows).persist()
    frame.count()
    started, used = time.perf_counter(), processor_seconds()
    RecordTables(target, RereadQueue(target), with_history=False).follow(
        BenchmarkStep(target, frame, number)
    )
    seconds = time.perf_counter() - started, processor_seconds() - used
    frame.unpersist()
    print(f"{seconds[0]:.2f} s, {seconds[1]:.2f} s of CPU time", file=sys.stderr, flush=True)
    return seconds


def by_records(spark: SparkSession, here: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure steps into current tables with different numbers of records."""
    rng = random.Random(0)
    targets = {}
    for records in options.records:
        targets[records] = open_target(spark, here / f"records-{records}", "delta")
        fill(targets[records], records)
        take(targets[records], changes(rng, records, options.changes, 2), 2)  # warm up
    seconds: dict[int, list[tuple[float, float]]] = {records: [] for records in targets}
    for step in range(3, 3 + options.steps):
        for records, target in targets.items():
            rows = changes(rng, records, options.changes, step)
            seconds[records].append(take(target, rows, step))
    last = 3 + options.steps
    marked = {n: [take(target, overflow(last), last)] for n, target in targets.items()}
    for target in targets.values():
        target.close()
    return {**medians(seconds), "overflow": medians(marked)}


def accounts(numbers: range) -> list[bytes]:
    """Return encoded change events that concern `ACCOUNTS` records in turn.

    Args:
        numbers: Numbers of the events among all events of a raw table. They are in order of commit.
    """
    made = []
    for number in numbers:
        value = CHANGES[number % len(CHANGES)]
        header = value["ChangeEventHeader"]
        header["recordIds"] = [record_id(number % ACCOUNTS)]
        header["changeType"] = "CREATE" if number < ACCOUNTS else "UPDATE"
        header["commitTimestamp"] = header["commitNumber"] = 1_771_300_000_000 + number
        header["changedFields"] = ["0x06", "0x4080", "0x30006"][number % 3 :][:1]
        header["nulledFields"] = header["diffFields"] = []
        made.append(CODEC.encode(value))
    return made


def by_history(spark: SparkSession, here: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure steps of tables whose raw tables have different numbers of older batches."""
    schemas = [(CODEC.schema_id, CODEC.schema_json)]
    seconds: dict[int, list[tuple[float, float]]] = {batches: [] for batches in options.history}
    with ExitStack() as opened:
        engines = {}
        for batches in options.history:
            raw = here / f"raw-{batches}"
            for batch in range(batches):
                events = range(batch * BATCH_EVENTS, (batch + 1) * BATCH_EVENTS)
                write_raw(raw, schemas, accounts(events), batch, 1, BATCH_EVENTS)
            tables = EventTables(spark, raw, here / f"to-{batches}", format="delta", current=True)
            engines[batches] = opened.enter_context(tables)
            for report in tables.run():
                print(f"history: {sum(report.rows.values())} rows", file=sys.stderr, flush=True)
        for number in range(options.steps + 1):
            for batches, tables in engines.items():
                # Numbered on from the history, which has smaller batches.
                batch = batches * BATCH_EVENTS // options.changes + 1 + number
                events = range(batch * options.changes, (batch + 1) * options.changes)
                raw = here / f"raw-{batches}"
                write_raw(raw, schemas, accounts(events), batch, 1, options.changes)
                started, used = time.perf_counter(), processor_seconds()
                report = tables.step()
                taken = time.perf_counter() - started, processor_seconds() - used
                assert report is not None
                assert sum(report.rows.values()) == options.changes, report
                assert tables.target.table(QUEUE_NAME).read().isEmpty(), "events out of order"
                said = f"{batches} batches: {taken[0]:.2f} s, {taken[1]:.2f} s of CPU time"
                print(said, file=sys.stderr, flush=True)
                if number:  # the first step warms up
                    seconds[batches].append(taken)
    return medians(seconds)


def medians(taken: dict[int, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return the medians of wall-clock and CPU seconds by size, with their ratios."""
    found: dict[str, Any] = {}
    least, most = min(taken), max(taken)
    for place, name in enumerate(("seconds", "processor_seconds")):
        each = {size: statistics.median(pair[place] for pair in taken[size]) for size in taken}
        found[name] = {size: round(median, 2) for size, median in each.items()}
        found[f"{name}_ratio"] = round(each[most] / each[least], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--history", type=int, nargs="+", default=[10, 500])
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    report: dict[str, object] = {"changes": options.changes, "steps": options.steps}
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session("local[2]", format="delta") as spark,
    ):
        report["history"] = by_history(spark, Path(directory), options)
        report["records"] = by_records(spark, Path(directory), options)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
