"""Small stored tables of each layout (``tests/data/layouts``), and the events that they contain.

``python -m tests.spark.stored_tables`` stores the tables of the current layout: in Parquet, in
Delta with derived tables, or, in the environment of scripts/test_iceberg.sh, in Iceberg. Run it
only when a new layout is added: the stored tables of a layout never change.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.spark import EventTables, EventWriter
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.raw.layout import LAYOUT
from sfpubsub.spark.runtime.session import spark_session
from sfpubsub.types import Gap, RawEvent, ReplayId
from tests.avro.schemas import DATA, payload, schema_text
from tests.spark.conftest import TABLE_FORMAT

LAYOUTS = DATA / "layouts"

TOPIC = "/data/ChangeEvents"
ORDER, SHIPMENT = "order_event", "shipment_change"
CODECS = {name: Codec(name, schema_text(name)) for name in (ORDER, SHIPMENT)}

# When the tables were written: 2026-11-20 23:00 UTC, in seconds since the epoch.
WRITTEN = 1_795_215_600.0

# Events of the first, second and third batch. The stored tables contain the first two.
BATCHES = (range(4), range(4, 6), range(5, 8))

RAW, TABLES = "orders", "tables"

_RECORD = "a01000000000001AAA"

# Files that a table does not need: caches, leases and the checksums of Hadoop's local file system.
_NOT_STORED = ("_keys", "_lease", "_staging")


def event(number: int) -> RawEvent:
    """Return event *number*: 1, 4 and 6 are changes of a record, and 2 cannot be decoded."""
    if number in (1, 4, 6):
        schema = SHIPMENT
        content = payload(schema, _change(number))
    else:
        schema = ORDER
        content = payload(schema, _order(number)) + (b"x" if number == 2 else b"")
    headers = (("trace", b"\x01\x02"),) if number == 3 else ()
    return RawEvent(f"event-{number}", schema, content, ReplayId(b"%08d" % number), headers)


def _order(number: int) -> dict[str, Any]:
    fields = json.loads(schema_text(ORDER))["fields"]
    known = {"CreatedDate": round(WRITTEN * 1000) + number, "CreatedById": "005000000000001AAA"}
    return {field["name"]: known.get(field["name"]) for field in fields}


def _change(number: int) -> dict[str, Any]:
    fields = json.loads(schema_text(SHIPMENT))["fields"]
    header = {
        "entityName": "Shipment__c",
        "recordIds": [_RECORD],
        "changeType": "CREATE" if number == 1 else "UPDATE",
        "changeOrigin": "",
        "transactionKey": f"{number:032x}",
        "sequenceNumber": 1,
        "commitTimestamp": round(WRITTEN * 1000) + number,
        "commitNumber": 11_000_000_000_000 + number,
        "commitUser": "005000000000001AAA",
        "nulledFields": [],
        "diffFields": [],
        "changedFields": [] if number == 1 else ["0x02"],
    }
    changed = {"ChangeEventHeader": header, "Name": f"S-{number}"}
    if number == 1:
        changed |= {"Origin__c": {"Latitude": 47.25, "Longitude": 8.5}, "Weight__c": 1.5}
    return {field["name"]: changed.get(field["name"]) for field in fields}


def write(spark: SparkSession, table: Path, format_: str, numbers: Iterable[int], at: float) -> Any:
    """Write a batch with the events *numbers* to a raw table, and return the result."""
    events = tuple(map(event, numbers))
    batch = EventBatch(
        subscription=TOPIC,
        topic=TOPIC,
        events=events,
        codecs=CODECS,
        first_seq=0,
        received_at=at,
        ack=lambda first, last: None,
    )
    options: dict[str, Any] = {"format": format_, "topic": TOPIC, "clock": lambda: at}
    with EventWriter(spark, table, org_id="00D000000000001EAA", **options) as writer:
        return writer.write(batch)


def rows_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as JSON values, in order of arrival."""
    plain = json.loads(json.dumps(list(rows), default=_text, ensure_ascii=False))
    return sorted(plain, key=lambda row: (row.get("ingest_seq") or 0, json.dumps(row)))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.hex() if isinstance(value, bytes | bytearray) else str(value.isoformat())


def unpack(layout: int, format_: str, directory: Path) -> None:
    """Unpack the stored tables of a layout into *directory*: `RAW`, and for Delta `TABLES`."""
    with tarfile.open(LAYOUTS / str(layout) / f"{format_}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    if format_ == "iceberg":
        _move_iceberg(directory / RAW)


def _move_iceberg(table: Path) -> None:
    """Adapt an Iceberg table to its location: its metadata contains the absolute path."""
    metadata = table / "metadata"
    newest = metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json"
    old = json.loads(newest.read_text())["location"]
    new = f"file://{table}"
    sizes: dict[str, int] = {}
    # Manifests before the lists that contain their sizes; their names end in "-m0.avro".
    for file in sorted(metadata.glob("*.avro"), key=lambda path: path.name.startswith("snap-")):
        with open(file, "rb") as content:
            reader = fastavro.reader(content)
            schema, codec = reader.writer_schema, reader.metadata["avro.codec"]
            about = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
            records = [_moved(record, old, new) for record in reader]
        for record in records:
            if "manifest_path" in record:
                record["manifest_length"] = sizes[record["manifest_path"].rsplit("/", 1)[1]]
        with open(file, "wb") as content:
            fastavro.writer(content, schema, records, codec=codec, metadata=about)
        sizes[file.name] = file.stat().st_size
    for file in metadata.glob("*.json"):
        file.write_text(_renamed(file.read_text(), old, new))


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _moved(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, old, new) for each in value]
    return _renamed(value, old, new) if isinstance(value, str) else value


def _renamed(text: str, old: str, new: str) -> str:
    # The location has the form file:///x, and the paths of the files file:/x.
    return text.replace(old, new).replace(old.replace("file://", "file:"), new)


def _pack(directory: Path, archive: Path) -> None:
    """Pack the files in *directory*, without those that a table does not need."""
    with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            is_hadoop = path.name.startswith(".") and path.suffix == ".crc"
            if not path.is_file() or is_hadoop or set(name.parts) & {*_NOT_STORED}:
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(str(name))
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def store(spark: SparkSession, format_: str) -> None:
    """Store tables of the current layout, with the events of the first two batches."""
    place = LAYOUTS / str(LAYOUT)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        table = Path(made, RAW)
        for number, events in enumerate(BATCHES[:2]):
            write(spark, table, format_, events, WRITTEN + number)
        sidecars = Sidecars(spark, Destination.parse(table, format_), clock=lambda: WRITTEN)
        sidecars.keep_gaps([Gap("rejected", TOPIC, after=ReplayId(b"\x01\x02"))])
        if format_ == "delta":
            target = Path(made, TABLES)
            options: dict[str, Any] = {"current": True, "history": True}
            with EventTables(spark, table, target, format="delta", **options) as tables:
                for _ in tables.run():
                    pass
            found = {
                path.name: rows_of(spark.read.format("delta").load(str(path)).toArrow().to_pylist())
                for path in sorted(target.iterdir())
                if path.name != "_steps" and (path / "_delta_log").is_dir()
            }
            _write_json(place / "tables.json", {name: rows for name, rows in found.items() if rows})
        if format_ == "parquet":
            found = spark.read.parquet(f"file://{table}").toArrow().to_pylist()
            _write_json(place / "rows.json", rows_of(found))
        _pack(Path(made), place / f"{format_}.tar.gz")


def _write_json(file: Path, found: Any) -> None:
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    formats = sys.argv[1:] or (["iceberg"] if TABLE_FORMAT == "iceberg" else ["parquet", "delta"])
    with spark_session(format=TABLE_FORMAT) as session:
        for each in formats:
            store(session, each)
