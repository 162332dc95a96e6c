"""Change headers, field changes and latest states in Spark equal those of a simple reference."""

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
from sfpubsub.spark.tables.changes import change_headers, field_changes, latest_state
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


def states(spark, events: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for row in latest_state(*tables(spark, events)).collect():
        known = row.asDict()
        known["state"] = None if row.state is None else json.loads(row.state)
        assert (row.entity_name, row.record_id) not in found, "each record must have one row"
        found[known.pop("entity_name"), known.pop("record_id")] = known
    return found


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
    not in it; a field that was sent as a diff is unknown."""
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
    """The update's changed fields cannot be determined, so the stored state is left unchanged and
    the record must be reread.
    """
    broken = event(header("UPDATE", ["001A"], (2, 1), changedFields=["0xFF0000"]), Phone="2")
    events = [event(header("CREATE", ["001A"]), Phone="1"), broken]
    row = field_changes(*tables(spark, events)).where("commit_number = 2").first()
    assert (row.fields, row.is_gap) == (None, True)
    state = states(spark, events)["Account", "001A"]
    assert (state["state"], state["reread"], state["reread_reason"]) == (
        {"Phone": "1"},
        True,
        "UPDATE",
    )


def test_a_missing_schema_raises_an_error(spark):
    """The error names the schema; decoding with another one would return wrong values."""
    raw, schemas = tables(spark, [event(header("CREATE", ["001A"]))], schema_id="elsewhere")
    with pytest.raises(PySparkException, match="schema elsewhere is not in the table of schemas"):
        field_changes(raw, schemas).collect()


def test_changes_are_ordered_by_commit_and_sequence_number(spark):
    """Changes of the same millisecond may arrive in any order, and replay ids are not ordered."""
    phone = {"changedFields": bits("Phone")}
    events = [
        event(header("UPDATE", ["001A"], (5, 2), **phone), Phone="newest"),
        event(header("UPDATE", ["001A"], (5, 1), **phone), Phone="before"),
        event(header("UPDATE", ["001A"], (4, 9), **phone), Phone="oldest"),
    ]
    state = states(spark, events)["Account", "001A"]
    assert state["state"] == {"Phone": "newest"}
    assert (state["commit_number"], state["sequence_number"], state["ingest_seq"]) == (5, 2, 0)
    assert not state["is_complete"], "the record is older than the table"


T = 1_771_300_995_000


def test_changes_after_an_org_move_are_ordered_by_time(spark):
    """Commit numbers start lower after an org move, so such changes are ordered by commit time.

    A record must be reread only if the times are equal or contradict the order of arrival.
    """
    cases = {
        "moved": (3, 10, None),
        "moved, in the same millisecond": (3, 0, "LATE"),
        "moved, to a clock that is behind": (3, -10, "LATE"),
        "the same millisecond": (200, 0, None),
        "only late": (200, -10, "LATE"),
    }
    events = [event(header("CREATE", list(cases), (100, 1)), Phone="1")]
    for name, (commit, later, _) in cases.items():
        head = header("DELETE", [name], (commit, 1), commitTimestamp=T + later)
        events.append(event(head))
    found = states(spark, events)
    for name, (commit, _, reread) in cases.items():
        state = found["Account", name]
        assert state["reread_reason"] == reread, name
        if reread is None:
            assert (state["is_deleted"], state["commit_number"]) == (True, commit), name


def test_a_late_change_is_applied_in_order_and_forces_a_reread(spark):
    """An update that arrives late does not overwrite newer values.

    The record stays marked for rereading until an event contains all of its fields.
    """
    update = {"changedFields": bits("Phone", "Note__c")}
    events = [
        event(header("CREATE", ["001A"], (1, 1))),
        event(
            header("UPDATE", ["001A"], (9, 1), changedFields=bits("Phone"), commitTimestamp=T + 9),
            Phone="9",
        ),
        event(
            header("UPDATE", ["001A"], (5, 1), **update, commitTimestamp=T + 5),
            Phone="5",
            Note__c="5",
        ),
    ]
    state = states(spark, events)["Account", "001A"]
    assert state["state"] == {"Phone": "9", "Note__c": "5"}
    assert (state["reread_reason"], state["ingest_seq"]) == ("LATE", 1)
    whole = event(header("UNDELETE", ["001A"], (10, 1), commitTimestamp=T + 10), Phone="10")
    assert not states(spark, [*events, whole])["Account", "001A"]["reread"]


class Reference:
    """The expected state of one record: its changes are applied one after the other."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.deleted = self.complete = self.seen = False
        self.gap: Any = None
        self.diffs: dict[str, Any] = {}
        self.last: Any = None
        self.whole_seq = -1

    def whole(self) -> None:
        self.state, self.diffs, self.gap = {}, {}, None

    def mark(self, order: Any, head: dict[str, Any]) -> None:
        self.gap = (order, head["changeType"], head["commitTimestamp"])

    def apply(self, order: Any, value: dict[str, Any]) -> None:
        head = value["ChangeEventHeader"]
        kind = head["changeType"]
        self.last, self.seen = (order, head), True
        if kind != "SNAPSHOT":
            self.deleted = kind in ("DELETE", "GAP_DELETE")
        if kind in ("CREATE", "DELETE", "UNDELETE"):
            self.whole()
            self.whole_seq = order[3]
            self.complete = kind != "DELETE"
        if kind == "CREATE":
            for name in NAMES[1:]:
                new = value[name]
                if isinstance(new, dict):
                    new = {part: text for part, text in new.items() if text is not None}
                if new not in (None, {}):
                    self.state[name] = new
        elif kind == "UNDELETE":
            self.state = {name: value[name] for name in NAMES[1:]}
        elif kind == "UPDATE" and head["changedFields"] == ["0xFF0000"]:
            self.mark(order, head)
        elif kind == "UPDATE":
            self.update(order, value)
        elif kind != "DELETE":
            self.mark(order, head)

    def update(self, order: Any, value: dict[str, Any]) -> None:
        head = value["ChangeEventHeader"]
        diffs = names_of(head["diffFields"])
        for name in names_of(head["changedFields"]) + names_of(head["nulledFields"]):
            field, _, part = name.partition(".")
            if name in diffs:
                self.state.pop(name, None)
                self.diffs[name] = (order, "DIFF", head["commitTimestamp"])
                continue
            self.diffs.pop(name, None)
            old = self.state.get(field)
            old = old if isinstance(old, dict) else {}
            new = value[field]
            if part:
                self.state[field] = {**old, part: new.get(part) if new else None}
            else:
                self.state[field] = {**old, **new} if isinstance(new, dict) else new

    def row(self, late: list[Any]) -> dict[str, Any]:
        order, head = self.last
        late = [(at, "LATE", at[0]) for at in late if at[3] >= self.whole_seq]
        marks = [*self.diffs.values(), *late, *([self.gap] if self.gap else [])]
        reread = max(marks, default=None)
        return {
            "state": None if self.deleted else self.state,
            "is_deleted": self.deleted,
            "is_complete": self.complete and reread is None,
            "reread": reread is not None,
            "reread_reason": reread and reread[1],
            "reread_since": reread and reread[2],
            "change_type": head["changeType"],
            "commit_number": order[1],
            "sequence_number": order[2],
            "commit_timestamp": order[0],
            "ingest_seq": order[3],
        }


def names_of(entries: list[str]) -> list[str]:
    """Return the field and part names in bitmap entries, decoded one bit at a time."""
    found = []
    for entry in entries:
        parent, _, digits = entry.rpartition("-")
        names = (
            [f"{NAMES[int(parent)]}.{p}" for p in PARTS[NAMES[int(parent)]]] if parent else NAMES
        )
        number = int(digits, 16)
        found += [name for place, name in enumerate(names) if number >> place & 1]
    return found


def reference(events: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    heads = [value["ChangeEventHeader"] for value in events]
    records = {
        (head["entityName"], each)
        for head in heads
        for each in head["recordIds"]
        if not each.endswith("*") and head["changeType"] != "GAP_OVERFLOW"
    }
    found = {}
    for entity, record_id in records:
        mine = Reference()
        orders = [
            (h["commitTimestamp"], h["commitNumber"], h["sequenceNumber"], n)
            for n, h in enumerate(heads)
        ]
        own: list[Any] = []
        for order in sorted(orders):
            value, head = events[order[3]], heads[order[3]]
            if head["entityName"] != entity:
                continue
            prefixes = [i[:-1] for i in head["recordIds"] if i.endswith("*")]
            if head["changeType"] == "GAP_OVERFLOW" or not head["recordIds"]:
                prefixes.append("")
            if any(record_id.startswith(prefix) for prefix in prefixes):
                mine.mark(order, head)
            elif record_id in head["recordIds"]:
                mine.apply(order, value)
                own.append(order)
        late = [a for a in own if any(b[3] < a[3] and b[:3] > a[:3] for b in own)]
        found[entity, record_id] = mine.row(late)
    return found


class Histories:
    """Creates random change events of all kinds that the service can send."""

    def __init__(self, seed: int, suffix: str = "") -> None:
        self.rng = random.Random(seed)
        self.suffix = suffix
        self.time = 1_771_300_995_000
        self.commit = 100

    def value(self, name: str) -> Any:
        rng = self.rng
        if name == "Amount__c":
            return rng.choice([0.0, -1.5, 1e16, 0.1])
        if name in PARTS and (name == "Address" or rng.random() < 0.5):
            return {part: rng.choice([None, "x", "y"]) for part in PARTS[name]}
        return rng.choice(["", 'q"u\\o', "Zürich", "1"])

    def event(self) -> dict[str, Any]:
        rng = self.rng
        weights = [3, 12, 2, 2, 1, 1, 1, 1, 0.3, 0.5]
        kind = rng.choices(TYPES, weights)[0]
        if rng.random() < 0.6:
            self.commit += rng.randint(0, 3)  # otherwise another change of the same commit
        self.time += rng.choice([0, 1, 1, 1])
        if rng.random() < 0.02:
            self.commit = rng.randint(1, 99)  # the org is moved
        entity = rng.choice(["Account", "Account", "Lead"])
        prefix = "001" if entity == "Account" else "00Q"
        ids = rng.sample([f"{prefix}{n}" for n in range(5)], rng.choice([1, 1, 1, 2, 3]))
        if kind == "GAP_OVERFLOW":
            ids = rng.choice([[], ids])
        elif rng.random() < 0.02:
            ids = [rng.choice([f"{prefix}*", f"{prefix}3*"])]
        order = (self.commit, rng.randint(1, 4))  # so that some are equal
        about = {"entityName": entity + self.suffix, "commitTimestamp": self.time}
        head = header(kind, ids, order, **about)
        if kind == "CREATE":
            return event(head, **{n: self.value(n) for n in NAMES[1:] if rng.random() < 0.6})
        if kind == "UNDELETE":
            return event(head, **{n: self.value(n) for n in NAMES[1:] if rng.random() < 0.7})
        return self.update(head) if kind == "UPDATE" else event(head)

    def update(self, head: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng
        if rng.random() < 0.03:
            head["changedFields"] = ["0xFF0000"]
            return event(head)
        paths = [n for n in NAMES[1:] if rng.random() < 0.4]
        for parent, parts in PARTS.items():
            if parent not in paths:
                paths += [f"{parent}.{p}" for p in parts if rng.random() < 0.3]
        nulled = [path for path in paths if rng.random() < 0.3]
        changed = [path for path in paths if path not in nulled]
        head["nulledFields"], head["changedFields"] = bits(*nulled), bits(*changed)
        values: dict[str, Any] = {}
        for path in changed:
            field, _, part = path.partition(".")
            if part:
                parts = values.setdefault(field, dict.fromkeys(PARTS[field]))
                parts[part] = rng.choice([None, "x", "y"])
            else:
                values[field] = self.value(field)
        if "Note__c" in changed and rng.random() < 0.4:
            head["diffFields"] = bits("Note__c")
        return event(head, **values)

    def events(self, count: int) -> list[dict[str, Any]]:
        made = [self.event() for _ in range(count)]
        for _ in range(count // 10):  # some arrive late
            made.insert(self.rng.randrange(count), made.pop(self.rng.randrange(count)))
        return made


def test_the_latest_state_equals_the_reference(spark):
    """The latest states of four random histories, in one table, equal those of the reference.

    The histories contain merged updates, parts of fields, gaps, wildcards, overflow, ties and
    recreated records.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    events, expected = [], {}
    for number, count in enumerate([20, 60, 200, 500]):
        history = Histories(seed + number, f"_{number}").events(count)
        start = len(events)
        events += history
        for key, row in reference(history).items():
            expected[key] = {**row, "ingest_seq": row["ingest_seq"] + start}
    found = states(spark, events)
    for row in found.values():
        for name in ("reread_since", "commit_timestamp"):
            row[name] = row[name] and round(row[name].timestamp() * 1000)
    for key in expected:
        assert found.get(key) == expected[key], f"seed {seed}, record {key}"
    assert found.keys() == expected.keys()


def test_the_random_histories_cover_every_case():
    """The histories contain deleted, complete and incomplete records, and several reasons to reread
    one.
    """
    rows = [row for seed in range(40) for row in reference(Histories(seed).events(60)).values()]
    reasons = {row["reread_reason"] for row in rows}
    assert reasons >= {None, "GAP_UPDATE", "DIFF", "GAP_OVERFLOW", "LATE"}
    assert {row["is_deleted"] for row in rows} == {True, False}
    assert {row["is_complete"] for row in rows} == {True, False}


def test_the_program_in_the_documentation_runs(spark, tmp_path, monkeypatch, capsys):
    """The program in docs/reference/tables.md runs on a table that has a schema directory."""
    code, *more = blocks(page("tables"), "python")
    assert not more
    created = event(header("CREATE", ["001A"]), Name="Acme", Phone="1")
    raw, _ = tables(spark, [created, event(header("GAP_UPDATE", ["001A"], (2, 1)))])
    table = tmp_path / "accounts"
    raw.write.parquet(f"file://{table}/ingest_date=2026-11-20/batch=b0")
    FileSchemaStore(table / "_schemas").put("s-1", SCHEMA_TEXT)

    @contextmanager
    def shared_session():
        yield spark

    monkeypatch.setattr(sfpubsub.spark, "spark_session", shared_session, raising=False)
    exec(compile(code.replace("/data/accounts", str(table)), "page", "exec"), {})
    shown = capsys.readouterr().out
    assert "GAP_UPDATE" in shown
    assert "Acme" in shown
