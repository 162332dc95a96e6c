"""The partitions that are sent to executors, and their conversion to rows there.

A partition contains events as they were received, and the schemas that they were encoded with. So
an executor can decode them without a connection: it needs neither grpc nor credentials. The same
code creates the rows of a raw table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import DecodeError, SchemaError
from sfpubsub.spark.raw.rows import read_table
from sfpubsub.spark.raw.schema import SCHEMA, SCHEMA_JSON, with_comments
from sfpubsub.types import Gap, RawEvent, ReplayId, dedupe_key

# ``event_name`` of a row that marks a gap, where events may be missing.
GAP_EVENT = "sfpubsub.Gap"

# Maximum number of events and payload bytes in one partition, which is one task. Spark rejects
# tasks above 128 MiB (spark.rpc.message.maxSize), and keeps all tasks of a trigger in the driver.
MAX_TASK_EVENTS = 10_000
MAX_TASK_BYTES = 4 * 1024 * 1024

# The columns of the source: those of the raw table, and the Avro schema.
SOURCE_SCHEMA = with_comments(SCHEMA.append(pa.field(SCHEMA_JSON, pa.string())))

_WIRE = pa.schema(
    [
        ("id", pa.string()),
        ("schema_id", pa.string()),
        ("replay_id", pa.binary()),
        ("received_at", pa.float64()),
        ("payload", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)


class EventPartition(InputPartition):
    """Consecutive events of a batch, to be decoded by one task.

    Args:
        topic: The topic of the events.
        first_seq: ``ingest_seq`` of the first event.
        schemas: Avro schemas as JSON text, by id; those that could not be fetched are omitted.
        data: The events, as an Arrow stream.
        gaps: Gaps before the events, each with the time at which it was detected, in seconds since
            the epoch.
    """

    def __init__(
        self,
        topic: str,
        first_seq: int,
        schemas: dict[str, str],
        data: bytes,
        gaps: tuple[tuple[Gap, float], ...] = (),
    ) -> None:
        super().__init__(None)
        self.topic = topic
        self.first_seq = first_seq
        self.schemas = schemas
        self.data = data
        self.gaps = gaps

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Decode the events into record batches with the columns of `SOURCE_SCHEMA`.

        If there are gaps, the first record batch contains one row for each gap.
        """
        if self.gaps:
            yield _gap_rows(self.topic, self.gaps)
        table = pa.ipc.open_stream(self.data).read_all()
        if len(table):
            yield _event_rows(self, table)


def pack(events: Sequence[tuple[RawEvent, float]]) -> bytes:
    """Serialise events and their times of receipt as an Arrow stream."""
    raws = [raw for raw, _ in events]
    batch = pa.record_batch(
        [
            pa.array([raw.id for raw in raws], pa.string()),
            pa.array([raw.schema_id for raw in raws], pa.string()),
            pa.array([bytes(raw.replay_id) for raw in raws], pa.binary()),
            pa.array([received_at for _, received_at in events], pa.float64()),
            pa.array([raw.payload for raw in raws], pa.binary()),
            pa.array([list(raw.headers) for raw in raws], _WIRE.field("headers").type),
        ],
        schema=_WIRE,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _WIRE) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def chunks(
    events: Sequence[tuple[RawEvent, float]],
) -> Iterator[tuple[int, Sequence[tuple[RawEvent, float]]]]:
    """Split a batch into partitions; yield the start index and the events of each."""
    start = size = 0
    for index, (raw, _) in enumerate(events):
        size += len(raw.payload)
        if index > start and (index - start >= MAX_TASK_EVENTS or size > MAX_TASK_BYTES):
            yield start, events[start:index]
            start, size = index, len(raw.payload)
    if start < len(events):
        yield start, events[start:]


def _event_rows(partition: EventPartition, table: pa.Table) -> pa.RecordBatch:
    columns = [table[name].to_pylist() for name in _WIRE.names]
    raws = [
        RawEvent(event_id, schema_id, payload, ReplayId(replay_id), tuple(headers))
        for event_id, schema_id, replay_id, _, payload, headers in zip(*columns, strict=True)
    ]
    codecs = {name: _codec(name, partition.schemas.get(name)) for name in set(columns[1])}
    batch = EventBatch(
        subscription=partition.topic,
        topic=partition.topic,
        events=tuple(raws),
        codecs=codecs,
        first_seq=partition.first_seq,
        received_at=0.0,  # each event has its own
        ack=lambda first, last: None,
    )
    found, _ = read_table(list(batch), columns[3], partition.first_seq)
    # The first row of each schema also contains the schema, so that the writer can store it (see
    # `SCHEMA_JSON`).
    first = {schema_id: place for place, schema_id in reversed(list(enumerate(columns[1])))}
    texts: list[str | None] = [None] * len(batch)
    for schema_id, place in first.items():
        texts[place] = partition.schemas.get(schema_id)
    found = found.append_column(SOURCE_SCHEMA.field(SCHEMA_JSON), pa.array(texts, pa.string()))
    return found.combine_chunks().to_batches()[0]


# The capacity of the client's cache (avro/schema_cache.py). A worker process runs several tasks.
@lru_cache(maxsize=512)
def _codec(schema_id: str, schema_json: str | None) -> Codec:
    if schema_json is None:
        return NoCodec(schema_id, SchemaError(f"the service has no schema {schema_id}"))
    return Codec(schema_id, schema_json)


def event_time_of(raw: RawEvent, schema_json: str | None) -> float | None:
    """Return when an event occurred, in seconds since the epoch; None if unknown."""
    if schema_json is None:
        return None
    codec = _codec(raw.schema_id, schema_json)
    try:
        time = codec.event_time(codec.decode(raw.payload))
    except DecodeError:
        return None
    return None if time is None else time / 1000


def _gap_rows(topic: str, gaps: Sequence[tuple[Gap, float]]) -> pa.RecordBatch:
    rows = []
    for gap, at in gaps:
        said = {
            "reason": gap.reason,
            "after": None if gap.after is None else gap.after.hex(),
            "before": None if gap.before is None else gap.before.hex(),
            "error_code": gap.error_code,
        }
        key = dedupe_key("", GAP_EVENT, json.dumps(said).encode())
        rows.append(
            {
                "event_id": "",
                # If a gap is found again after a crash, its row has the same key.
                "dedupe_key": key,
                "replay_id": None if gap.after is None else bytes(gap.after),
                "topic": topic,
                "subscription": topic,
                "event_name": GAP_EVENT,
                "received_at": round(at * 1_000_000),
                "payload_json": json.dumps(said | {"rpc_id": gap.rpc_id, "message": str(gap)}),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)
