"""Cost of a step into a current table, by the number of records in the table.

``python -m benchmarks current [--records 100000 1000000] [--changes 2000] [--steps 3]``

Creates a Delta table for each size, whose records have twenty fields, and applies similar steps to
the tables in turn: updates of random records, with some creates and deletes. Prints one JSON line:
the median seconds per step for each size, in wall-clock time and in CPU time of all processes, the
ratio of the largest to the smallest size, and for each size the cost of an overflow event, which
marks every record. On a busy machine, use the ratio of the CPU times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from benchmarks.processes import processor_seconds
from sfpubsub.avro.columns import columns_of
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.current import RecordTables
from sfpubsub.spark.tables.folding import FLAGS
from sfpubsub.spark.tables.queue import Queue
from sfpubsub.spark.tables.steps import StepPlan
from sfpubsub.spark.tables.target import Target, parquet_of

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


def record_id(number: int) -> str:
    return f"001{number:015d}"


def joined(text: str, column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(text), column, "")


def fill(target: Target, records: int) -> None:
    """Create the current table with its initial records, in the form that steps write."""
    table = target.table("Account")
    fields = [pa.field(name, pa.string()) for name in FIELDS]
    schema = pa.schema([("record_id", pa.string()), *fields, *FLAGS])
    table.make(schema, {"kind": "current"}, merged=True)
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
    table.append(files, 1)
    Queue(target).make(with_history=False)


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
    RecordTables(target, with_history=False).follow(BenchmarkStep(target, frame, number))
    seconds = time.perf_counter() - started, processor_seconds() - used
    frame.unpersist()
    print(f"{seconds[0]:.2f} s, {seconds[1]:.2f} s of CPU time", file=sys.stderr, flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as directory, spark_session(format="delta") as spark:
        targets = {}
        for records in options.records:
            targets[records] = open_target(spark, Path(directory, str(records)), "delta")
            fill(targets[records], records)
            take(targets[records], changes(rng, records, options.changes, 2), 2)  # warm up
        seconds: dict[int, list[tuple[float, float]]] = {records: [] for records in targets}
        for step in range(3, 3 + options.steps):
            for records, target in targets.items():
                rows = changes(rng, records, options.changes, step)
                seconds[records].append(take(target, rows, step))
        last = 3 + options.steps
        marked = {n: take(target, overflow(last), last) for n, target in targets.items()}
        for target in targets.values():
            target.close()
    report: dict[str, object] = {"changes": options.changes, "steps": options.steps}
    sizes = sorted(targets)
    for place, name in enumerate(("seconds", "processor_seconds")):
        medians = {n: statistics.median(each[place] for each in seconds[n]) for n in sizes}
        report[name] = {n: round(median, 2) for n, median in medians.items()}
        report[f"{name}_ratio"] = round(medians[sizes[-1]] / medians[sizes[0]], 2)
        report[f"{name}_of_overflow"] = {n: round(marked[n][place], 2) for n in sizes}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
