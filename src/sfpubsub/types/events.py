"""Events, topics and schemas as they are on the wire, and what identifies an event."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sfpubsub.types.positions import ReplayId

# Length of a dedupe key: with 128 bits no two of 10^12 events share one by chance.
KEY_BYTES = 16

# Hashers of nothing yet, to be copied: making one costs as much again as what is done with it.
_KEY_OF_ID = hashlib.blake2b(digest_size=KEY_BYTES, person=b"sfpubsub id")
_KEY_OF_PAYLOAD = hashlib.blake2b(digest_size=KEY_BYTES, person=b"sfpubsub payload")


def dedupe_key(event_id: str, schema_id: str, payload: bytes) -> bytes:
    """Return the 16 bytes that identify an event when it is received again.

    The event's id decides where there is one: it survives a re-issue under a new replay id. Change
    events may have none (Salesforce documentation, event message durability); then the schema id
    and the payload decide, whose header holds the transaction key and the sequence number. Needs no
    decoding and is the same in every process.

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
    digest.update(len(name).to_bytes(4, "big"))  # so that no byte can move between the two parts
    digest.update(name)
    digest.update(payload)
    return digest.digest()


class RawEvent(NamedTuple):  # a frozen dataclass takes 1 µs more to make, and there are many
    """One event as received: nothing decoded, nothing lost."""

    id: str
    """``ProducerEvent.id``: a UUID for platform events, possibly empty for change events."""
    schema_id: str
    """The schema that the payload was written with."""
    payload: bytes
    """One Avro binary datum."""
    replay_id: ReplayId
    """The event's position."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """``ProducerEvent.headers``; the service sets them aside for later use."""


EventKey: TypeAlias = tuple[str, bytes]
"""The id of an event and the bytes of its replay id: equal when the same event is sent again."""


def event_keys(events: Iterable[RawEvent]) -> list[EventKey]:
    """Return the key of each event."""
    # The bytes themselves: the hash of a replay id is a call of Python code.
    return [(event.id, event.replay_id._value) for event in events]


@dataclass(frozen=True)
class TopicInfo:
    """What the service reports about a topic."""

    topic_name: str
    tenant_guid: str
    can_publish: bool
    can_subscribe: bool
    schema_id: str
    """Blank for a topic of several event types; their events carry their own."""
    rpc_id: str


@dataclass(frozen=True)
class SchemaInfo:
    """An Avro schema as the service keeps it."""

    schema_id: str
    schema_json: str
    rpc_id: str = ""


@dataclass(frozen=True)
class ProducerEvent:
    """An encoded event to publish."""

    schema_id: str
    payload: bytes
    id: str = ""
    """At most 36 characters; the service makes a UUID when it is empty."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """The service sets them aside for later use."""


@dataclass(frozen=True)
class PublishResult:
    """The answer to one published event."""

    replay_id: ReplayId | None
    """Position of the event; None when it was refused."""
    correlation_key: str
    """The id under which the event was published."""
    error: str | None = None
    """Why it was refused, or that nothing is known of it."""
    retryable: bool = False
    """With an error: whether sending it again, under the same id, may help."""

    @property
    def ok(self) -> bool:
        """Whether the event was accepted."""
        return self.error is None


@dataclass(frozen=True)
class PublishCounts:
    """The outcome of the events that a publisher was given."""

    accepted: int = 0
    failed: int = 0
    """Refused, or given up without an answer."""
    pending: int = 0
    """Not answered yet."""
    sent_again: int = 0
    """Sends after the first one of an event: at most this many repeats can be on the bus."""
    streams: int = 0
    """Streams, or unary calls' connections, that were begun."""
