"""Events, topics and schemas as sent on the wire, and the keys that identify an event."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sfpubsub.types.positions import ReplayId

# Bytes of a dedupe key: with 128 bits, no two of 10^12 events share one by chance.
KEY_BYTES = 16

# Empty hashers to copy: creating one costs as much as using it.
_KEY_OF_ID = hashlib.blake2b(digest_size=KEY_BYTES, person=b"sfpubsub id")
_KEY_OF_PAYLOAD = hashlib.blake2b(digest_size=KEY_BYTES, person=b"sfpubsub payload")


def dedupe_key(event_id: str, schema_id: str, payload: bytes) -> bytes:
    """Return 16 bytes that identify an event, so that a redelivery can be recognised.

    The key is derived from the event's id if it has one: the id stays the same if the event is
    re-issued under a new replay id. Change events may have no id (Salesforce documentation, event
    message durability); their key is derived from the schema id and the payload, whose header
    contains the transaction key and the sequence number. Computing the key requires no decoding,
    and gives the same result in every process.

    Args:
        event_id: ``ProducerEvent.id``, or an empty string.
        schema_id: ``ProducerEvent.schema_id``.
        payload: The Avro bytes.
    """
    if event_id:
        digest = _KEY_OF_ID.copy()
        digest.update(event_id.encode())
        return digest.digest()
    digest = _KEY_OF_PAYLOAD.copy()
    name = schema_id.encode()
    # The length separates the two parts, so that moving bytes between them changes the key.
    digest.update(len(name).to_bytes(4, "big"))
    digest.update(name)
    digest.update(payload)
    return digest.digest()


class RawEvent(NamedTuple):  # a frozen dataclass takes 1 µs longer to create, and there are many
    """One event as received: undecoded and complete."""

    id: str
    """The event's id (``ProducerEvent.id``): a UUID for platform events, possibly empty for change
    events.
    """
    schema_id: str
    """Id of the schema that the payload was written with."""
    payload: bytes
    """One datum in Avro's binary encoding, as received."""
    replay_id: ReplayId
    """The event's position in the stream."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers as names and values (``ProducerEvent.headers``), reserved by the service for future
    use.
    """


EventKey: TypeAlias = tuple[str, bytes]
"""The id of an event and the bytes of its replay id; the same if the event is redelivered."""


def event_keys(events: Iterable[RawEvent]) -> list[EventKey]:
    """Return the `EventKey` of each event, in the same order."""
    # Bytes instead of a ReplayId, whose hash is computed in Python.
    return [(event.id, event.replay_id._value) for event in events]


@dataclass(frozen=True)
class TopicInfo:
    """A topic's schema id and tenant, and the user's permissions, as reported by the service."""

    topic_name: str
    tenant_guid: str
    can_publish: bool
    can_subscribe: bool
    schema_id: str
    """Id of the topic's schema; empty for a channel, whose events may have different schemas."""
    rpc_id: str


@dataclass(frozen=True)
class SchemaInfo:
    """An Avro schema, as returned by the service."""

    schema_id: str
    schema_json: str
    rpc_id: str = ""


@dataclass(frozen=True)
class ProducerEvent:
    """An encoded event to publish."""

    schema_id: str
    payload: bytes
    id: str = ""
    """The event's id, at most 36 characters; if empty, the service generates a UUID."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers as names and values, reserved by the service for future use."""


@dataclass(frozen=True)
class PublishResult:
    """Result of publishing one event."""

    replay_id: ReplayId | None
    """Position of the event; None if it failed, or if the service sent no position."""
    correlation_key: str
    """The event's id, as in ``ProducerEvent.id``."""
    error: str | None = None
    """Why the event failed; None if it was accepted."""
    retryable: bool = False
    """Whether sending a failed event again with the same id may succeed."""

    @property
    def ok(self) -> bool:
        """Whether the event was accepted."""
        return self.error is None


@dataclass(frozen=True)
class PublishCounts:
    """Counts of a publisher's events, by outcome."""

    accepted: int = 0
    failed: int = 0
    """Number of events that were refused, or abandoned without a response."""
    pending: int = 0
    """Number of events without a result yet, whether sent or waiting."""
    sent_again: int = 0
    """Number of resends: an upper bound for the duplicates on the bus."""
    streams: int = 0
    """Number of streams opened or, with unary calls, of uninterrupted sequences of calls."""
