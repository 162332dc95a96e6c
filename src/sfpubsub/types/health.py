"""Values that a subscription reports: its health, its gaps and its commit receipts."""

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

GapReason: TypeAlias = Literal[
    "unanchored",
    "repositioned",
    "rejected",
    "missing",
    "restored",
    "expired",
    "reset",
    "rights",
    "deselected",
]


@dataclass(frozen=True)
class Gap:
    """Two positions of a stream between which events may be missing.

    The number of missing events is unknown, because the service does not report it.
    """

    reason: GapReason
    """``unanchored`` (the stream was lost before a LATEST start had a position, or before a managed
    subscription had a confirmed commit), ``repositioned`` (the service started a managed stream at
    a different position), ``rejected`` (the position was refused), ``missing`` (the service no
    longer retains the events of a batch that a Spark checkpoint planned), ``restored`` (a raw table
    was restored to an older version, and the managed subscription is already past the lost events),
    ``expired`` (the position was last confirmed longer ago than the service retains events),
    ``reset`` (the service began a new numbering of positions), ``rights`` (the user could not see
    every record, so the service may have withheld events), ``deselected`` (the channel did not
    deliver an object's events).
    """
    subscription: str
    """The topic, or the managed subscription's name or id."""
    after: ReplayId | None = None
    """The last position before the gap, if known."""
    before: ReplayId | None = None
    """The first position after the gap, if known."""
    error_code: str | None = None
    """The service's error code for a rejected position, if it sent one."""
    rpc_id: str | None = None
    """The service's id for the call or response that showed the gap, if known."""
    entity: str | None = None
    """API name of the only object whose events may be missing; None if any event may be."""
    occurrence: str = ""
    """What tells a gap of one object from an earlier one, such as the number of the interruption;
    empty if the positions do.
    """

    def __str__(self) -> str:
        known_good = self.after.hex() if self.after else "the start"
        until = self.before.hex() if self.before else "an unknown position"
        if self.entity is not None:
            return (
                f"events of {self.entity} may be missing on {self.subscription} ({self.reason}), "
                f"from {known_good} to {until}"
            )
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
    """When the service received the commit request, in milliseconds since the epoch; None if the
    commit was inferred from the start of the next stream.
    """


@dataclass(frozen=True)
class Health:
    """A snapshot of a subscription's state, counts and positions."""

    state: HealthState
    """A state of `sfpubsub.protocol.states`, or ``waiting_for_schema``: the stream is open, but
    received events wait for a schema that cannot be fetched.
    """
    reason: str | None
    """Why the stream is not open, otherwise the last failure; None if neither applies."""
    outstanding: int
    """Number of events requested but not yet received."""
    pending_count: int
    """Number of events received but not yet delivered."""
    pending_bytes: int
    """Payload bytes of the pending events, without responses that were partly delivered."""
    unacked: int
    """Number of events delivered but not yet acked; 0 if acks are not tracked."""
    delivered: int
    """Number of events delivered to the application since the subscription was created."""
    redelivered: int
    """Number of events that were received again and dropped."""
    reconnects: int
    """Number of streams opened after the first."""
    last_position: ReplayId | None
    """The last position received; None before the first."""
    committed: ReplayId | None
    """The last committed position that the service confirmed; None before the first."""
    gaps: tuple[Gap, ...] = ()
    """All gaps of the subscription so far, oldest first."""
    details: Mapping[str, Any] = field(default_factory=dict)
    quarantined: int = 0
    """Number of events quarantined because they could not be decoded or handled."""
    skipped: int = 0
    """Number of events that could not be decoded and were skipped, as configured."""
    confirmed: int = 0
    """Number of acked events whose position was committed or passed to the store."""
    caught_up: bool = False
    """Whether the newest message on the open stream was a keepalive, so the service has no further
    events for now.
    """
    responses: int = 0
    """Number of messages received, including keepalives and commit responses."""
    process_time: int | None = None
    """When the service received the last confirmed commit, by its own clock, in milliseconds since
    the epoch; None if unknown, and always None for a plain subscription.
    """
    has_committed: bool = False
    """Whether the service confirmed a commit on the current stream; always False for a plain
    subscription.
    """
    down_for: float | None = None
    """How long the subscription has been unable to open a stream, in seconds; None if the last
    stream has not failed. `reason` has the last failure.
    """

    @property
    def can_receive(self) -> bool:
        """Whether a stream is open or opening.

        If so, silence means that nothing was published, unless requests are paused or the limits
        for undelivered or unacked events are reached.
        """
        return self.state in ("opening", "streaming")

    @property
    def has_ended(self) -> bool:
        """Whether the subscription has ended or is shutting down, so no new events arrive."""
        return self.state in ("saving", "draining", "closing", "closed")
