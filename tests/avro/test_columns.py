"""Tests of the columns of typed tables, compared with a slow decoder of the same events."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from sfpubsub.avro.arrow_values import Values
from sfpubsub.avro.bitmaps import ChangeSchema
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.columns import BATCH, ENVELOPE, UNDECODABLE, columns_of, merge
from sfpubsub.avro.typed_rows import Plan, decode_rows
from sfpubsub.errors import DecodeError
from tests.avro.schemas import CORPUS, payload, schema_text, values
from tests.avro.test_arrow import encode_rows, event_schema, events

NOW = datetime(2026, 11, 21, tzinfo=UTC)
RAW = pa.schema([*ENVELOPE, ("event_name", pa.string()), ("payload", pa.binary()), *BATCH])


def raw_rows(*events: tuple[str, bytes]) -> pa.RecordBatch:
    """Return rows of a raw table for events, each a schema id and a payload."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "event_id": f"e{number}",
                "dedupe_key": b"%016d" % number,
                "replay_id": b"r%d" % number,
                "topic": "/data/ChangeEvents",
                "subscription": "/data/ChangeEvents",
                "schema_id": schema_id,
                "event_time": NOW,
                "received_at": NOW,
                "ingest_seq": number,
                "event_name": "Test_Event__e",
                "payload": raw,
                "ingest_date": date(2026, 11, 21),
                "batch": "b0",
            }
            for number, (schema_id, raw) in enumerate(events)
        ],
        schema=RAW,
    )


def decoded(plan: Plan, *events: tuple[str, bytes]) -> list[dict[str, Any]]:
    """Decode events, each a schema id and a payload, and return their rows in order of arrival.

    The batches are validated as well.
    """
    batches = [part for name, part in decode_rows([raw_rows(*events)], {"T": plan}) if name]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == plan.output
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["ingest_seq"])


def plan_of(**schemas: str) -> Plan:
    """Return the plan for one event type; *schemas* are its versions by schema id, oldest first."""
    columns = pa.schema([])
    for text in schemas.values():
        columns = merge(columns, columns_of(text))
    return Plan(schemas, columns)


# The slow decoder, which takes the rows of Arrow's form apart with Python.


def decode_slowly(schema_json: str, raw: bytes) -> dict[str, Any] | None:
    """Return the columns of one event, or None if it can't be decoded."""
    codec = Codec("id", schema_json)
    made, rejected = Values("id", schema_json, native=False).decode([raw])
    if rejected:
        return None
    value = made.to_pylist()[0]
    columns: dict[str, Any] = {}
    for name, time in with_times(value, codec.times).items():
        if name != "ChangeEventHeader" or not codec.is_change_event:
            columns[name] = time
            continue
        for fact, found in value[name].items():
            if fact in ("changedFields", "nulledFields", "diffFields"):
                try:
                    found = list(ChangeSchema("id", schema_json).expand(found))
                except DecodeError:
                    return None
            if fact == "commitTimestamp":
                found = utc_time(found)
            columns[re.sub("([A-Z])", lambda match: "_" + match[1].lower(), fact)] = found
    return columns


def with_times(value: dict[str, Any], times: Any) -> dict[str, Any]:
    """Return *value* with its time fields converted from milliseconds to datetimes.

    *times* is a list of pairs: the name of a time field and None, or the name of a nested record
    and a list of such pairs for its fields.
    """
    value = dict(value)
    for name, inside in times:
        if inside is None and isinstance(value[name], int):
            value[name] = utc_time(value[name])
        elif isinstance(value[name], dict) and "string" not in value[name]:
            value[name] = with_times(value[name], inside)
    return value


def utc_time(milliseconds: int) -> datetime:
    """Convert milliseconds since the Unix epoch to a UTC datetime."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_columns_match_the_slow_decoder(name):
    """The events of the corpus that the slow decoder accepts, and no others, become rows with the
    same values.
    """
    text = schema_text(name)
    raws = [payload(name, value) for value in values(name, 60, seed=3)]
    plan = plan_of(one=text)
    rows = decoded(plan, *(("one", raw) for raw in raws))
    expected = {
        n: row for n, raw in enumerate(raws) if (row := decode_slowly(text, raw)) is not None
    }
    assert [row["ingest_seq"] for row in rows] == list(expected)
    for row in rows:
        own = {key: row[key] for key in plan.columns.names}
        assert own == expected[row["ingest_seq"]]


@settings(max_examples=30)
@given(made=events())
def test_rows_of_random_schemas_contain_all_values(made):
    """For random schemas, a row holds every value of its event in the column of the matching
    field.
    """
    text, raws = made
    plan = plan_of(one=text)
    rows = decoded(plan, *(("one", raw) for raw in raws))
    read, _ = Values("one", text, native=False).decode(raws)
    assert len(rows) == len(read)
    for row, value in zip(rows, read.to_pylist(), strict=True):
        assert list(row)[len(ENVELOPE) : -len(BATCH)] == plan.columns.names
        assert repr([row[name] for name in plan.columns.names]) == repr(list(value.values()))


def test_a_later_version_adds_its_columns_at_the_end():
    """Events of both versions become rows of one table; columns that a version lacks are null."""
    plan = plan_of(old=schema_text("order_event"), new=schema_text("order_event_v2"))
    old_names = columns_of(schema_text("order_event")).names
    assert plan.columns.names == [*old_names, "Promised_At__c"]
    (old,) = values("order_event", 1)
    (new,) = values("order_event_v2", 1)
    new["Promised_At__c"] = 1_771_300_995_000
    rows = decoded(
        plan, ("new", payload("order_event_v2", new)), ("old", payload("order_event", old))
    )
    assert [row["Promised_At__c"] for row in rows] == [utc_time(1_771_300_995_000), None]
    assert [row["City__c"] for row in rows] == [new["City__c"], old["City__c"]]


RECORD = {"type": "record", "name": "P", "fields": [{"name": "a", "type": "int"}]}
WIDER = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "b", "type": "string"}, {"name": "a", "type": "long"}],
}
OTHER = {"type": "record", "name": "P", "fields": [{"name": "a", "type": "string"}]}


@pytest.mark.parametrize(
    ("first", "second", "value", "columns", "expected"),
    [
        ("int", "long", 2**40, ["F0"], [2**40]),
        ("float", "double", 0.1, ["F0"], [0.1]),
        ("int", "string", "x", ["F0", "F0__string"], [None, "x"]),
        ("string", "double", 0.5, ["F0", "F0__double"], [None, 0.5]),
        (RECORD, WIDER, {"a": 2**40, "b": "x"}, ["F0"], [{"a": 2**40, "b": "x"}]),
        (RECORD, OTHER, {"a": "x"}, ["F0"], [{"a": None, "a__string": "x"}]),
        ("string", RECORD, {"a": 1}, ["F0", "F0__struct"], [None, {"a": 1}]),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": "string"},
            ["x"],
            ["F0", "F0__array_string"],
            [None, ["x"]],
        ),
    ],
)
def test_a_field_that_changes_its_type_keeps_its_old_column(
    first, second, value, columns, expected
):
    """A value of a wider type is stored in the existing column; a value of any other type, in an
    additional one.
    """
    old, new = event_schema(first), event_schema(second)
    plan = plan_of(old=old, new=new)
    assert plan.columns.names == columns
    (raw,) = encode_rows(new, (value,))
    (row,) = decoded(plan, ("new", raw))
    assert [row[name] for name in columns] == expected


def record(**fields):
    """Return an Avro record type named P, given the type of each field."""
    return {
        "type": "record",
        "name": "P",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


@pytest.mark.parametrize("kind", ["array", "map"])
def test_records_in_lists_gain_fields_in_their_column(kind):
    """If records in an array or map gain members in a later version, so does the field's column.

    The values of all three versions are stored in this one column.
    """
    inner = "items" if kind == "array" else "values"
    types = [record(a="int"), record(a="long", b="string"), record(c="int", a="string")]
    texts = [event_schema({"type": kind, inner: one}) for one in types]
    plan = plan_of(**{f"v{n}": text for n, text in enumerate(texts)})
    assert plan.columns.names == ["F0"]
    rows = []
    for n, value in enumerate([{"a": 1}, {"a": 2, "b": "x"}, {"c": 3, "a": "y"}]):
        (raw,) = encode_rows(texts[n], ([value] if kind == "array" else {"k": value},))
        rows.append((f"v{n}", raw))
    found = [row["F0"][0] for row in decoded(plan, *rows)]
    nothing = {"a": None, "b": None, "a__string": None, "c": None}
    expected = [{"a": 1}, {"a": 2, "b": "x"}, {"c": 3, "a__string": "y"}]
    assert [one if kind == "array" else one[1] for one in found] == [
        nothing | one for one in expected
    ]


def test_conflicting_column_names_stay_separate():
    """If the name of an additional column is already a field's name, each field still has its own
    columns.
    """
    texts = [
        json.dumps(record(A="int", A__string="long")),
        json.dumps(record(A="string", A__string="string")),
    ]
    plan = plan_of(v0=texts[0], v1=texts[1])
    assert plan.columns.names == ["A", "A__string", "A__string_", "A__string__string"]
    rows = decoded(plan, ("v0", b"\x02\x04"), ("v1", b"\x02x\x02y"))
    found = [tuple(row[name] for name in plan.columns.names) for row in rows]
    assert found == [(1, 2, None, None), (None, None, "x", "y")]
    plan = plan_of(v0=texts[1])
    assert plan_of(v0=texts[1], v1=texts[1]) == Plan({"v0": texts[1], "v1": texts[1]}, plan.columns)
    both = merge(merge(pa.schema([("A", pa.int64())]), plan.columns), plan.columns)
    assert both.names == ["A", "A__string", "A__string__string"]


def test_fields_that_differ_only_by_case_get_distinct_columns():
    """Spark ignores the case of names, also in structs, so one of the two fields gets an
    underscore.
    """
    text = event_schema(record(a="int", A="string"))
    plan = plan_of(one=text, other=event_schema(record(A="string", a="int", b="int")))
    (raw,) = encode_rows(text, ({"a": 1, "A": "x"},))
    (row,) = decoded(plan, ("one", raw))
    names = [name.lower() for name in row["F0"]]
    assert len(set(names)) == len(names)
    assert {1, "x"} <= set(row["F0"].values())
    assert plan_of(one=json.dumps(record(a="int", A="string"))).columns.names == ["a", "A_"]


def test_header_entries_of_unexpected_types_are_stored_unchanged():
    """A change event's header field of an unexpected type is stored unchanged.

    A changedFields bitmap that is null is stored as null.
    """
    header = record(
        changedFields=["null", {"type": "array", "items": "string"}],
        nulledFields="string",
        commitTimestamp="string",
    )
    text = json.dumps({**record(ChangeEventHeader=header, Name="string"), "name": "E"})
    plan = plan_of(one=text)
    assert plan.columns.names == ["changed_fields", "nulled_fields", "commit_timestamp", "Name"]
    facts = {"changedFields": None, "nulledFields": "0x02", "commitTimestamp": "today"}
    raws = encode_rows(
        text,
        {"ChangeEventHeader": facts, "Name": "n"},
        {"ChangeEventHeader": {**facts, "changedFields": ["0x02"]}, "Name": "n"},
    )
    rows = decoded(plan, *(("one", raw) for raw in raws))
    assert [row["changed_fields"] for row in rows] == [None, ["Name"]]
    assert [row["nulled_fields"] for row in rows] == ["0x02", "0x02"]
    assert [row["commit_timestamp"] for row in rows] == ["today", "today"]


def test_merging_known_schemas_adds_no_columns():
    """The first merge of each schema determines the columns; merging it again adds none."""
    one, two = columns_of(event_schema("int")), columns_of(event_schema("string"))
    both = merge(one, two)
    assert merge(merge(both, one), two) == both


def test_a_field_named_like_an_envelope_column_gets_an_underscore():
    """A field doesn't shadow an envelope column, even if their names differ only in case."""
    text = json.dumps(
        {
            "type": "record",
            "name": "T",
            "fields": [{"name": "Topic", "type": "string"}, {"name": "batch", "type": "string"}],
        }
    )
    plan = plan_of(one=text)
    assert plan.columns.names == ["Topic_", "batch_"]
    (row,) = decoded(plan, ("one", b"\x02x\x02y"))
    assert (row["topic"], row["Topic_"], row["batch"], row["batch_"]) == (
        "/data/ChangeEvents",
        "x",
        "b0",
        "y",
    )


def test_a_time_outside_the_timestamp_range_is_null():
    """A time that a timestamp can't represent is null, as in the raw table's ``event_time``."""
    field = {"name": "CreatedDate", "type": ["null", "long"], "doc": "CreatedDate:DateTime"}
    text = json.dumps({"type": "record", "name": "T", "fields": [field]})
    plan = plan_of(one=text)
    raws = encode_rows(text, *({"CreatedDate": time} for time in (None, 2**62, -(2**62), 0)))
    rows = decoded(plan, *(("one", raw) for raw in raws))
    assert [row["CreatedDate"] for row in rows] == [None, None, None, utc_time(0)]


def test_every_row_is_decoded_or_has_a_reason():
    """Each raw row is either in a typed batch or among the rejected rows, whose reasons distinguish
    bad bytes, bad bitmaps and unknown schemas.
    """
    order, account = schema_text("order_event"), schema_text("account_change")
    plans = {"Order": plan_of(order=order), "Account": plan_of(account=account)}
    (good,) = values("order_event", 1)
    change = next(v for v in values("account_change", 9) if v["ChangeEventHeader"]["changedFields"])
    beyond = json.loads(json.dumps(change))
    beyond["ChangeEventHeader"]["changedFields"] = [f"0x1{'0' * 40}"]
    rows = [
        ("order", payload("order_event", good)),
        ("order", payload("order_event", good) + b"x"),
        ("account", payload("account_change", change)),
        ("account", payload("account_change", beyond)),
        ("nobody's", b"?"),
    ]
    parts = list(decode_rows([raw_rows(*rows)], plans))
    typed = [row["ingest_seq"] for name, part in parts if name for row in part.to_pylist()]
    left = [row for name, part in parts if name is None for row in part.to_pylist()]
    assert {name for name, _ in parts} == {"Order", "Account", None}
    assert sorted(typed) == [0, 2]
    reasons = {row["ingest_seq"]: row["reason"] for row in left}
    assert list(reasons) == [1, 3, 4]
    assert "1 bytes more than the schema describes" in reasons[1]
    assert "has bit 160" in reasons[3]
    assert reasons[4] == "schema nobody's is not known"
    assert list(left[0]) == [*UNDECODABLE.names, *BATCH.names]


def test_large_rows_are_decoded_in_parts(monkeypatch):
    """Rows whose payloads exceed the limit become several batches, because Arrow's offsets have
    only 32 bits.
    """
    monkeypatch.setattr("sfpubsub.avro.typed_rows.MAX_PAYLOAD_BYTES", 100)
    text = event_schema("string")
    raws = encode_rows(text, *(("x" * 30,) for _ in range(20)))
    rows = raw_rows(*(("one", raw) for raw in raws))
    parts = [part for _, part in decode_rows([rows], {"T": plan_of(one=text)})]
    assert len(parts) > 5
    assert sum(len(part) for part in parts) == 20
