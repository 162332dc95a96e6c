"""The compiled decoder makes the same raw rows as the Python code."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from sfpubsub import native
from sfpubsub.avro.codec import Codec
from sfpubsub.spark.raw.decoded import decoded
from sfpubsub.spark.raw.rows import EventRows, read_table
from tests.avro.schemas import CORPUS, payload, schema_text, values
from tests.avro.test_arrow import received
from tests.avro.test_decoder import number

pytestmark = pytest.mark.skipif(
    not native.is_installed(), reason="sfpubsub-native is not installed, or switched off"
)

HEADER = {
    "entityName": "string",
    "recordIds": {"type": "array", "items": "string"},
    "changeType": {"type": "enum", "name": "ChangeType", "symbols": ["CREATE", "UPDATE"]},
    "changeOrigin": "string",
    "transactionKey": "string",
    "sequenceNumber": "int",
    "commitTimestamp": "long",
    "commitNumber": "long",
    "commitUser": "string",
}


def decode_both_ways(monkeypatch, codecs, events):
    """Decode with the compiled decoder and in Python, assert equal results, and return the rows."""
    batch = received(codecs, events)
    fast = EventRows()
    fast.extend(batch, 1.25)
    found = fast.table()
    monkeypatch.setattr("sfpubsub.spark.raw.rows.decoded", lambda events: None)
    slow = EventRows()
    slow.extend(batch, 1.25)
    expected = slow.table()
    found.validate(full=True)
    places = [[(place, str(row.error)) for place, row in rows.undecodable] for rows in (fast, slow)]
    assert places[0] == places[1]
    assert found.schema == expected.schema
    assert found.to_pylist() == expected.to_pylist()
    return found


def change_schema(**changed) -> str:
    """Return the schema of a change event with some header fields changed, or omitted if None."""
    fields = [{"name": k, "type": v} for k, v in (HEADER | changed).items() if v is not None]
    header = {"type": "record", "name": "ChangeEventHeader", "fields": fields}
    return json.dumps(
        {
            "type": "record",
            "name": "AccountChangeEvent",
            "fields": [
                {"name": "ChangeEventHeader", "type": header},
                {"name": "Name", "type": ["null", "string"]},
            ],
        }
    )


def test_a_batch_with_many_schemas_gives_the_same_rows_as_in_python(monkeypatch):
    """Both decoders return equal rows, in order of arrival, for events with alternating schemas."""
    codecs = [Codec(name, schema_text(name)) for name in CORPUS]
    events = [
        (place, payload(codec.schema_id, value))
        for value_of in zip(*(values(name, 20) for name in CORPUS), strict=True)
        for place, (codec, value) in enumerate(zip(codecs, value_of, strict=True))
    ]
    assert decoded(list(received(codecs, events))) is not None
    decode_both_ways(monkeypatch, codecs, events)


@pytest.mark.parametrize("bad", [b"", b"\x00", b"\xff" * 20])
def test_an_undecodable_payload_becomes_a_row_without_json(monkeypatch, bad):
    """The row of an undecodable event keeps its place, and both decoders report the same error.

    The other events are decoded.
    """
    codec = Codec("order_event", schema_text("order_event"))
    events = [(0, payload("order_event", value)) for value in values("order_event", 30)]
    events[7] = (0, bad)
    found = decode_both_ways(monkeypatch, [codec], events)
    assert [n for n, text in enumerate(found["payload_json"].to_pylist()) if text is None] == [7]


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("commitTimestamp", "string", "x"),
        ("commitTimestamp", ["null", "long"], None),
        ("commitTimestamp", "long", 2**62),
        ("commitTimestamp", "boolean", True),
        ("sequenceNumber", "long", 2**40),
        ("sequenceNumber", "double", 1.5),
        ("changeType", "string", "UPDATE"),
        ("recordIds", "string", "001"),
        ("recordIds", {"type": "array", "items": ["null", "string"]}, ["a", None]),
        ("recordIds", {"type": "array", "items": ["null", "string"]}, ["a"]),
        ("commitUser", None, None),
        ("commitUser", ["null", "string"], None),
    ],
)
def test_an_unusual_change_header_gives_the_same_row_as_in_python(monkeypatch, field, kind, value):
    """Header fields may have other types or be missing; both decoders give the same values."""
    codec = Codec("S", change_schema(**{field: kind}))
    header = dict.fromkeys(HEADER, "x") | {"recordIds": ["001"], "changeType": "UPDATE"}
    header |= {"sequenceNumber": 1, "commitTimestamp": 5, "commitNumber": 2, field: value}
    if kind is None:
        del header[field]
    decode_both_ways(
        monkeypatch, [codec], [(0, codec.encode({"ChangeEventHeader": header, "Name": None}))]
    )


@pytest.mark.parametrize("time", [0, -1, -62_135_596_800_001, 253_402_300_800_000, 2**62])
def test_extreme_event_times_give_the_same_rows_as_in_python(monkeypatch, time):
    """Both decoders agree on times up to 1970 and on times that Spark cannot represent."""
    codec = Codec("order_event", schema_text("order_event"))
    some = list(values("order_event", 3))
    events = [
        (0, codec.encode(value | {"CreatedDate": at}))
        for at, value in zip((time, 1), some, strict=False)
    ]
    decode_both_ways(monkeypatch, [codec], events)


def test_a_schema_without_arrow_equivalent_is_decoded_in_python(monkeypatch):
    """Rows of a recursive schema, which the compiled decoder rejects, are made in Python."""
    fields = [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "R"]}]
    codec = Codec("S", json.dumps({"type": "record", "name": "R", "fields": fields}))
    assert decoded(list(received([codec], [(0, number(1) + b"\x00")]))) is None
    decode_both_ways(monkeypatch, [codec], [(0, number(1) + b"\x00")])


def test_no_events_give_an_empty_table():
    """The table has the usual columns but no rows, and no event is reported as undecodable."""
    table, bad = read_table([], [], 0)
    assert (len(table), bad) == (0, [])
    assert table.schema.field("payload_json").type == pa.string()
