"""What a subscription reports about itself: its health, what it lost, what it committed."""

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

    It says what is known; the service reports no number of events.
    """

    reason: GapReason
    """``unanchored`` (a drop before a LATEST start had a position, or before a managed subscription
    had a confirmed commit), ``repositioned`` (the service began a managed stream elsewhere),
    ``rejected`` (the position was refused), ``missing`` (a Spark source was given an offset of
    which the service knows nothing), ``restored`` (a raw table was taken back to an older version,
    and the managed subscription has gone past what it lost)."""
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
    """The service's confirmation that a position was committed."""

    replay_id: ReplayId
    """The committed position."""
    process_time: int | None
    """When the service received the request, in milliseconds since 1970 UTC; None where the commit
    was learned from where the next stream began."""


@dataclass(frozen=True)
class Health:
    """A snapshot of a subscription for operators and probes."""

    state: HealthState
    """A name from the state table (sfpubsub.protocol.states), or ``waiting_for_schema``: the stream
    is open, and events wait because a schema cannot be fetched."""
    reason: str | None
    """Why the stream is not open, or the last failure."""
    outstanding: int
    """Events asked for and not yet received."""
    pending_count: int
    """Events received and not yet delivered."""
    pending_bytes: int
    """Payload bytes of those."""
    unacked: int
    """Events received and not yet acked, where acks are tracked."""
    delivered: int
    """Events passed to the application since the subscription was made."""
    redelivered: int
    """Events received again and not delivered again."""
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
    """Events that could not be decoded, or handled, and were put into the quarantine."""
    skipped: int = 0
    """Events that could not be decoded and were skipped, as configured."""
    confirmed: int = 0
    """Acked events whose position is known to be committed, or was given to the store."""
    caught_up: bool = False
    """Whether the newest message of the open stream was a keepalive: there is nothing to deliver
    beyond what was received."""
    responses: int = 0
    """Messages received, keepalives and commit answers included: a sign of life."""
    process_time: int | None = None
    """When the service received the last commit that it confirmed, by its own clock, in
    milliseconds since 1970 UTC; None for a topic."""

    @property
    def can_receive(self) -> bool:
        """Whether an event could arrive now, so that silence means that there are no events."""
        return self.state in ("opening", "streaming")

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is delivered."""
        return self.state in ("saving", "draining", "closing", "closed")
