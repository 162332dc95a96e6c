"""Rows of a raw table for tests of deduplication, which need neither Spark nor payloads in Avro."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from sfpubsub.spark.raw.schema import SCHEMA
from tests.spark.sample_events import NOW


class Event(NamedTuple):
    """One delivery of an event."""

    number: int
    payload: bytes = b"a"
    schema: str = "one"
    topic: str = "/event/A"
    time: float | None = NOW
    """The event's own time in seconds since the epoch; None if it has none that can be read."""


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def rows_of(*events: Event) -> pa.Table:
    """Return events as rows of a raw table."""
    return pa.Table.from_pylist(
        [
            {
                "event_id": f"event-{number}",
                "dedupe_key": key(number),
                "replay_id": b"%d" % place,
                "topic": topic,
                "subscription": "S",
                "schema_id": schema,
                "event_time": None if time is None else round(time * 1e6),
                "ingest_seq": place,
                "payload": payload,
            }
            for place, (number, payload, schema, topic, time) in enumerate(events)
        ],
        SCHEMA,
    )
