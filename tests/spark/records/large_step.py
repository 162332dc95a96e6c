"""Merge 200,000 changes into 2,000,000 rows, with a driver that accepts 64 MB of results.

``python -m tests.spark.records.large_step DIRECTORY FORMAT``
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from pyspark.sql import DataFrame

from sfpubsub.avro.columns import columns_of
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.records.follower import RecordTables
from sfpubsub.spark.records.queue import RereadQueue
from sfpubsub.spark.records.step import StepPlan
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.spark.tables import open_target
from tests.spark.tables.change_streams import schema_text

EVENT = "AccountChangeEvent"
ROWS, CHANGED = 2_000_000, 200_000
TEXT = schema_text(EVENT, 0)
PLAN = Plan({"s": TEXT}, columns_of(TEXT))


class LargeStep:
    """A step with the changes of a DataFrame."""

    def __init__(self, target: Target, frame: DataFrame, number: int) -> None:
        self.plan = StepPlan(number, "rows", types=(EVENT,))
        self.target = target
        self._frame = frame

    def rows(self, event_type: str) -> DataFrame:
        return self._frame

    def decoding(self, event_type: str) -> Plan:
        return PLAN


def changes(target: Target, count: int, kind: str, first: int) -> DataFrame:
    """Return typed rows with one change each, of the first *count* records."""
    values = {
        "record_ids": "array(format_string('001%015d', id))",
        "ingest_seq": f"id + {first}",
        "change_type": f"'{kind}'",
        "commit_timestamp": f"timestamp_seconds(1800000000 + {first})",
        "commit_number": f"id + {first}",
        "sequence_number": "1",
        "changed_fields": "array('Phone')" if kind == "UPDATE" else "array()",
        "nulled_fields": "array()",
        "diff_fields": "array()",
        "Phone": f"concat('{kind} ', id)",
    }
    columns = [
        f"CAST({values.get(field.name, 'NULL')} AS {field.dataType.simpleString()}) {field.name}"
        for field in spark_schema(PLAN.output)
    ]
    return target.spark.range(count).selectExpr(*columns)


def main() -> None:
    directory, format_ = sys.argv[1:]
    settings = {"spark.driver.maxResultSize": "64m", "spark.sql.shuffle.partitions": "8"}
    with (
        spark_session(format=format_, settings=settings) as spark,
        open_target(spark, directory, format_) as target,
    ):
        queue = RereadQueue(target)
        tables = RecordTables(target, queue, with_history=True)
        target.table(EVENT).make(pa.schema(PLAN.output))
        tables.follow(LargeStep(target, changes(target, ROWS, "CREATE", 0), 1))
        tables.follow(LargeStep(target, changes(target, CHANGED, "UPDATE", ROWS), 2))
        rows = target.table("Account").read()
        changed = rows.where("Phone LIKE 'UPDATE %'").count()
        history = target.table("Account_history").read().count()
        print(json.dumps({"rows": rows.count(), "changed": changed, "history": history}))


if __name__ == "__main__":
    main()
