"""What the protocol wants done: its outputs. A driver carries them out in order.

Those that are made for each response are named tuples, which take a third of the time to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sfpubsub.errors import SfPubSubError
from sfpubsub.types import (
    CommitReceipt,
    Gap,
    ProducerEvent,
    PublishResult,
    RawEvent,
    ReplayId,
    StartPosition,
)


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Start a new call with its first request."""

    stream: int
    """Numbers the calls of a subscription from 1; everything the call brings is tagged with it."""
    num_requested: int
    start: StartPosition | None
    """None for a managed subscription: the service knows where."""


class CommitRequest(NamedTuple):
    """The commit part of a request."""

    request_id: str
    replay_id: ReplayId


class SendRequest(NamedTuple):
    """Send a further request on the open stream."""

    stream: int
    num_requested: int
    commit: CommitRequest | None = None


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Say that no further request follows; the service then ends the stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class CancelStream:
    """End the call now. What it still brings is ignored."""

    stream: int


class Deliver(NamedTuple):
    """Hand events to the application, after everything handed over before."""

    events: tuple[RawEvent, ...]
    first_seq: int
    rpc_id: str
    size: int
    """Payload bytes."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget what was delivered and not yet taken by the application."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the application's thread: a position is ready to be stored."""


@dataclass(frozen=True, slots=True)
class RenewSession:
    """Get a new session, then report `session_renewed` or `renewal_failed`."""


@dataclass(frozen=True, slots=True)
class ReportGap:
    """Tell everyone that a position was given up."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class SettleCommit:
    """Answer one caller of `commit`."""

    ticket: int
    outcome: CommitReceipt | SfPubSubError


@dataclass(frozen=True, slots=True)
class Finish:
    """The subscription is over; nothing follows."""

    error: SfPubSubError | None


@dataclass(frozen=True, slots=True)
class OpenPublish:
    """Start a new call that publishes, with its first request."""

    stream: int
    """As in `OpenStream`."""
    events: tuple[ProducerEvent, ...]


@dataclass(frozen=True, slots=True)
class SendEvents:
    """Send a further request to publish on the open stream."""

    stream: int
    events: tuple[ProducerEvent, ...]


@dataclass(frozen=True, slots=True)
class SettleEvents:
    """Report the outcome of these events to their sender, by ticket."""

    outcomes: tuple[tuple[int, PublishResult], ...]


@dataclass(frozen=True, slots=True)
class Reencode:
    """Encode these events by another schema, under the same ids; then report `reencoded`."""

    tickets: tuple[int, ...]
    schema_id: str


@dataclass(frozen=True, slots=True)
class UseSchema:
    """Encode what is published from now on by this schema."""

    schema_id: str


Command: TypeAlias = (
    OpenStream
    | SendRequest
    | HalfClose
    | CancelStream
    | Deliver
    | Discard
    | Wake
    | RenewSession
    | ReportGap
    | SettleCommit
    | Finish
    | OpenPublish
    | SendEvents
    | SettleEvents
    | Reencode
    | UseSchema
)
