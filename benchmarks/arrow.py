"""Speed of converting events to Arrow record batches, relative to fastavro and `from_pylist`.

Prints one JSON line with the median process CPU time for 1,000 events in ten batches of 100. The
routes are interleaved, and ratios are computed within one run. Each route is called once before it
is measured, because a program that uses one route does not use the others in between. Two schemas
are measured: a platform event of 10 fields (about 150 bytes) and an Account change event of 60 or
more fields (about 430 bytes; a quarter of the events are CREATEs).

``values`` compares payloads only; the target applies to it. ``events`` compares the result of
`record_batches` with the same twelve columns built by the peer. Both sides start from Python
objects for the envelope and hash the dedupe key, whose time is ``key``, so this ratio is smaller
for small payloads. ``dicts`` is the route without the native decoder. The peer receives the Arrow
schema, so that it does not have to infer types, and values of the only union with several types
are converted to the form that the schema requires.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
from typing import Any

import fastavro
import pyarrow as pa
from tests.avro.schemas import payload, schema_text, values

from benchmarks.cpu import interleaved
from sfpubsub.avro.arrow import EVENT_COLUMNS, record_batches
from sfpubsub.avro.arrow_values import values_of
from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.native import is_installed
from sfpubsub.types import RawEvent, ReplayId, dedupe_key

ROUNDS = 15  # enough for a stable median on a busy machine
EVENTS = 1_000
RESPONSE = 100  # maximum number of events in one FetchResponse
SCHEMAS = {"pe": "order_event", "acct": "account_change"}
TARGET = 10.0


class Peer:
    """The reference: decodes each event with fastavro, then calls `RecordBatch.from_pylist`."""

    def __init__(self, schema_json: str, codec: Codec, value_type: pa.StructType) -> None:
        self.schema = fastavro.parse_schema(json.loads(schema_json))
        self.codec = codec
        self.value_schema = pa.schema(list(value_type))
        self.event_schema = EVENT_COLUMNS.append(pa.field("value", value_type))
        name = self.value_schema.field("Name").type if "Name" in value_type.names else None
        self.record_name = name.names[1] if name is not None and len(name.names) == 2 else None

    def value(self, data: bytes) -> dict[str, Any]:
        """Return one decoded payload as a dict that matches the Arrow schema."""
        value: Any = fastavro.schemaless_reader(io.BytesIO(data), self.schema, None)
        if self.record_name and value["Name"] is not None:
            kind = "string" if isinstance(value["Name"], str) else self.record_name
            value["Name"] = {kind: value["Name"]}
        return value  # type: ignore[no-any-return]

    def values(self, payloads: list[bytes]) -> pa.RecordBatch:
        """Return a record batch of the decoded payloads."""
        return pa.RecordBatch.from_pylist([self.value(p) for p in payloads], self.value_schema)

    def events(self, batches: list[EventBatch]) -> pa.RecordBatch:
        """Return a record batch of the decoded payloads and the columns of their envelopes."""
        rows = []
        for batch in batches:
            received_at = round(batch.received_at * 1_000_000)
            for seq, raw in enumerate(batch.raw_events, batch.first_seq):
                value = self.value(raw.payload)
                at = self.codec.event_time(value)
                rows.append(
                    {
                        "event_id": raw.id,
                        "dedupe_key": dedupe_key(raw.id, raw.schema_id, raw.payload),
                        "replay_id": bytes(raw.replay_id),
                        "topic": batch.topic,
                        "subscription": batch.subscription,
                        "schema_id": raw.schema_id,
                        "event_name": self.codec.name,
                        "event_time": None if at is None else at * 1000,
                        "received_at": received_at,
                        "delivery_seq": seq,
                        "payload": raw.payload,
                        "value": value,
                    }
                )
        return pa.RecordBatch.from_pylist(rows, self.event_schema)


def responses(codec: Codec, payloads: list[bytes]) -> list[EventBatch]:
    """Return the payloads as events, in batches of `RESPONSE` like those that a client receives."""
    raws = [
        RawEvent(f"{n:08x}-0000-4000-8000-000000000000", codec.schema_id, p, ReplayId(b"%d" % n))
        for n, p in enumerate(payloads)
    ]
    return [
        EventBatch(
            subscription=codec.topic,
            topic=codec.topic,
            events=tuple(raws[start : start + RESPONSE]),
            codecs={codec.schema_id: codec},
            first_seq=start,
            received_at=1_790_000_000.0,
            ack=lambda first, last: None,
        )
        for start in range(0, len(raws), RESPONSE)
    ]


def keys(batches: list[EventBatch]) -> list[bytes]:
    """Return the dedupe keys of all events; both sides compute them in this way."""
    return [
        dedupe_key(raw.id, raw.schema_id, raw.payload)
        for batch in batches
        for raw in batch.raw_events
    ]


def measure(name: str) -> dict[str, float]:
    """Return the microseconds per event and the ratios for one schema."""
    codec = Codec(name, schema_text(name))
    payloads = [payload(name, value) for value in values(name, EVENTS)]
    batches = responses(codec, payloads)
    ours = {native: values_of(name, codec.schema_json, native) for native in (True, False)}
    peer = Peer(codec.schema_json, codec, ours[True].type)

    same = peer.events(batches)
    for native in (None, False):
        made = record_batches(batches, native=native)
        assert not made.rejected
        assert list(made) == [same], f"{name}: the routes return different batches"

    times = interleaved(
        {
            "events_peer": lambda: peer.events(batches),
            "events": lambda: record_batches(batches),
            "events_dicts": lambda: record_batches(batches, native=False),
            "values_peer": lambda: peer.values(payloads),
            "values": lambda: ours[True].decode(payloads),
            "values_dicts": lambda: ours[False].decode(payloads),
            "key": lambda: keys(batches),
        },
        rounds=ROUNDS,
        events=EVENTS,
        is_warmed=True,
    )
    taken = {route: statistics.median(found) for route, found in times.items()}
    figures = {f"{route}_us": round(value, 2) for route, value in taken.items()}
    for what in ("events", "values"):
        for route in (what, f"{what}_dicts"):
            figures[f"{route}_ratio"] = round(taken[f"{what}_peer"] / taken[route], 1)
    return figures


def main() -> None:
    """Measure both schemas and print the result."""
    figures = {short: measure(name) for short, name in SCHEMAS.items()}
    worst = min(figure["values_ratio"] for figure in figures.values())
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "pyarrow": pa.__version__,
                "native": is_installed(),
                "events": EVENTS,
                "rounds": ROUNDS,
                **figures,
                "worst_ratio": worst,
                "target": TARGET,
                "reached": worst >= TARGET,
            }
        )
    )


if __name__ == "__main__":
    main()
