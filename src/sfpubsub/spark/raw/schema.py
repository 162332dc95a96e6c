"""The columns of a raw table, which has one row per event, as received.

This module uses neither Spark nor files, and does not interpret positions: `replay_id` is stored as
bytes and never compared, cast or ordered. Rows are ordered by ``ingest_seq``, the order of arrival.
The partition column and the batch column are added by layout.py.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.errors import LocalProtocolError
from sfpubsub.types.events import KEY_BYTES

# The header of a change event (Salesforce documentation, change event header fields), so that
# queries need not parse JSON to find a record. Its three field lists are bitmaps, which can be read
# only with the event's schema, so they stay in the payload.
CHANGE_HEADER = pa.struct(
    [
        ("entity_name", pa.string()),
        ("record_ids", pa.list_(pa.string())),
        ("change_type", pa.string()),
        ("change_origin", pa.string()),
        ("transaction_key", pa.string()),
        ("sequence_number", pa.int64()),
        ("commit_timestamp", TIME),
        ("commit_number", pa.int64()),
        ("commit_user", pa.string()),
    ]
)

# Extra column of the streaming source: the Avro schema as JSON, in the first row of each schema in
# a task, so that the writer can store it.
SCHEMA_JSON = "schema_json"

BATCH_COLUMN = "batch"

# Comments of the table's columns.
COMMENTS = {
    "event_id": "Id of the event, a UUID; empty for an event without one",
    "dedupe_key": "16 bytes, equal whenever the same event is received again",
    "replay_id": "Position of the event: opaque, without an order",
    "topic": "Topic of the event",
    "subscription": "Topic or managed subscription that delivered the event",
    "schema_id": "Id of the Avro schema that the payload was written with: see _schemas",
    "event_name": "API name of the event type",
    "event_time": "When the event occurred, according to its own timestamp (UTC)",
    "received_at": "When the event was received (UTC)",
    "ingest_seq": "Order of arrival; use it for sorting",
    "payload": "The event's Avro bytes, as received",
    "payload_json": "The event as JSON; null if it could not be decoded",
    "org_id": "18-character id of the Salesforce org, if known",
    "change_header": "Header of a change event; null for other events",
    "headers": "Headers of the event; null if it has none",
    "ingest_date": "Day on which the row was written (UTC)",
    SCHEMA_JSON: "The Avro schema, in the first row of each schema of a task; else null",
    BATCH_COLUMN: "Id of the write that added the row; sorts in the order of writing",
}


def with_comments(columns: pa.Schema) -> pa.Schema:
    """Return a schema with the comments of `COMMENTS` on the columns that are named there."""
    commented = {
        name: columns.field(name).with_metadata({"comment": COMMENTS[name]})
        for name in columns.names
        if name in COMMENTS
    }
    return pa.schema([commented.get(field.name, field) for field in columns])


# Columns are only ever added, at the end, and never change their types or meaning.
SCHEMA = with_comments(
    pa.schema(
        [
            ("event_id", pa.string()),  # empty if the event has none
            ("dedupe_key", pa.binary()),
            ("replay_id", pa.binary()),
            ("topic", pa.string()),
            ("subscription", pa.string()),
            ("schema_id", pa.string()),
            ("event_name", pa.string()),
            (
                "event_time",
                TIME,
            ),  # null if the event has no time, or one that Spark cannot represent
            ("received_at", TIME),
            ("ingest_seq", pa.int64()),
            ("payload", pa.binary()),
            ("payload_json", pa.string()),  # null if the payload does not fit its schema
            ("org_id", pa.string()),
            ("change_header", CHANGE_HEADER),  # null unless it is a change event
            ("headers", pa.map_(pa.string(), pa.binary())),  # null if the event has none
        ]
    )
)


def check_rows(rows: pa.Table) -> pa.Table:
    """Check rows, and return them with exactly the columns of `SCHEMA`.

    In the result, ``ingest_seq`` is only a placeholder; see `renumbered`. *rows* may lack
    ``ingest_seq``. The partition column, `BATCH_COLUMN` and `SCHEMA_JSON` are dropped if present.

    Raises:
        LocalProtocolError: A column is missing, is unknown or has the wrong type, or a dedupe key
            does not have the right length.
    """
    names = set(rows.column_names) - {"ingest_date", BATCH_COLUMN, SCHEMA_JSON}
    wrong = (names - set(SCHEMA.names)) | (set(SCHEMA.names) - names - {"ingest_seq"})
    if wrong:
        raise LocalProtocolError(
            f"rows do not have the columns of a raw table; add or drop these columns, which are "
            f"either missing or unknown: {', '.join(sorted(wrong))}"
        )
    try:
        columns = [
            rows[column.name].cast(column.type)
            if column.name in names
            else pa.nulls(len(rows), column.type)
            for column in SCHEMA
        ]
        rows = pa.Table.from_arrays(columns, schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise LocalProtocolError(f"rows do not have the types of a raw table: {error}") from error
    lengths = set(pc.unique(pc.binary_length(rows["dedupe_key"])).to_pylist())
    if not lengths <= {KEY_BYTES}:
        raise LocalProtocolError(
            f"the rows have a dedupe_key that is not {KEY_BYTES} bytes long: do not change the "
            "values of this column"
        )
    return rows


def schemas_in(rows: pa.Table) -> dict[str, str]:
    """Return the Avro schemas contained in rows of the streaming source, by id.

    Raises:
        LocalProtocolError: `SCHEMA_JSON` is not a string column.
    """
    if not {SCHEMA_JSON, "schema_id"} <= set(rows.column_names):
        return {}
    brought = rows.select(["schema_id", SCHEMA_JSON]).filter(pc.is_valid(rows[SCHEMA_JSON]))
    texts = brought[SCHEMA_JSON]
    if not pa.types.is_string(texts.type):
        raise LocalProtocolError(f"{SCHEMA_JSON} must be a string column, not {texts.type}")
    return dict(zip(brought["schema_id"].to_pylist(), texts.to_pylist(), strict=True))


def renumbered(rows: pa.Table, first_seq: int) -> pa.Table:
    """Return *rows* with ``ingest_seq`` counting from *first_seq*."""
    numbers = pa.array(range(first_seq, first_seq + len(rows)), pa.int64())
    place = rows.schema.get_field_index("ingest_seq")
    return rows.set_column(place, rows.schema.field(place), numbers)


def of_org(rows: pa.Table, org_id: str | None) -> pa.Table:
    """Return *rows* with missing org ids set to *org_id*."""
    if not org_id:
        return rows
    place = rows.schema.get_field_index("org_id")
    filled = pc.fill_null(rows["org_id"], org_id)
    return rows.set_column(place, rows.schema.field(place), filled)


def joined_keys(keys: pa.Array | pa.ChunkedArray) -> bytes:
    """Join a column of dedupe keys into one bytes object, as `KeyWindow.load` expects it."""
    if isinstance(keys, pa.ChunkedArray):
        return b"".join([joined_keys(chunk) for chunk in keys.chunks])
    if not len(keys):
        return b""
    keys = keys.cast(pa.binary(KEY_BYTES))
    start = keys.offset * KEY_BYTES
    return bytes(memoryview(keys.buffers()[1])[start : start + len(keys) * KEY_BYTES])
