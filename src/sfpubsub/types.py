"""The values that the layers hand to each other.

Responsible for meaning, not behaviour: no I/O, no clock, the standard library only. A position is
a `ReplayId`, which can be compared for equality and nothing else.
"""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias


class ReplayId:
    """An opaque position in an event stream.

    Equality and hash are those of the bytes. There is no order and no number in it: the service
    promises neither (pubsub_api.proto, ``ConsumerEvent.replay_id``), and ids are neither
    contiguous nor sorted as bytes.

    Args:
        value: The bytes as the service sent them; not empty.

    Raises:
        TypeError: *value* is not bytes.
        ValueError: *value* is empty.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if type(value) is not bytes:  # the usual case comes once for each event
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise TypeError(f"a replay id is bytes, not {type(value).__name__}")
            value = bytes(value)
        if not value:
            raise ValueError("a replay id has at least one byte")
        self._value = value

    @classmethod
    def from_hex(cls, text: str) -> ReplayId:
        """Read the form that `hex` writes.

        Raises:
            ValueError: *text* is not an even number of hexadecimal digits.
        """
        digits = text.strip()
        try:
            value = bytes.fromhex(digits)
        except ValueError:
            value = b""
        # fromhex skips white space between digits; an id with some in it was mangled on its way.
        if not value or len(digits) != 2 * len(value):
            raise ValueError(
                f"not a replay id: {text!r} (an even number of hexadecimal digits, as printed in "
                f"replay_id)"
            )
        return cls(value)

    @classmethod
    def from_base64(cls, text: str) -> ReplayId:
        """Read the form that `base64` writes.

        Raises:
            ValueError: *text* is not standard base64.
        """
        try:
            return cls(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise ValueError(f"not a replay id in base64: {text!r}") from error

    def hex(self) -> str:
        """Return lower-case hexadecimal digits, two a byte."""
        return self._value.hex()

    def base64(self) -> str:
        """Return standard base64 with padding."""
        return base64.b64encode(self._value).decode("ascii")

    def __bytes__(self) -> bytes:
        return self._value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReplayId):
            return self._value == other._value
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"ReplayId({self.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReplayId, (self._value,))


class ReplayPreset(enum.Enum):
    """Where a new stream begins, in the wire's own words."""

    LATEST = 0
    EARLIEST = 1
    CUSTOM = 2


@dataclass(frozen=True)
class StartPosition:
    """Where a stream begins: use `latest`, `earliest` or `after`."""

    preset: ReplayPreset
    replay_id: ReplayId | None = None

    def __post_init__(self) -> None:
        if (self.preset is ReplayPreset.CUSTOM) != (self.replay_id is not None):
            raise ValueError("a replay id belongs to CUSTOM, and CUSTOM needs one")

    @classmethod
    def latest(cls) -> StartPosition:
        """Begin at the tip: events published from now on."""
        return cls(ReplayPreset.LATEST)

    @classmethod
    def earliest(cls) -> StartPosition:
        """Begin at the oldest event that the service still keeps (72 h)."""
        return cls(ReplayPreset.EARLIEST)

    @classmethod
    def after(cls, replay_id: ReplayId) -> StartPosition:
        """Begin strictly after *replay_id*."""
        return cls(ReplayPreset.CUSTOM, replay_id)

    def __str__(self) -> str:
        if self.replay_id is None:
            return self.preset.name.lower()
        return f"after {self.replay_id.hex()}"


class ReplayOption(enum.Enum):
    """Where a subscription without a position starts, in the words of the Streaming API."""

    NEW_EVENTS = "latest"
    ALL_EVENTS = "earliest"


# What `subscribe(replay=…)` takes, apart from a store.
Replay: TypeAlias = str | ReplayId | ReplayOption | StartPosition


def start_position(replay: Replay) -> StartPosition:
    """Turn what a caller wrote into a `StartPosition`.

    Args:
        replay: ``"latest"``, ``"earliest"``, a `ReplayOption`, a `ReplayId`, its hexadecimal
            form, or a `StartPosition`.

    Raises:
        ValueError: A string that is none of these.
    """
    if isinstance(replay, StartPosition):
        return replay
    if isinstance(replay, ReplayOption):
        replay = replay.value
    if isinstance(replay, ReplayId):
        return StartPosition.after(replay)
    if replay == "latest":
        return StartPosition.latest()
    if replay == "earliest":
        return StartPosition.earliest()
    return StartPosition.after(ReplayId.from_hex(replay))


# Hashers of nothing yet, to be copied: making one costs as much again as what is done with it.
_KEY_OF_ID = hashlib.blake2b(digest_size=16, person=b"sfpubsub id")
_KEY_OF_PAYLOAD = hashlib.blake2b(digest_size=16, person=b"sfpubsub payload")


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


@dataclass(frozen=True)
class Gap:
    """A position that was given up: events may be missing between two points.

    It says what is known; the service tells no number of events.
    """

    reason: str
    """``unanchored`` (a drop before a LATEST start had a position), ``repositioned`` (the service
    began a managed stream elsewhere), ``rejected`` (the position was refused)."""
    subscription: str
    """Topic, or name or id of the managed subscription."""
    after: ReplayId | None = None
    """The last position known to be good, where there is one."""
    before: ReplayId | None = None
    """The first position after the gap, where it is known."""
    error_code: str | None = None
    """The service's error code that led to it."""
    rpc_id: str | None = None
    """The service's id of the call that led to it."""

    def __str__(self) -> str:
        known_good = self.after.hex() if self.after else "the start"
        until = self.before.hex() if self.before else "an unknown position"
        return (
            f"position lost on {self.subscription} ({self.reason}): events between {known_good} "
            f"and {until} may be missing"
        )


@dataclass(frozen=True)
class CommitReceipt:
    """The service's word that a position was committed."""

    replay_id: ReplayId
    """The committed position."""
    process_time: int | None
    """When the service received the request, in milliseconds since 1970 UTC; None where the commit
    was learned from where the next stream began."""


@dataclass(frozen=True)
class TopicInfo:
    """What the service says of a topic."""

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


@dataclass(frozen=True)
class PublishResult:
    """The answer to one published event."""

    replay_id: ReplayId | None
    """Position of the event; None when it was refused."""
    correlation_key: str
    """The id under which the event was published."""
    error: str | None = None
    """Why it was refused."""

    @property
    def ok(self) -> bool:
        """Whether the event was accepted."""
        return self.error is None


@dataclass(frozen=True)
class Health:
    """A snapshot of a subscription for people and probes."""

    state: str
    """A name from the state table (sfpubsub.protocol.states)."""
    reason: str | None
    """Why the stream is not open, or the last failure."""
    outstanding: int
    """Events asked for and not yet received."""
    pending_count: int
    """Events received and not yet handed out."""
    pending_bytes: int
    """Payload bytes of those."""
    unacked: int
    """Events received and not yet acked, where acks are tracked."""
    delivered: int
    """Events handed to the application since the subscription was made."""
    redelivered: int
    """Events received again and not handed out again."""
    reconnects: int
    """Streams opened after the first."""
    last_position: ReplayId | None
    """The last position received."""
    committed: ReplayId | None
    """The last position that the service confirmed."""
    gaps: tuple[Gap, ...] = ()
    """Every position that was given up."""
    details: Mapping[str, Any] = field(default_factory=dict)
    quarantined: int = 0
    """Events that could not be decoded and were put into the quarantine."""
    skipped: int = 0
    """Events that could not be decoded and were passed over, as was asked for."""
    confirmed: int = 0
    """Acked events whose position is known to be committed, or was given to the store."""
    caught_up: bool = False
    """Whether the newest message of the open stream was a keepalive: there is nothing to deliver
    beyond what was received."""
    responses: int = 0
    """Messages received, keepalives and commit answers included: a sign of life."""
