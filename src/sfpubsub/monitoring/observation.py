"""What is known of one subscription over time: its health, and when what has happened.

A snapshot (`Health`) says how it is; when it last heard of the service, and when it last committed,
only somebody knows who looked before. The status file, the metrics, `/health`, the page and the
line on a terminal all read this.
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

# Seconds after the last ack for which its delay still says how far behind we are.
RECENT = 60.0

NEW = Health("new", None, 0, 0, 0, 0, 0, 0, 0, None, None)


class Watched(Protocol):
    """What is observed: a subscription."""

    def health(self) -> Health:
        """Return what it is doing. Thread-safe."""
        ...


@dataclass(frozen=True)
class Facts:
    """What is known of a subscription. Times are seconds since 1970 UTC."""

    kind: SourceKind
    name: str
    """Topic, channel, or name or id of the managed subscription."""
    since: float
    """Since when it is observed."""
    health: Health = NEW
    turned_at: float | None = None
    """When its loop last turned; None where it does not tell."""
    last_message_at: float | None = None
    """When the service last sent something, keepalives included."""
    heard_at: float | None = None
    """When the service last sent something, or nothing was expected of it: as it is of a paused
    stream, of one that asks for no events, and of a channel, whose keepalives nobody sees."""
    last_commit_at: float | None = None
    """When the last commit was confirmed."""
    acked_position: str | None = None
    """Of the last acked event, hexadecimal."""
    acked_event_at: float | None = None
    """When that event happened, where it says so."""
    acked_at: float | None = None
    """When it was acked."""
    idle_at: float | None = None
    """When there was last known to be nothing that is not acked, here or at the service."""
    schema_since: float | None = None
    """Since when events wait for a schema; None if none do."""
    error: str | None = None
    """What it failed with."""

    @property
    def is_behind(self) -> bool:
        """Whether events were received and are not acked."""
        return self.health.pending_count + self.health.unacked > 0

    @property
    def position_at(self) -> float | None:
        """Until when everything is acked, by the events' own time; None where nothing is known."""
        known = [at for at in (self.acked_event_at, self.idle_at) if at is not None]
        return max(known, default=None)

    def lag(self, now: float) -> float | None:
        """Return how many seconds we are behind the events; None where nothing is known."""
        if self.is_behind:
            return None if self.position_at is None else max(0.0, now - self.position_at)
        if self.acked_at is None or now - self.acked_at > RECENT:
            return None if self.last_message_at is None else 0.0
        event_at = self.acked_event_at
        return None if event_at is None else max(0.0, self.acked_at - event_at)


class Observation:
    """Observes one subscription. Thread-safe but for what says otherwise.

    Args:
        kind: Whether *name* is a managed subscription, a topic or a channel.
        name: What is read.
        clock: Seconds since 1970 UTC.
    """

    def __init__(
        self, kind: SourceKind, name: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._watched: Watched | None = None
        # How many events of which response were acked last, and when. Of the loop's thread alone.
        self._acked: tuple[EventBatch, int, float] | None = None
        self._lock = threading.Lock()  # guards what follows
        self._facts = Facts(kind, name, clock())

    def follow(self, subscription: Watched) -> None:
        """Observe *subscription* from now on."""
        self._watched = subscription
        self._note(since=self._clock())

    def acked(self, batch: EventBatch, events: int | None = None) -> None:
        """Note that the first *events* of *batch* were acked; all of them when None. Cheap.

        For the thread of the loop, as is `turn`.
        """
        self._acked = batch, len(batch) if events is None else events, self._clock()

    def turn(self) -> Facts:
        """Look, and note that the loop has turned; for its thread, about once a second."""
        if self._acked is not None:
            batch, events, at = self._acked
            self._acked = None
            last = next(islice(batch, events - 1, None))
            event_at, position = _event_time(last), last.replay_id.hex()
            self._note(acked_at=at, acked_event_at=event_at, acked_position=position)
        self._note(turned_at=self._clock())
        return self.look()

    def failed(self, error: BaseException) -> None:
        """Note that it has ended by a failure."""
        self._note(error=" ".join(str(error).split()) or type(error).__name__)

    def look(self) -> Facts:
        """Take a snapshot, and return what is known."""
        watched = self._watched
        if watched is None:
            return self._facts
        health = watched.health()  # outside the lock: it has one of its own
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
            self._facts = replace(self._facts, **changes)  # type: ignore[arg-type]  # named above


def _event_time(event: Event) -> float | None:
    try:
        time_ms = event.event_time
    except SfPubSubError:  # acked undecoded, as --raw does
        return None
    return None if time_ms is None else time_ms / 1000
