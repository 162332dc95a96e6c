"""What a subscription reports: its health, its gaps and its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sfpubsub.types.positions import ReplayId

HealthState: TypeAlias = Literal[
    "new",
    "opening",
    "streaming",
    "waiting_for_schema",
    "waiting",
    "renewing",
    "paused",
    "saving",
    "draining",
    "closing",
    "closed",
]

GapReason: TypeAlias = Literal["unanchored", "repositioned", "rejected", "missing", "restored"]


@dataclass(frozen=True)
class Gap:
    """A position that was given up: events may be missing between two points.

    The number of missing events is unknown: the service does not report it.
    """

    reason: GapReason
    """``unanchored`` (the stream was lost before a LATEST start had a position, or before a managed
    subscription had a confirmed commit), ``repositioned`` (the service started a managed stream at
    a different position), ``rejected`` (the position was refused), ``missing`` (the service no
    longer retains the events of a batch that a Spark checkpoint planned), ``restored`` (a raw table
    was restored to an older version, and the managed subscription is already past the lost events).
    """
    subscription: str
    """The topic, or the managed subscription's name or id."""
    after: ReplayId | None = None
    """The last position known to be good, if any."""
    before: ReplayId | None = None
    """The first position after the gap, if known."""
    error_code: str | None = None
    """Error code of the service that caused it."""
    rpc_id: str | None = None
    """RPC id of the call that caused it."""

    def __str__(self) -> str:
        known_good = self.after.hex() if self.after else "the start"
        until = self.before.hex() if self.before else "an unknown position"
        return (
            f"position lost on {self.subscription} ({self.reason}): events between {known_good} "
            f"and {until} may be missing"
        )


@dataclass(frozen=True)
class CommitReceipt:
    """The service's confirmation that a position was committed."""

    replay_id: ReplayId
    """The committed position."""
    process_time: int | None
    """When the service received the request, in milliseconds since 1970 UTC; None if the commit was
    inferred from the start of the next stream.
    """


@dataclass(frozen=True)
class Health:
    """A snapshot of a subscription for operators and probes."""

    state: HealthState
    """State name from the state table (sfpubsub.protocol.states), or ``waiting_for_schema``: the
    stream is open, and events wait because a schema cannot be fetched.
    """
    reason: str | None
    """Why the stream is not open, or the last failure, if any."""
    outstanding: int
    """Events requested and not yet received."""
    pending_count: int
    """Events received and not yet delivered."""
    pending_bytes: int
    """Payload bytes of the pending events."""
    unacked: int
    """Events received and not yet acked, if acks are tracked."""
    delivered: int
    """Events passed to the application since the subscription was created."""
    redelivered: int
    """Duplicates received and dropped."""
    reconnects: int
    """Streams opened after the first."""
    last_position: ReplayId | None
    """The last position received."""
    committed: ReplayId | None
    """The last position that the service confirmed."""
    gaps: tuple[Gap, ...] = ()
    """All gaps so far."""
    details: Mapping[str, Any] = field(default_factory=dict)
    quarantined: int = 0
    """Events quarantined because they could not be decoded or handled."""
    skipped: int = 0
    """Events that could not be decoded and were skipped, as configured."""
    confirmed: int = 0
    """Acked events whose position was committed or passed to the store."""
    caught_up: bool = False
    """Whether the newest message on the open stream was a keepalive, so the service has no further
    events for now.
    """
    responses: int = 0
    """Messages received, including keepalives and commit responses."""
    process_time: int | None = None
    """When the service received the last confirmed commit, by its own clock, in milliseconds since
    1970 UTC; None for a plain subscription.
    """

    @property
    def can_receive(self) -> bool:
        """Whether events can arrive now. If so, silence means that nothing was published."""
        return self.state in ("opening", "streaming")

    @property
    def has_ended(self) -> bool:
        """Whether the subscription no longer delivers events."""
        return self.state in ("saving", "draining", "closing", "closed")
