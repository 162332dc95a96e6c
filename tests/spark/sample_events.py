"""Sample event batches, like those that the client delivers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.types import RawEvent, ReplayId

TOPIC = "/event/Order_Event__e"
MANAGED = "My_Managed_Subscription"

SCHEMA_JSON = json.dumps(
    {
        "type": "record",
        "name": "Order_Event__e",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {"name": "CreatedDate", "type": "long"},
            {"name": "CreatedById", "type": "string"},
            {"name": "Number__c", "type": ["null", "double"], "default": None},
        ],
    }
)
CODEC = Codec("schema-1", SCHEMA_JSON)

# 2026-11-20 23:00 UTC, in seconds since 1970: the last hour of a day, so that tests can cross it.
NOW = 1_795_215_600.0


def replay_id(number: int) -> ReplayId:
    """Return the position of event *number*; positions are not ordered and differ in length."""
    return ReplayId(hashlib.sha256(b"%d" % number).digest()[: 8 + number % 5])


def raw_event(number: int, *, at: float = NOW, payload: bytes | None = None) -> RawEvent:
    """Return event *number*, created at the time *at* in seconds since 1970 UTC."""
    if payload is None:
        value = {"CreatedDate": round(at * 1000), "CreatedById": "005", "Number__c": number}
        payload = CODEC.encode(value)
    return RawEvent(f"event-{number}", "schema-1", payload, replay_id(number))


def batch_of(
    events: Sequence[RawEvent] | range,
    *,
    topic: str | None = TOPIC,
    first_seq: int = 0,
    received_at: float = NOW,
    ack: Callable[[int, int], None] = lambda first, last: None,
) -> EventBatch:
    """Return a batch with *events*, given as raw events or as a range of event numbers."""
    raw = tuple(e if isinstance(e, RawEvent) else raw_event(e) for e in events)
    return EventBatch(
        subscription=topic or MANAGED,
        topic=topic,
        events=raw,
        codecs={"schema-1": CODEC},
        first_seq=first_seq,
        received_at=received_at,
        ack=ack,
    )
