"""Read the change events of a raw table: the changed fields, and the latest state of records.

Each function takes a DataFrame and returns a DataFrame; nothing is stored (for stored current
tables, see current.py). Executors read the events when the result is used. The functions work with
classic sessions and Spark Connect, and with raw tables of any format.

Changes are ordered by the header's commit timestamp, commit number and sequence number, then by
arrival, and never by replay id. Invariant: if an event does not report what changed or when, its
record is marked for rereading until a later event describes the record completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
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

# After a change of one of these types, the whole record is known, regardless of earlier events.
_WHOLE = ("CREATE", "DELETE", "UNDELETE")

_HEADER = f"""{CHANGE_EVENT_HEADER} STRUCT<
    entityName STRING, recordIds ARRAY<STRING>, changeType STRING, changeOrigin STRING,
    transactionKey STRING, sequenceNumber INT, commitTimestamp BIGINT, commitNumber BIGINT,
    commitUser STRING>"""

_FIELDS = [
    StructField("fields", MapType(StringType(), StringType())),
    StructField("unknown_fields", ArrayType(StringType())),
]
_MAP, _LIST = pa.map_(pa.string(), pa.string()), pa.list_(pa.string())

_RECORD = ("entity_name", "record_id")

# Order of changes; the order of arrival breaks ties. Commit numbers restart lower when an org is
# migrated to another instance (Change Data Capture guide), so the time comes first.
_AGE = ("commit_timestamp", "commit_number", "sequence_number")
_ORDER = (*_AGE, "ingest_seq")


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


def latest_state(raw: DataFrame, schemas: DataFrame) -> DataFrame:
    """Return the latest state of every record in the change events, one row per record.

    Args:
        raw: A raw table, or some of its rows. Other rows are not taken into account.
        schemas: See `field_changes`.

    Returns:
        ``entity_name``, ``record_id``, and:

        - ``state``: the known fields as the text of a JSON object, in the same format as
          ``payload_json``, merged over all changes since the last CREATE or UNDELETE; null for a
          deleted record.
        - ``is_deleted``: whether the record is deleted.
        - ``is_complete``: whether ``state`` has every field that is not null. It is false if the
          record is deleted, if ``reread`` is true, or if the record is older than the table:
          ``state`` then contains only later changes.
        - ``reread``: whether ``state`` may be out of date. In that case, read the record from the
          org.
        - ``reread_reason``: null if ``reread`` is false. Otherwise it is the change type of an
          event that did not report what changed, ``DIFF`` if a text was sent only as a diff and is
          missing from ``state``, or ``LATE`` if an event arrived after one that was committed
          later.
        - ``reread_since``: when that event's change was committed.
        - ``change_type``, ``commit_number``, ``sequence_number``, ``commit_timestamp`` and
          ``ingest_seq`` of the newest event.
    """
    changes = field_changes(raw, schemas).withColumn("at", f.struct(*_ORDER))
    marks = field_changes(_about_all(raw), schemas).withColumn("at", f.struct(*_ORDER))
    records = _fold(_since_whole(changes.where(~_is_about_all())))
    return _result(records.join(f.broadcast(_marks(marks)), "entity_name", "left"))


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


# The state of records. A STRUCT begins with the order of its change, so `max` selects the newest.


def _is_about_all() -> Column:
    """Return a condition for events about all records, or all whose ids begin with a prefix."""
    record = f.col("record_id")
    overflow = f.col("change_type") == "GAP_OVERFLOW"
    return record.isNull() | record.endswith("*") | overflow


def _about_all(raw: DataFrame) -> DataFrame:
    """Return the raw rows that may satisfy `_is_about_all`, by a text search in their JSON."""
    text = f.col("payload_json")
    may_match = (
        text.contains('*"') | text.contains('"GAP_OVERFLOW"') | text.contains('"recordIds":[]')
    )
    return raw.where(may_match)


def _marks(changes: DataFrame) -> DataFrame:
    """Return one row per object, with the reasons to reread many of its records.

    Each reason applies to the records whose ids begin with its prefix; an empty prefix means all.
    """
    overflow = f.col("change_type") == "GAP_OVERFLOW"
    prefix = f.when(overflow, "").otherwise(f.coalesce(f.rtrim("record_id", f.lit("*")), f.lit("")))
    newest = (
        changes.where(_is_about_all())
        .groupBy("entity_name", prefix.alias("prefix"))
        .agg(f.max(f.struct("at", "change_type", "commit_timestamp")).alias("gap"))
    )
    return newest.groupBy("entity_name").agg(
        f.collect_list(f.struct("prefix", "gap")).alias("marks")
    )


def _since_whole(changes: DataFrame) -> DataFrame:
    """Drop each record's changes that precede its last CREATE, DELETE or UNDELETE.

    Also add the columns ``whole_at`` (the order of that last CREATE, DELETE or UNDELETE) and
    ``late`` (see `_with_late`).
    """
    whole = f.when(f.col("change_type").isin(*_WHOLE) & ~f.col("is_gap"), f.col("at"))
    last = f.max(whole).over(Window.partitionBy(*_RECORD))
    rows = _with_late(changes.withColumn("whole_at", last))
    return rows.where(f.col("whole_at").isNull() | (f.col("at") >= f.col("whole_at")))


def _with_late(changes: DataFrame) -> DataFrame:
    """Mark records for which an event arrived after a newer one.

    The mark stays until the record's next CREATE, DELETE or UNDELETE arrives.
    """
    record = Window.partitionBy(*_RECORD)
    before = record.orderBy("ingest_seq").rowsBetween(Window.unboundedPreceding, -1)
    age = f.struct(*_AGE)
    rows = changes.withColumn("is_late", age < f.max(age).over(before))
    whole_seq = f.coalesce(f.col("whole_at.ingest_seq"), f.lit(-1))
    late = f.struct("at", f.lit("LATE").alias("change_type"), "commit_timestamp")
    counts = f.col("is_late") & (f.col("ingest_seq") >= whole_seq)
    return rows.withColumn("late", f.max(f.when(counts, late)).over(record))


def _fold(changes: DataFrame) -> DataFrame:
    """Merge changes into one row per component, then one per field, then one per record."""
    known = f.transform(
        f.map_entries("fields"), lambda e: f.struct(e.key.alias("path"), e.value.alias("text"))
    )
    diffs = f.transform(
        "unknown_fields", lambda path: f.struct(path.alias("path"), f.lit("").alias("text"))
    )
    rows = changes.withColumn("entry", f.explode_outer(f.concat(known, diffs)))
    rows = rows.select("*", "entry.path", "entry.text")
    said = f.struct("at", "text")
    of_type = f.col("change_type").isin(*_TELLING, "GAP_CREATE", "GAP_UPDATE", "GAP_DELETE")
    of_type |= f.col("change_type") == "GAP_UNDELETE"
    deleted = f.col("change_type").isin("DELETE", "GAP_DELETE").alias("deleted")
    event = f.struct("at", "change_type", "commit_timestamp")
    diff = f.struct("at", f.lit("DIFF").alias("change_type"), "commit_timestamp")
    facts = {
        "newest": event,
        "life": f.when(of_type, f.struct("at", deleted)),
        "whole": f.when(f.col("at") == f.col("whole_at"), f.struct("at", "change_type")),
        "gap": f.when(f.col("is_gap"), event),
        "late": f.col("late"),
        # The empty text, which is not JSON, marks an unknown value.
        "diff": f.when(f.col("text") == "", diff),
    }
    carried = [f.max(name).alias(name) for name in facts]
    paths = rows.groupBy(*_RECORD, "path").agg(
        f.max(said).alias("said"), *(f.max(column).alias(name) for name, column in facts.items())
    )
    # A diff does not count if a later change sent the whole text.
    still = f.when(f.col("said.text") == "", f.col("diff"))
    paths = paths.withColumn("diff", still)
    field = f.substring_index("path", ".", 1)
    part = f.when(f.col("path").contains("."), f.substring_index("path", ".", -1))
    paths = paths.withColumn("field", field).withColumn("part", part)
    fields = paths.groupBy(*_RECORD, "field").agg(
        f.max(f.when(f.col("part").isNull(), f.col("said"))).alias("own"),
        f.collect_list(f.when(f.col("part").isNotNull(), f.struct("part", "said"))).alias("parts"),
        *carried,
    )
    member = f.struct(f.col("field").alias("name"), _field_text().alias("text"))
    kept = f.collect_list(f.when(f.col("field").isNotNull(), member))
    return fields.groupBy(*_RECORD).agg(_object(kept).alias("state"), *carried)


def _field_text() -> Column:
    """Return an SQL expression for a field's JSON text.

    It is the field's latest complete value or, if components of the field changed after that, an
    object of these components.
    """
    newer = f.filter(
        "parts", lambda p: f.col("own").isNull() | (p.said.at > f.col("own").getField("at"))
    )
    members = f.transform(
        newer, lambda p: f.struct(p.part.alias("name"), _or_null(p.said.text).alias("text"))
    )
    own = _or_null(f.col("own").getField("text"))
    return f.when(f.size(newer) > 0, _object(members)).otherwise(own)


def _or_null(text: Column) -> Column:
    return f.coalesce(text, f.lit("null"))


def _object(members: Column) -> Column:
    """Return an SQL expression for the JSON text of an object.

    Names are identifiers, so they need no escapes. Members whose value is unknown are left out.
    """
    known = f.array_sort(f.filter(members, lambda m: m.text != ""))
    texts = f.transform(known, lambda m: f.concat(f.lit('"'), m["name"], f.lit('":'), m.text))
    return f.concat(f.lit("{"), f.array_join(texts, ","), f.lit("}"))


def _result(records: DataFrame) -> DataFrame:
    mine = f.filter(
        "marks",
        lambda m: (
            f.startswith("record_id", m.prefix)
            & (f.col("whole").isNull() | (m.gap.at > f.col("whole").getField("at")))
        ),
    )
    mark = f.array_max(f.transform(mine, lambda m: m.gap))
    rows = records.withColumn("reread", f.array_max(f.array("gap", "diff", "late", mark)))
    deleted = f.coalesce(f.col("life.deleted"), f.lit(False))
    complete = f.col("whole.change_type").isin("CREATE", "UNDELETE") & f.col("reread").isNull()
    return rows.select(
        *_RECORD,
        f.when(~deleted, f.col("state")).alias("state"),
        deleted.alias("is_deleted"),
        f.coalesce(complete, f.lit(False)).alias("is_complete"),
        f.col("reread").isNotNull().alias("reread"),
        f.col("reread.change_type").alias("reread_reason"),
        f.col("reread.commit_timestamp").alias("reread_since"),
        f.col("newest.change_type").alias("change_type"),
        f.col("newest.at.commit_number").alias("commit_number"),
        f.col("newest.at.sequence_number").alias("sequence_number"),
        f.col("newest.commit_timestamp").alias("commit_timestamp"),
        f.col("newest.at.ingest_seq").alias("ingest_seq"),
    )
