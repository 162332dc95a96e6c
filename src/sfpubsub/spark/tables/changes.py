"""Read the change events of a raw table: which records they concern, and which fields changed.

Each function takes a DataFrame and returns a DataFrame; nothing is stored (for stored current
tables, see current.py). Executors read the events when the result is used. The functions work with
classic sessions and Spark Connect, and with raw tables of any format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from sfpubsub.avro.bitmaps import ChangeSchema
from sfpubsub.avro.change_events import ChangeEvent
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec
from sfpubsub.avro.json import to_json
from sfpubsub.errors import DecodeError, SchemaNotFoundError

# Change types of events that report what changed. Any other type, including newer ones, is treated
# like a gap.
_TELLING = ("CREATE", "UPDATE", "DELETE", "UNDELETE")

_HEADER = f"""{CHANGE_EVENT_HEADER} STRUCT<
    entityName STRING, recordIds ARRAY<STRING>, changeType STRING, changeOrigin STRING,
    transactionKey STRING, sequenceNumber INT, commitTimestamp BIGINT, commitNumber BIGINT,
    commitUser STRING>"""

_FIELDS = [
    StructField("fields", MapType(StringType(), StringType())),
    StructField("unknown_fields", ArrayType(StringType())),
]
_MAP, _LIST = pa.map_(pa.string(), pa.string()), pa.list_(pa.string())


def change_headers(raw: DataFrame) -> DataFrame:
    """Return the headers of change events, one row per event and record.

    They are read with plain SQL from ``payload_json``, so executors need neither schemas nor this
    package. Rows of other events and rows without JSON are omitted.

    Args:
        raw: A raw table, or some of its rows.

    Returns:
        ``entity_name``, ``record_id`` (``001*`` or null if the event concerns all records of the
        object), ``change_type``, ``is_gap`` (whether the event does not report what changed),
        ``commit_number``, ``sequence_number``, ``commit_timestamp``, ``transaction_key``,
        ``commit_user``, ``change_origin``, and the raw table's ``schema_id``, ``dedupe_key`` and
        ``ingest_seq``.
    """
    return _by_record(_headers(raw))


def field_changes(raw: DataFrame, schemas: DataFrame) -> DataFrame:
    """Return the field changes of change events, one row per event and record.

    Payloads are decoded on executors, which need this package.

    Args:
        raw: A raw table, or some of its rows.
        schemas: The raw table's schemas, with the columns ``schema_id`` and ``schema`` (Avro as
            JSON text). A small job reads them immediately. If the schema of an event is missing,
            using the result fails.

    Returns:
        The columns of `change_headers`, and two more. ``fields`` maps each changed field to the
        JSON text of its new value, or to null if the field was set to null. Components of compound
        fields are named ``Parent.Child``. The map is empty for a DELETE. It is null, and ``is_gap``
        is true, for a gap event and for an event whose lists of fields do not match its schema.
        ``unknown_fields`` lists the changed fields that were sent only as a diff.
    """
    kept = schemas.select("schema_id", "schema").collect()
    texts = {row["schema_id"]: row["schema"] for row in kept}
    rows = _headers(raw, "payload")
    columns = [column for column in rows.schema if column.name != "payload"]
    expanded = rows.mapInArrow(partial(_expand, texts), StructType([*columns, *_FIELDS]))
    return _by_record(expanded.withColumn("is_gap", f.col("fields").isNull()))


def _headers(raw: DataFrame, *more: str) -> DataFrame:
    # Only change events have such names, so other events' JSON is not parsed.
    events = raw.where(f.col("event_name").endswith("ChangeEvent"))
    header = f.from_json("payload_json", _HEADER)[CHANGE_EVENT_HEADER]
    events = events.select(header.alias("h"), "schema_id", "dedupe_key", "ingest_seq", *more)
    return events.where("h.changeType IS NOT NULL").select(
        f.col("h.entityName").alias("entity_name"),
        f.col("h.recordIds").alias("record_ids"),
        f.col("h.changeType").alias("change_type"),
        (~f.col("h.changeType").isin(*_TELLING)).alias("is_gap"),
        f.col("h.commitNumber").alias("commit_number"),
        f.col("h.sequenceNumber").alias("sequence_number"),
        f.timestamp_millis("h.commitTimestamp").alias("commit_timestamp"),
        f.col("h.transactionKey").alias("transaction_key"),
        f.col("h.commitUser").alias("commit_user"),
        f.col("h.changeOrigin").alias("change_origin"),
        *("schema_id", "dedupe_key", "ingest_seq", *more),
    )


def _by_record(events: DataFrame) -> DataFrame:
    rest = [name for name in events.columns if name not in ("entity_name", "record_ids")]
    # An outer explode keeps overflow events, which contain no record ids.
    return events.select("entity_name", f.explode_outer("record_ids").alias("record_id"), *rest)


# Executors.


def _expand(
    schemas: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    known: dict[str, tuple[Codec, ChangeSchema]] = {}
    for batch in batches:
        fields: list[dict[str, str | None] | None] = []
        unknown: list[list[str]] = []
        events = zip(batch["schema_id"].to_pylist(), batch["payload"].to_pylist(), strict=True)
        for schema_id, payload in events:
            if schema_id not in known:
                known[schema_id] = _readers(schema_id, schemas)
            codec, schema = known[schema_id]
            found = _fields(schema, codec.decode(payload))
            fields.append(None if found is None else found[0])
            unknown.append([] if found is None else found[1])
        names = [name for name in batch.schema.names if name != "payload"]
        maps = [None if each is None else list(each.items()) for each in fields]
        yield pa.RecordBatch.from_arrays(
            [*(batch[name] for name in names), pa.array(maps, _MAP), pa.array(unknown, _LIST)],
            names=[*names, *(field.name for field in _FIELDS)],
        )


def _readers(schema_id: str, schemas: Mapping[str, str]) -> tuple[Codec, ChangeSchema]:
    text = schemas.get(schema_id)
    if text is None:
        raise SchemaNotFoundError(
            f"schema {schema_id} is not in the table of schemas: use the schemas stored next to "
            f"the raw table"
        )
    return Codec(schema_id, text), ChangeSchema(schema_id, text)


def _fields(
    schema: ChangeSchema, value: dict[str, Any]
) -> tuple[dict[str, str | None], list[str]] | None:
    """Return the new values of changed fields, as JSON text, and the names of those sent as a diff.

    Return None if the event does not report what changed.
    """
    event = ChangeEvent(schema, value)
    kind = event.change_type
    if kind not in _TELLING:
        return None
    found: dict[str, str | None] = {}
    if kind == "CREATE":
        whole = [name for name in schema.fields[1:] if value[name] is not None]
        _put(found, schema, value, whole)
        return {path: text for path, text in found.items() if text is not None}, []
    if kind == "UNDELETE":
        _put(found, schema, value, schema.fields[1:])
    if kind == "UPDATE":
        try:
            nulled, diffs = event.nulled_fields, event.diff_fields
            touched = [name for name in event.changed_fields if name not in diffs]
        except DecodeError:
            return None
        _put(found, schema, value, touched)
        found.update(dict.fromkeys(nulled))
        return found, list(diffs)
    return found, []


def _put(
    found: dict[str, str | None], schema: ChangeSchema, value: dict[str, Any], names: Iterable[str]
) -> None:
    for name in names:
        field, _, part = name.partition(".")
        inner = value[field]
        if not part and isinstance(inner, dict):
            for path in schema.parts[field]:
                found[path] = _text(inner[path.partition(".")[2]])
        elif part:
            found[name] = _text(inner.get(part) if isinstance(inner, dict) else None)
        else:
            found[name] = _text(inner)


def _text(value: Any) -> str | None:
    return None if value is None else to_json(value)
