"""A raw table to which tests write change events, and the tables derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import SchemaNotFoundError
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.records.queue import QUEUE_NAME
from sfpubsub.spark.records.table import HISTORY_SUFFIX
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.spark.tables.change_streams import Published, schema_text
from tests.spark.tables.slow_records import SlowTables, pruned

TOPIC = "/data/ChangeEvents"

# 2026-11-20 23:00 UTC: too long ago for a row to wait for its schema.
RECEIVED = 1_795_215_600.0

FLAGS = ["_is_deleted", "_complete", "_reread", "_reread_reason", "_commit_timestamp"]
FLAGS += ["_commit_number", "_sequence_number", "_ingest_seq", "_change_type"]


class World:
    """A raw table in *path*/raw, and the tables derived from it in *path*/tables."""

    def __init__(self, spark: SparkSession, path: Path, table_format: str) -> None:
        self.spark = spark
        self.raw = path / "raw"
        self.to = path / "tables"
        self.format = table_format
        self.schemas = FileSchemaStore(path / ".raw.sfpubsub" / "_schemas")
        self.written: list[tuple[str, Published]] = []
        """Type and content of each written event; its index is its ``ingest_seq``."""

    def write(
        self,
        events: Sequence[tuple[str, Published]],
        bad: Sequence[int] = (),
        unknown: Sequence[int] = (),
    ) -> None:
        """Write one batch to the raw table.

        Args:
            events: Pairs of event type and event, in order of arrival.
            bad: ``ingest_seq`` of each event whose payload is made undecodable.
            unknown: ``ingest_seq`` of each event whose schema the service does not know.
        """
        codecs: dict[str, Codec] = {}
        raws = []
        for event_type, event in events:
            schema_id = f"{event_type}-{event.version}"
            text = schema_text(event_type, event.version)
            codecs[schema_id] = Codec(schema_id, text)
            self.schemas.put(schema_id, text)
            seq = len(self.written)
            end = b"x" if seq in bad else b""
            if seq in unknown:
                schema_id = "unknown"
                codecs[schema_id] = NoCodec(schema_id, SchemaNotFoundError("no such schema"))
            raws.append(
                RawEvent(f"event-{seq}", schema_id, event.payload + end, ReplayId(b"%08d" % seq))
            )
            self.written.append((event_type, event))
        batch = EventBatch(
            subscription=TOPIC,
            topic=TOPIC,
            events=tuple(raws),
            codecs=codecs,
            first_seq=len(self.written) - len(raws),
            received_at=RECEIVED,
            ack=lambda first, last: None,
        )
        with EventWriter(self.spark, self.raw, topic=TOPIC) as writer:
            writer.write(batch)

    def tables(self, **more: Any) -> EventTables:
        """Return the tables, which the caller must open as a context manager."""
        more = {"format": self.format, "history": True, **more}
        return EventTables(self.spark, self.raw, self.to, **more)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        place = f"file://{self.to}/{name}"
        return self.spark.read.format(self.format).load(place).toArrow().to_pylist()

    def expected(self, event_type: str) -> SlowTables:
        """Return the expected tables for an event type."""
        return SlowTables([event if name == event_type else None for name, event in self.written])

    def check(self, event_type: str, entity: str, *, history: bool = True) -> SlowTables:
        """Check the tables of an object against the expected ones, and return the latter."""
        slow = self.expected(event_type)
        current = {row["record_id"]: plain(row) for row in self.rows(entity)}
        for record_id, row in slow.current.items():
            assert current.get(record_id) == row, f"{current.get(record_id)} is not {row}"
        assert current.keys() == slow.current.keys()
        if history:
            found = self.rows(f"{entity}{HISTORY_SUFFIX}")
            versions = [plain(row, ["valid_from", "valid_to"]) for row in found]
            assert sorted(versions, key=_version) == sorted(slow.history, key=_version)
        names = ("record_id", "reason", "change_type", "commit_timestamp", "since_seq")
        cues = [row for row in self.rows(QUEUE_NAME) if row["entity_name"] == entity]
        assert plain_queue([tuple(row[name] for name in names) for row in cues]) == slow.queue
        return slow


def _version(row: dict[str, Any]) -> tuple[str, int]:
    return row["record_id"], row["_ingest_seq"]


def plain(row: dict[str, Any], more: Sequence[str] = ()) -> dict[str, Any]:
    """Return a row of a table in the form of `SlowTables`."""
    known = {name: milliseconds(row[name]) for name in ("record_id", *FLAGS, *more)}
    taken = {
        "record_id",
        *FLAGS,
        "_read",
        "_stamp",
        "_derived_at",
        "valid_from",
        "valid_to",
        "from_read",
        "_kind",
    }
    fields = {_column(name, value): value for name, value in row.items() if name not in taken}
    return {**known, "values": pruned(fields) or {}}


def _column(name: str, value: Any) -> str:
    """Return the column in `SlowTables` for a field, which may depend on the type of *value*."""
    if name.startswith("Amount__c") and value is not None:
        return "Amount__c__string" if isinstance(value, str) else "Amount__c"
    return name


def milliseconds(value: Any) -> Any:
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


def plain_queue(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return queue rows in the form and the order of `SlowTables.queue`."""
    found = [tuple(map(milliseconds, row)) for row in rows]
    return sorted(found, key=lambda row: (row[4], row[0] or ""))
