"""Names reach tables as they are, whatever Spark SQL would make of their characters.

Field names and the names of event types come from the schemas that a service sends. Avro allows
only letters, digits and underscores in them, but no decoder of ours checks that. The names of
directories come from the user.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.spark.formats.target import parquet_of
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import schema_text
from tests.spark.tables.record_world import RECEIVED, TOPIC

NAMES = ["a.b", "back`tick", "order", "select", "it's"]
WITHIN = "with`in"
EVENT = "AccountChangeEvent"
RECORD_ID = "001SB0000000001AAA"


def test_a_table_takes_any_name(spark: SparkSession, tmp_path: Path):
    """A directory, a table, a column and a field of a struct may have any name: rows are appended,
    merged, inserted, deleted and read as in other tables, and columns are added.
    """
    columns = pa.schema([(name, pa.string()) for name in NAMES])
    inner = pa.struct([(name, pa.string()) for name in NAMES])
    wider = pa.schema([*columns, (WITHIN, inner)])

    def rows(key: str, text: str) -> pa.Table:
        value = {**dict.fromkeys(NAMES, text), "back`tick": key}
        return pa.Table.from_pylist([{**value, WITHIN: value}], wider)

    with open_target(spark, tmp_path / "it's `a.b` [1]", TABLE_FORMAT) as target:
        table = target.table("or`der")
        table.make(columns, {"kind": "it's"}, merged=True)
        table.append([parquet_of(rows("1", "appended").select(NAMES))], 1)
        table.make(wider, {"kind": 'it\'s "it"'})
        table.insert(target.spark.createDataFrame(rows("2", "inserted")), 2)
        table.insert(target.spark.createDataFrame(rows("it's", "deleted")), 3)
        both = pa.concat_tables([rows("1", "merged"), rows("3", "merged")])
        table.merge(
            target.spark.createDataFrame(both),
            f"{quoted('t', 'back`tick')} = {quoted('s', 'back`tick')}",
            4,
        )
        table.delete(quoted("back`tick") + " = " + sql_text("it's"), 5)
        assert target.names() == ["or`der"]
        assert table.facts() == {"kind": 'it\'s "it"'}
        assert table.columns() == wider.names
        found = {row.pop("back`tick"): row for row in table.read().toArrow().to_pylist()}
        texts = {key: {row[name] for name in ("a.b", "select")} for key, row in found.items()}
        assert texts == {"1": {"merged"}, "2": {"inserted"}, "3": {"merged"}}
        assert found["3"][WITHIN] == {**dict.fromkeys(NAMES, "merged"), "back`tick": "3"}
        target.finish(5)


def change_event(text: str) -> tuple[str, bytes]:
    """Return the schema and the payload of a change event in which every value is *text*."""
    schema = json.loads(schema_text(EVENT, 0))
    kinds = [{"name": name, "type": ["null", "string"]} for name in NAMES]
    part = {"type": "record", "name": "Part", "fields": kinds}
    schema["fields"] = [*schema["fields"][:1], *kinds, {"name": WITHIN, "type": ["null", part]}]
    value = dict.fromkeys(NAMES, text)
    header: dict[str, Any] = {
        "entityName": "Account", "recordIds": [RECORD_ID], "changeType": "CREATE",
        "changeOrigin": "", "transactionKey": "t", "sequenceNumber": 1, "commitNumber": 7,
        "commitTimestamp": 1_795_215_600_000, "commitUser": "005", "nulledFields": [],
        "diffFields": [], "changedFields": ["0x3E", "6-0x1F"],
    }  # fmt: skip
    out = io.BytesIO()
    event = {"ChangeEventHeader": header, **value, WITHIN: value}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), event)
    return json.dumps(schema), out.getvalue()


def test_fields_of_any_name_reach_the_record_tables(spark: SparkSession, tmp_path: Path):
    """The values of fields with such names are in the typed, current and history tables."""
    text, payload = change_event("value")
    FileSchemaStore(tmp_path / ".raw.sfpubsub" / "_schemas").put("s", text)
    batch = EventBatch(
        subscription=TOPIC,
        topic=TOPIC,
        events=(RawEvent("event-0", "s", payload, ReplayId(b"0")),),
        codecs={"s": Codec("s", text)},
        first_seq=0,
        received_at=RECEIVED,
        ack=lambda first, last: None,
    )
    with EventWriter(spark, tmp_path / "raw", topic=TOPIC) as writer:
        writer.write(batch)
    to = tmp_path / "back`tick's.tables"
    with EventTables(
        spark, tmp_path / "raw", to, format=TABLE_FORMAT, current=True, history=True
    ) as tables:
        list(tables.run())
        for name in (EVENT, "Account", "Account_history"):
            (row,) = tables.target.table(name).read().toArrow().to_pylist()
            assert {name: row[name] for name in NAMES} == dict.fromkeys(NAMES, "value")
            assert row[WITHIN] == dict.fromkeys(NAMES, "value")
            assert row.get("_complete", True)
