"""The headers and field changes of the change events in a raw table."""

from __future__ import annotations

import io
import json
import random
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import sfpubsub.spark
from sfpubsub.avro.json import to_json
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.tables.changes import change_headers, field_changes
from sfpubsub.stores.schema_store import FileSchemaStore
from tests.pages import blocks, page

NULL_TEXT = ["null", "string"]


def record(name: str, *parts: str) -> dict[str, Any]:
    fields = [{"name": part, "type": NULL_TEXT, "default": None} for part in parts]
    return {"type": "record", "name": name, "fields": fields}


TYPES = ["CREATE", "UPDATE", "DELETE", "UNDELETE", "GAP_CREATE", "GAP_UPDATE", "GAP_DELETE"]
TYPES += ["GAP_UNDELETE", "GAP_OVERFLOW", "SNAPSHOT"]
TEXTS = {"type": "array", "items": "string"}
HEADER_FIELDS = {
    "entityName": "string",
    "recordIds": TEXTS,
    "changeType": {"type": "enum", "name": "ChangeType", "symbols": TYPES},
    "changeOrigin": "string",
    "transactionKey": "string",
    "sequenceNumber": "int",
    "commitTimestamp": "long",
    "commitNumber": "long",
    "commitUser": "string",
    "nulledFields": TEXTS,
    "diffFields": TEXTS,
    "changedFields": TEXTS,
}
FIELDS = {
    "ChangeEventHeader": {
        "type": "record",
        "name": "ChangeEventHeader",
        "fields": [{"name": name, "type": kind} for name, kind in HEADER_FIELDS.items()],
    },
    "Name": [*NULL_TEXT, record("Switchable_PersonName", "FirstName", "LastName")],
    "Phone": NULL_TEXT,
    "Amount__c": ["null", "double"],
    "Note__c": NULL_TEXT,
    "Address": ["null", record("Address", "City", "Zip")],
}
NAMES = list(FIELDS)
PARTS = {"Name": ["FirstName", "LastName"], "Address": ["City", "Zip"]}
SCHEMA_TEXT = json.dumps(
    {
        "type": "record",
        "name": "AccountChangeEvent",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
            for name, kind in FIELDS.items()
        ],
    }
)
AVRO = fastavro.parse_schema(json.loads(SCHEMA_TEXT))


def header(change_type: str, ids: list[str], order: tuple[int, int] = (1, 1), **more: Any):
    return {
        "entityName": "Account",
        "recordIds": ids,
        "changeType": change_type,
        "changeOrigin": "",
        "transactionKey": "t",
        "sequenceNumber": order[1],
        "commitTimestamp": 1_771_300_995_000,
        "commitNumber": order[0],
        "commitUser": "005",
        "nulledFields": [],
        "diffFields": [],
        "changedFields": [],
        **more,
    }


def event(head: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"ChangeEventHeader": head, **dict.fromkeys(NAMES[1:]), **fields}


def bits(*names: str) -> list[str]:
    """Return the bitmap entries that the service sends for fields and ``Parent.Child`` parts."""
    entries, numbers = [], [NAMES.index(name) for name in names if "." not in name]
    if numbers:
        entries.append(f"0x{sum(1 << n for n in numbers):02X}")
    for parent, parts in PARTS.items():
        inner = [
            parts.index(name.partition(".")[2]) for name in names if name.startswith(f"{parent}.")
        ]
        if inner:
            entries.append(f"{NAMES.index(parent)}-0x{sum(1 << n for n in inner):02X}")
    return entries


@pytest.fixture(autouse=True)
def _few_partitions(request):
    """Make Spark shuffle into 2 partitions, since the default of 200 is slow for small tables."""
    if "spark" not in request.fixturenames:
        yield
        return
    conf = request.getfixturevalue("spark").conf
    before = conf.get("spark.sql.shuffle.partitions")
    conf.set("spark.sql.shuffle.partitions", "2")
    yield
    conf.set("spark.sql.shuffle.partitions", before)


def tables(spark, events: list[dict[str, Any]], schema_id: str = "s-1"):
    """Return a raw table of the events in order of arrival, and the table of schemas."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for number, value in enumerate(events):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, AVRO, value)
        read = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), AVRO, None)
        row = {
            "dedupe_key": number.to_bytes(16, "big"),
            "replay_id": random.Random(number).randbytes(8),  # without order
            "schema_id": schema_id,
            "event_name": "AccountChangeEvent",
            "ingest_seq": number,
            "payload": out.getvalue(),
            "payload_json": to_json(read),
        }
        for name, column in columns.items():
            column.append(row.get(name))
    raw = spark.createDataFrame(pa.table(columns, schema=SCHEMA))
    return raw, spark.createDataFrame([("s-1", SCHEMA_TEXT)], "schema_id STRING, schema STRING")


def test_change_headers_has_a_row_per_record_of_an_event(spark):
    """Other events and rows without JSON are omitted; an event without record ids has one row."""
    moved = header("UPDATE", ["001A", "001B"], (7, 2), changeOrigin="com/salesforce/api")
    raw, _ = tables(spark, [event(moved), event(header("GAP_OVERFLOW", []))])
    other = raw.limit(1).selectExpr(
        *[c for c in SCHEMA.names if c not in ("event_name", "payload_json")],
        "'Order_Event__e' AS event_name",
        "payload_json",
    )
    undecoded = raw.limit(1).drop("payload_json").selectExpr("*", "string(NULL) AS payload_json")
    rows = change_headers(raw.unionByName(other).unionByName(undecoded)).orderBy("ingest_seq")
    found = [(r.record_id, r.change_type, r.is_gap, r.commit_number) for r in rows.collect()]
    assert sorted(found[:2]) == [("001A", "UPDATE", False, 7), ("001B", "UPDATE", False, 7)]
    assert found[2:] == [(None, "GAP_OVERFLOW", True, 1)]
    first = rows.collect()[0]
    assert first.commit_timestamp.astimezone(UTC) == datetime(2026, 2, 17, 4, 3, 15, tzinfo=UTC)
    assert (first.sequence_number, first.change_origin) == (2, "com/salesforce/api")


def test_changed_nulled_and_unchanged_fields_are_distinguished(spark):
    """Changed fields are in the map with their JSON, nulled ones with null, and unchanged ones are
    not in it; a field that was sent as a diff is unknown.
    """
    head = header(
        "UPDATE",
        ["001A"],
        changedFields=bits("Phone", "Note__c", "Address.City"),
        nulledFields=bits("Amount__c", "Address.Zip"),
        diffFields=bits("Note__c"),
    )
    changed = event(head, Phone="1", Note__c="--- \n+++ ab\n", Address={"City": "Z", "Zip": None})
    (row,) = field_changes(*tables(spark, [changed])).collect()
    assert row.fields == {
        "Phone": '"1"',
        "Address.City": '"Z"',
        "Amount__c": None,
        "Address.Zip": None,
    }
    assert row.unknown_fields == ["Note__c"]
    assert not row.is_gap


def test_an_update_with_invalid_bitmaps_counts_as_a_gap(spark):
    """The update's changed fields cannot be determined."""
    broken = event(header("UPDATE", ["001A"], (2, 1), changedFields=["0xFF0000"]), Phone="2")
    events = [event(header("CREATE", ["001A"]), Phone="1"), broken]
    rows = field_changes(*tables(spark, events)).orderBy("commit_number").collect()
    assert [(row.fields, row.is_gap) for row in rows] == [({"Phone": '"1"'}, False), (None, True)]


def test_a_missing_schema_raises_an_error(spark):
    """The error names the schema; decoding with another one would return wrong values."""
    raw, schemas = tables(spark, [event(header("CREATE", ["001A"]))], schema_id="elsewhere")
    with pytest.raises(PySparkException, match="schema elsewhere is not in the table of schemas"):
        field_changes(raw, schemas).collect()


def test_the_program_in_the_documentation_runs(spark, tmp_path, monkeypatch, capsys):
    """The program in docs/reference/tables.md runs on a table that has a schema directory."""
    code, *more = blocks(page("tables"), "python")
    assert not more
    created = event(header("CREATE", ["001A"]), Phone="1 555")
    raw, _ = tables(spark, [created, event(header("GAP_UPDATE", ["001A"], (2, 1)))])
    table = tmp_path / "accounts"
    raw.write.parquet(f"file://{table}/ingest_date=2026-11-20/batch=b0")
    FileSchemaStore(tmp_path / ".accounts.sfpubsub" / "_schemas").put("s-1", SCHEMA_TEXT)

    @contextmanager
    def shared_session():
        yield spark

    monkeypatch.setattr(sfpubsub.spark, "spark_session", shared_session, raising=False)
    exec(compile(code.replace("/data/accounts", str(table)), "page", "exec"), {})
    shown = capsys.readouterr().out
    assert "GAP_UPDATE" in shown
    assert "1 555" in shown
