"""Observe one subscription over time: its health, and the times of its last message and commit.

A `Health` snapshot describes only the current state. The times of the last message from the service
and of the last commit can be determined only by comparing successive snapshots. The status file,
the metrics, `/health`, the page and the terminal's status line all use the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sfpubsub.errors import SfPubSubError
from sfpubsub.types import Health

if TYPE_CHECKING:
    from sfpubsub.client.batch import Event, EventBatch

SourceKind: TypeAlias = Literal["managed", "topic", "channel"]

# Seconds after an ack for which its delay still counts as the current lag.
RECENT = 60.0

NEW = Health("new", None, 0, 0, 0, 0, 0, 0, 0, None, None)


class Watched(Protocol):
    """The methods of a subscription that an `Observation` uses."""

    def health(self) -> Health:
        """Return the current health. Thread-safe."""
        ...


@dataclass(frozen=True)
class Facts:
    """A subscription's observed health and activity. Times are in seconds since the epoch."""

    kind: SourceKind
    name: str
    """The topic, the channel, or the managed subscription's name or id."""
    since: float
    """When observation began."""
    health: Health = NEW
    turned_at: float | None = None
    """When the application's loop last called `Observation.turn`; None if it never did."""
    last_message_at: float | None = None
    """When the service last sent a message, including keepalives; None before the first message."""
    heard_at: float | None = None
    """When the service last sent a message, or the last time at which no message was expected. That
    is the case on a paused stream, on a stream that requests no events, and on a channel, whose
    keepalives are not visible.
    """
    last_commit_at: float | None = None
    """When the last commit was confirmed; None before the first commit."""
    acked_position: str | None = None
    """Position of the last acked event, in hexadecimal; None before the first ack."""
    acked_event_at: float | None = None
    """When the last acked event occurred; None if it has no timestamp."""
    acked_at: float | None = None
    """When the last acked event was acked; None before the first ack."""
    idle_at: float | None = None
    """The last time at which all received events were acked and the service had no further ones;
    None before the first such time.
    """
    schema_since: float | None = None
    """When events started waiting for a schema; None if none are waiting."""
    error: str | None = None
    """The error that ended the subscription; None if it has not failed."""

    @property
    def is_behind(self) -> bool:
        """Whether any received event is still unacked."""
        return self.health.pending_count + self.health.unacked > 0

    @property
    def position_at(self) -> float | None:
        """Event time (seconds since the epoch) up to which everything is acked; None if unknown."""
        known = [at for at in (self.acked_event_at, self.idle_at) if at is not None]
        return max(known, default=None)

    def lag(self, now: float) -> float | None:
        """Return how many seconds processing lags behind the events; None if unknown.

        Args:
            now: Seconds since the epoch.
        """
        if self.is_behind:
            return None if self.position_at is None else max(0.0, now - self.position_at)
        if self.acked_at is None or now - self.acked_at > RECENT:
            return None if self.last_message_at is None else 0.0
        event_at = self.acked_event_at
        return None if event_at is None else max(0.0, self.acked_at - event_at)


class Observation:
    """Observes one subscription. Thread-safe unless a method says otherwise.

    Args:
        kind: Kind of source: ``managed`` (a managed subscription), ``topic`` or ``channel``.
        name: Name of the source.
        clock: Returns the current time, in seconds since the epoch.
    """

    def __init__(
        self, kind: SourceKind, name: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._watched: Watched | None = None
        # The last ack: the response, the number of its events that are acked, and the time. Used
        # only by the loop's thread.
        self._acked: tuple[EventBatch, int, float] | None = None
        self._lock = threading.Lock()  # guards the fields below
        self._facts = Facts(kind, name, clock())

    def follow(self, subscription: Watched) -> None:
        """Start observing *subscription*."""
        self._watched = subscription
        self._note(since=self._clock())

    def acked(self, batch: EventBatch, events: int | None = None) -> None:
        """Record that the first *events* of *batch* were acked; None means all of them.

        Call this only from the thread of the loop that reads the subscription, as with `turn`.
        """
        self._acked = batch, len(batch) if events is None else events, self._clock()

    def turn(self) -> Facts:
        """Record an iteration of the loop that reads the subscription; return the updated facts.

        Call this about once a second, from the thread of that loop.
        """
        if self._acked is not None:
            batch, events, at = self._acked
            self._acked = None
            last = next(islice(batch, events - 1, None))
            event_at, position = _event_time(last), last.replay_id.hex()
            self._note(acked_at=at, acked_event_at=event_at, acked_position=position)
        self._note(turned_at=self._clock())
        return self.facts()

    def failed(self, error: BaseException) -> None:
        """Record the error with which the subscription failed."""
        self._note(error=" ".join(str(error).split()) or type(error).__name__)

    def facts(self) -> Facts:
        """Take a snapshot of the subscription's health, and return the updated facts."""
        watched = self._watched
        if watched is None:
            return self._facts
        health = watched.health()  # outside our lock, because it acquires another one
        with self._lock:
            seen, now = self._facts, self._clock()
            found = replace(seen, health=health)
            if health.responses != seen.health.responses:
                found = replace(found, last_message_at=now, heard_at=now)
            is_open = health.state == "streaming"
            if health.state == "paused" or (is_open and not health.outstanding):
                found = replace(found, heard_at=now)
            is_quiet = is_open and (health.caught_up or seen.kind == "channel")
            if health.committed is not None and health.committed != seen.health.committed:
                found = replace(found, last_commit_at=now)
            if is_quiet and not found.is_behind:
                found = replace(found, idle_at=now)
            waits = health.state == "waiting_for_schema"
            found = replace(found, schema_since=(seen.schema_since or now) if waits else None)
            self._facts = found
            return found

    def _note(self, **changes: object) -> None:
        with self._lock:
            self._facts = replace(self._facts, **changes)  # type: ignore[arg-type]  # field names


def _event_time(event: Event) -> float | None:
    try:
        time_ms = event.event_time
    except SfPubSubError:  # acked without decoding, as with --raw
        return None
    return None if time_ms is None else time_ms / 1000
