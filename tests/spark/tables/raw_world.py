"""A raw table to which tests append, the tables created from it, and their expected contents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.ownership import local_sidecar
from sfpubsub.spark.tables.engine import EventTables, StepReport
from sfpubsub.spark.tables.reading import read_typed, read_undecodable
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.avro.schemas import payload, schema_text, values
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import read_table

TOPIC = "/data/ChangeEvents"
ORDER, ORDER_2, ACCOUNT = "order_event", "order_event_v2", "account_change"
NAMES = {ORDER: "Order_Event__e", ORDER_2: "Order_Event__e", ACCOUNT: "AccountChangeEvent"}
CODECS = {name: Codec(name, schema_text(name)) for name in NAMES}

# 2026-11-20 23:00 UTC: too long ago for a row to wait for its schema.
RECEIVED = 1_795_215_600.0


class Raw:
    """A raw table in a directory, and the tables created from it in the directory ``typed``."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        format: str = "parquet",  # noqa: A002
        to_format: str = TABLE_FORMAT,
    ) -> None:
        self.spark = spark
        self.path = path
        self.typed = path.with_name("typed")
        self.format = format
        self.to_format = to_format
        self.expected: Counter[str] = Counter()
        self.written = 0
        self.place = Destination.parse(path, format)

    @property
    def schemas(self) -> Path:
        """Directory of the raw table's schema store."""
        if self.format == "parquet":
            return self.path.parent / f".{self.path.name}.sfpubsub" / "_schemas"
        return local_sidecar(self.path, "_schemas")

    @property
    def store(self) -> FileSchemaStore:
        return FileSchemaStore(self.schemas)

    def write(self, *parts: tuple[str, int, int], received_at: float = RECEIVED) -> None:
        """Write one batch.

        Args:
            parts: For each schema, its name and the numbers of valid and of undecodable events.
            received_at: When the events were received, in seconds since 1970 UTC.
        """
        events = []
        for name, good, bad in parts:
            for number, value in enumerate(values(name, good + bad, seed=self.written)):
                if name == ACCOUNT:
                    value["ChangeEventHeader"]["changedFields"] = ["0x06"]
                seq = self.written + len(events)
                raw = payload(name, value) + (b"x" if number >= good else b"")
                events.append(RawEvent(f"event-{seq}", name, raw, ReplayId(b"%08d" % seq)))
            self.expected[NAMES[name]] += good
            self.expected["_undecodable"] += bad
        batch = EventBatch(
            subscription=TOPIC,
            topic=TOPIC,
            events=tuple(events),
            codecs=CODECS,
            first_seq=self.written,
            received_at=received_at,
            ack=lambda first, last: None,
        )
        self.written += len(events)
        with EventWriter(self.spark, self.path, format=self.format, topic=TOPIC) as writer:
            writer.write(batch)
        for name, _, _ in parts:
            self.store.put(name, schema_text(name))

    def tables(self, **more: Any) -> EventTables:
        """Return new `EventTables`, to be opened in a ``with`` statement."""
        more = {"format": self.to_format, **more}
        return EventTables(self.spark, self.path, self.typed, **more)

    def make(self, **more: Any) -> StepReport:
        """Process all raw rows with newly opened tables; return the sum of the step reports."""
        with self.tables(**more) as tables:
            return sum(tables.run(), StepReport())

    def read(self, name: str) -> Any:
        """Return a DataFrame with the rows of a typed table."""
        return read_typed(self.spark, self.typed, name, format=self.to_format)

    def undecodable(self) -> Any:
        return read_undecodable(self.spark, self.typed, format=self.to_format)

    def seqs(self, name: str) -> list[int]:
        """Return the ``ingest_seq`` values of a table in order, read without Spark."""
        rows = read_table(self.typed / name, self.to_format, ["ingest_seq"])
        return rows["ingest_seq"].to_pylist()

    def check(self) -> None:
        """Check that every raw row is in exactly one of the tables, and only once."""
        found = {name: self.seqs(name) for name in +self.expected}
        assert {name: len(seqs) for name, seqs in found.items()} == dict(+self.expected)
        assert sorted(seq for seqs in found.values() for seq in seqs) == list(range(self.written))


def version_of(spark: SparkSession, place: Destination) -> str | None:
    """Return the current version of a raw table."""
    return RawBatches(spark, place).version()


def set_back(spark: SparkSession, place: Destination, version: str | None) -> None:
    """Restore a raw table to an earlier or later version."""
    if place.format == "delta":
        address = f"delta.`{place.address}`"
        spark.sql(f"RESTORE TABLE {address} TO VERSION AS OF {version}").collect()
        return
    snapshots = _iceberg(spark, place).manageSnapshots()
    snapshots.setCurrentSnapshot(int(version or 0)).commit()


def remove_rows(spark: SparkSession, place: Destination) -> None:
    """Delete all rows of a raw table, as its user may do."""
    if place.format == "delta":
        spark.sql(f"DELETE FROM delta.`{place.address}`")
        return
    jvm: Any = spark._jvm
    every = jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    _iceberg(spark, place).newDelete().deleteFromRowFilter(every).commit()


def _iceberg(spark: SparkSession, place: Destination) -> Any:
    jvm: Any = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return jvm.org.apache.iceberg.hadoop.HadoopTables(configuration).load(place.url)
