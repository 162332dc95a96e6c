"""Commands: the outputs of the protocol, which a driver carries out in order.

Commands that are created for every response are named tuples, which are created three times as fast
as dataclass objects.
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
    """Number of the call within the subscription, from 1. Every input from the call includes it."""
    num_requested: int
    start: StartPosition | None
    """Where the stream starts; None for a managed one, whose position the service stores."""


class CommitRequest(NamedTuple):
    """A position to commit, sent as part of a request."""

    request_id: str
    replay_id: ReplayId


class SendRequest(NamedTuple):
    """Send a further request on the open stream."""

    stream: int
    num_requested: int
    commit: CommitRequest | None = None


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Half-close the call: no further requests follow, and the service then ends the stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class CancelStream:
    """Cancel the call now. Messages that still arrive from it are ignored."""

    stream: int


class Deliver(NamedTuple):
    """Deliver events to the application, after all earlier ones."""

    events: tuple[RawEvent, ...]
    first_seq: int
    rpc_id: str
    size: int
    """Payload bytes of the events."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop events that the application has not read yet."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the application's thread: a position is ready to be stored."""


@dataclass(frozen=True, slots=True)
class RenewSession:
    """Get a new session, then call `session_renewed` or `renewal_failed` on the protocol."""


@dataclass(frozen=True, slots=True)
class ReportGap:
    """Report a gap to the application."""

    gap: Gap
    is_raised: bool = False
    """Whether the gap ends the subscription, so that the error which is raised reports it too."""


@dataclass(frozen=True, slots=True)
class ReportOutage:
    """Log that the subscription has no stream, or has one again."""

    is_warning: bool
    """Whether it is a warning; otherwise, it is only of interest to somebody who looks for it."""
    text: str


@dataclass(frozen=True, slots=True)
class SettleCommit:
    """Report the outcome of a `commit` call, identified by its ticket, to the caller."""

    ticket: int
    outcome: CommitReceipt | SfPubSubError


@dataclass(frozen=True, slots=True)
class Finish:
    """End the subscription or publisher; no further commands follow."""

    error: SfPubSubError | None


@dataclass(frozen=True, slots=True)
class OpenPublish:
    """Start a new publishing call with its first request."""

    stream: int
    """See `OpenStream.stream`."""
    events: tuple[ProducerEvent, ...]


@dataclass(frozen=True, slots=True)
class SendEvents:
    """Send a further publish request on the open stream."""

    stream: int
    events: tuple[ProducerEvent, ...]


@dataclass(frozen=True, slots=True)
class SettleEvents:
    """Report the outcomes of events, identified by their tickets, to the sender."""

    outcomes: tuple[tuple[int, PublishResult], ...]


@dataclass(frozen=True, slots=True)
class ReportStrangers:
    """Log the results of a response that belong to no event in flight."""

    results: tuple[PublishResult, ...]


@dataclass(frozen=True, slots=True)
class Reencode:
    """Re-encode these events with another schema under the same ids; call `reencoded` for each."""

    tickets: tuple[int, ...]
    schema_id: str


@dataclass(frozen=True, slots=True)
class UseSchema:
    """Encode all further events with this schema."""

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
    | ReportOutage
    | SettleCommit
    | Finish
    | OpenPublish
    | SendEvents
    | SettleEvents
    | ReportStrangers
    | Reencode
    | UseSchema
)
