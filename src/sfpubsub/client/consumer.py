"""Decides how a received response is delivered to the application, for both clients.

No I/O, no clock, no threads. After anything has happened the face asks `Consumer.next` what to do,
does it, reports back, and asks again:

========================  ==============================================  ======================
answer                    what the face does                              what it reports
========================  ==============================================  ======================
`FetchSchemas`            fetches them; may wait                          `found` or `not_found`
`Quarantine`              makes the events durable; may wait              `set_aside`
`Take`                    acks what was set aside, takes the response     nothing
                          off the queue; there may be nothing left of it
`Store`                   stores what `to_store` answers; may wait        `stored`
`HandOut`                 takes its response off the queue if that is     `interrupted`, if so
                          still there, returns the batch
`WaitUntil`               waits for news, until that time at most         nothing
`End`                     says that the subscription is over              nothing
========================  ==============================================  ======================

A face that is interrupted (Ctrl-C, a cancelled task) before it has reported asks again and gets
the same answer, so everything may be carried out twice. A response stays at the head
of the queue until it is ready to be delivered, so nothing is lost in between.

Positions are stored together: at once when the application asks for more and there is nothing to
deliver, otherwise at most every `Timings.store_interval`. After a crash the events that were acked
since then come again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.undecodable import OnUndecodable, Screen, Screened
from sfpubsub.config import Timings
from sfpubsub.errors import SfPubSubError
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.stores.quarantine import QuarantinedEvent
from sfpubsub.transports.base import Target
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.types import Health, ReplayId

logger = logging.getLogger("sfpubsub.client")


class FetchSchemas(NamedTuple):
    """Fetch the schemas of the next response."""

    schema_ids: tuple[str, ...]


class Quarantine(NamedTuple):
    """Make these events durable: they cannot be decoded."""

    events: list[QuarantinedEvent]


class Take(NamedTuple):
    """Ack the quarantined or skipped events, and take their response off the queue."""

    arrival: Arrival
    acks: tuple[int, ...]
    """``delivery_seq`` of each event."""


class Store(NamedTuple):
    """Store the position that `Consumer.to_store` returns."""


class HandOut(NamedTuple):
    """Deliver the next batch to the application."""

    batch: EventBatch
    arrival: Arrival | None = None
    """The response, if it is still in the queue and must be removed first."""


class WaitUntil(NamedTuple):
    """Wait until something changes."""

    time: float | None
    """The latest time; None means no limit."""


class End(NamedTuple):
    """The end: no more batches follow."""


Step: TypeAlias = FetchSchemas | Quarantine | Take | Store | HandOut | WaitUntil | End

_STORE, _FOR_EVER, _END = Store(), WaitUntil(None), End()


class _Prepared(NamedTuple):
    """A response that is ready, and its batches that are not yet delivered."""

    arrival: Arrival | None
    acks: tuple[int, ...]
    batches: deque[EventBatch]


class Consumer:
    """Makes the decisions about one subscription's deliveries. Not thread-safe.

    Args:
        target: The topic or managed subscription.
        on_undecodable: The policy for events that cannot be decoded.
        auto_ack: Whether requesting the next batch acks the previous one.
        peek: Returns the codec of a schema id if it is known; never blocks.
        ack: Called by batches to ack, with the first and the last ``delivery_seq``.
        timings: Timings of retries and of storing positions.
        datetimes: Whether `Event.value` gives dates with a time as `datetime`.
    """

    def __init__(
        self,
        target: Target,
        *,
        on_undecodable: OnUndecodable,
        auto_ack: bool,
        peek: Callable[[str], Codec | None],
        ack: Callable[[int, int], None],
        timings: Timings,
        datetimes: bool = False,
    ) -> None:
        self.acks_by_itself = auto_ack
        """Whether requesting the next batch acks the previous one."""
        self._peek = peek
        self._screen = Screen(target, on_undecodable, ack, datetimes=datetimes)
        self._head: Arrival | None = None  # the response that is being prepared
        self._codecs: dict[str, Codec] = {}  # of that one
        self._missing: tuple[str, ...] = ()  # schema ids of that one
        self._screened: Screened | None = None  # that one, once it has its codecs
        self._is_set_aside = False  # its events that cannot be decoded are durable
        self._prepared = _Prepared(None, (), deque())  # the last one that was
        self._given: EventBatch | None = None  # the batch that was delivered last
        self.in_hand: tuple[int, int] | None = None
        """First and last ``delivery_seq`` of the events last delivered to the application."""
        self._schema_backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._schema_due = 0.0  # no schema that could not be fetched is asked for before
        self._schema_error: str | None = None
        self._paused = False
        self._unstored: ReplayId | None = None
        self._store_interval = timings.store_interval
        self._store_due = float("-inf")
        self._store_when_idle = False  # the application has asked for more since the last time

    # What happens.

    def asked(self) -> None:
        """Handle the application's request for the next batch. The previous one must be acked."""
        self._given = self.in_hand = None
        self._store_when_idle = True

    def took_one(self, seq: int) -> None:
        """Record that only one event of the last batch was delivered so far."""
        self.in_hand = (seq, seq)

    def give_back(self, batch: EventBatch | None) -> None:
        """Take back the undelivered part of the last batch, to deliver it next."""
        if batch is not None:
            self._prepared.batches.appendleft(batch)

    def interrupted(self) -> None:
        """Take back a batch whose delivery to the application was interrupted."""
        batch, self._given, self.in_hand = self._given, None, None
        ready = self._prepared.batches
        if not (ready and ready[0] is batch):
            self.give_back(batch)

    def found(self, codecs: dict[str, Codec]) -> None:
        """Add codecs of fetched schemas."""
        self._codecs.update(codecs)

    def not_found(self, error: SfPubSubError, now: float, jitter: float, *, over: bool) -> None:
        """Handle a failure to fetch a schema.

        A temporary failure must not lose events, so the response waits for the schema.

        Args:
            error: The error.
            now: The time.
            jitter: A uniform random number in [0, 1).
            over: Whether the subscription has ended, which then is the more relevant error.

        Raises:
            SfPubSubError: *error*, if a retry would not help.
        """
        if not error.retryable and not over:
            raise error
        wait = self._schema_backoff.next(jitter)
        self._schema_due = now + wait
        self._schema_error = str(error)
        if not over:
            logger.warning("%s; retrying in %.1f s", error, wait)

    def set_aside(self) -> None:
        """Record that the events of the last `Quarantine` step are durable."""
        self._is_set_aside = True

    def pause(self, paused: bool) -> None:
        """Set whether deliveries are paused."""
        self._paused = paused

    # Positions.

    def storable(self, position: ReplayId | None) -> None:
        """Record the newest position up to which everything is acked; None if it is unchanged."""
        if position is not None:
            self._unstored = position

    def is_store_due(self, now: float) -> bool:
        """Return whether the acked position is due to be stored."""
        return self._unstored is not None and now >= self._store_due

    def to_store(self, now: float, *, last: bool = False) -> ReplayId | None:
        """Return the position to store now, or None.

        Args:
            now: The time.
            last: Whether this is the last opportunity.
        """
        return self._unstored if last or self._store_when_idle or self.is_store_due(now) else None

    def stored(self, position: ReplayId, now: float) -> None:
        """Record that *position* is durable. A position that was not stored is returned again."""
        if self._unstored == position:
            self._unstored = None
        self._store_due = now + self._store_interval

    # What to do.

    def next(self, now: float, head: Arrival | None, *, over: bool, discarded: bool) -> Step:
        """Return what to do next.

        Args:
            now: The time.
            head: The first response in the queue.
            over: Whether the subscription had ended before *head* was looked at.
            discarded: Whether received events should no longer be delivered.
        """
        if discarded:
            self._prepared.batches.clear()
            return _END if over else _FOR_EVER  # the outcome is not known earlier
        prepared = self._prepared
        # Interrupted before it was off the queue.
        queued = head if head is not None and head is prepared.arrival else None
        if queued is not None and (prepared.acks or not prepared.batches):
            return Take(queued, prepared.acks)
        if self.is_store_due(now):
            return _STORE
        if self._paused and not over:
            return self._wait()
        if prepared.batches:
            return self._hand_out(queued)
        if head is not None:
            return self._prepare(head, now, over)
        if self._unstored is not None and (over or self._store_when_idle):
            self._store_when_idle = True
            return _STORE
        self._store_when_idle = False
        return _END if over else self._wait()

    def _hand_out(self, arrival: Arrival | None) -> HandOut:
        self._store_when_idle = False
        # Noted first: an interruption in between leaves it in both places, and in neither would
        # lose it.
        self._given = batch = self._prepared.batches[0]
        self._prepared.batches.popleft()
        self.in_hand = (batch.first_seq, batch.first_seq + len(batch) - 1)
        return HandOut(batch, arrival)

    def _wait(self) -> WaitUntil:
        return _FOR_EVER if self._unstored is None else WaitUntil(self._store_due)

    def _prepare(self, head: Arrival, now: float, over: bool) -> Step:
        if head is not self._head:
            self._head, self._screened, self._is_set_aside, self._codecs = head, None, False, {}
            self._missing = tuple({raw.schema_id for raw in head.batch.events})
        if self._missing and not self._has_codecs():
            if now < self._schema_due:
                return _END if over else WaitUntil(self._schema_due)
            return FetchSchemas(self._missing)
        if self._screened is None:
            self._screened = self._screen.sort(head, self._codecs)
        screened = self._screened
        if screened.undecodable and self._screen.keeps and not self._is_set_aside:
            return Quarantine(screened.undecodable)
        acks: tuple[int, ...] = ()
        if screened.undecodable:
            self._screen.count(screened.undecodable)
            acks = tuple([event.delivery_seq for event in screened.undecodable])
        # In one assignment: an interruption half-way would lose a batch, or deliver it twice.
        self._prepared = _Prepared(head, acks, deque(screened.batches))
        return Take(head, acks) if acks else self._hand_out(head)

    def _has_codecs(self) -> bool:
        missing: list[str] = []
        for schema_id in self._missing:
            codec = self._codecs.get(schema_id) or self._peek(schema_id)
            if codec is None:
                missing.append(schema_id)
            else:
                self._codecs[schema_id] = codec
        self._missing = tuple(missing)
        if missing:
            return False
        if self._schema_error is not None:
            self._schema_backoff.reset()
            self._schema_error = None
        return True

    def health(self, health: Health, mismatches: int, *, discarded: bool) -> Health:
        """Return the driver's health snapshot, completed with this object's information.

        Args:
            health: Health of the driver.
            mismatches: Number of schema ids that are not the hash of their schema.
            discarded: Whether received events should no longer be delivered.
        """
        if self._schema_error is not None and health.state == "streaming":
            reason = f"events are waiting for a schema that cannot be fetched: {self._schema_error}"
            health = replace(health, state="waiting_for_schema", reason=reason)
        return replace(
            health,
            pending_count=0
            if discarded
            else health.pending_count + sum(map(len, self._prepared.batches)),
            quarantined=self._screen.quarantined,
            skipped=self._screen.skipped,
            details={**health.details, "schema_id_mismatches": mismatches},
        )
