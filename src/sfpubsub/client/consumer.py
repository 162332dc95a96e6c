"""Decides how a received response is delivered to the application, for both clients.

No I/O, no clock, no threads. Whenever something has changed, the subscription calls
`Consumer.next`, carries out the step that it returns, reports the result, and calls it again:

========================  ==============================================  ======================
step                      what the subscription does                      what it reports
========================  ==============================================  ======================
`FetchSchemas`            fetches the schemas; may block                  `found` or `not_found`
`Quarantine`              stores the events durably; may block            `set_aside`
`Take`                    acks the undecodable events, and removes the    nothing
                          response from the queue
`Store`                   stores the result of `to_store`; may block      `stored`
`HandOut`                 removes the response from the queue if it is    `Consumer.hand`, as the
                          still there, and returns the batch              last thing
`WaitUntil`               waits for a change, or until `WaitUntil.time`   nothing
`End`                     reports that the subscription has ended         nothing
========================  ==============================================  ======================

A subscription that is interrupted (Ctrl-C, a cancelled task) before it has reported calls `next`
again and gets the same step, so every step may be carried out twice. A response stays at the head
of the queue until it is ready to be delivered, and a batch stays the next one until it is reported
as handed out. So an interruption at any line loses no events: whatever consists of several values
is completed first and then kept by one assignment.

An acked position is stored immediately if the application requests a batch and none is ready,
otherwise at most once per `Timings.store_interval`. After a crash, acked events that follow the
stored position are redelivered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from sfpubsub.avro.codec import Codec
from sfpubsub.backoff import Backoff
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.undecodable import OnUndecodable, Screen, Screened
from sfpubsub.config import Timings
from sfpubsub.errors import AuthenticationError, SfPubSubError
from sfpubsub.protocol.retries import is_final
from sfpubsub.stores.quarantine import QuarantinedEvent
from sfpubsub.transports.base import Target
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.types import Health, ReplayId

logger = logging.getLogger("sfpubsub.client")


class FetchSchemas(NamedTuple):
    """Step: fetch the schemas of the next response."""

    schema_ids: tuple[str, ...]


class Quarantine(NamedTuple):
    """Step: store undecodable events durably in the quarantine."""

    events: list[QuarantinedEvent]


class Take(NamedTuple):
    """Step: ack the quarantined or skipped events, and remove their response from the queue."""

    arrival: Arrival
    acks: tuple[int, ...]
    """``delivery_seq`` of each event to ack."""


class Store(NamedTuple):
    """Step: store the position that `Consumer.to_store` returns."""


class HandOut(NamedTuple):
    """Step: deliver the next batch to the application."""

    batch: EventBatch
    arrival: Arrival | None = None
    """The response, if it is still in the queue and must be removed first."""


class WaitUntil(NamedTuple):
    """Step: wait until something changes in the subscription or run, or until `time`."""

    time: float | None
    """When to stop waiting, on the monotonic clock; None means no limit."""


class End(NamedTuple):
    """Step: report that the subscription has ended and no more batches follow."""


Step: TypeAlias = FetchSchemas | Quarantine | Take | Store | HandOut | WaitUntil | End

_STORE, _FOR_EVER, _END = Store(), WaitUntil(None), End()


class Opened:
    """A batch whose events are handed out one by one."""

    __slots__ = ("batch", "last")

    def __init__(self, batch: EventBatch) -> None:
        self.batch: EventBatch = batch
        self.last: int = batch.first_seq - 1
        """``delivery_seq`` of the last event that was handed out."""


class Hand:
    """What the application was given last, until it requests the next batch.

    The subscription sets `given` just before the call returns that gives the batch to the
    application. Between this assignment and the return, the interpreter does not look for signals.
    """

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given: EventBatch | Opened | None = None


class _Head:
    """The response at the head of the queue, while it is being prepared."""

    __slots__ = ("arrival", "codecs", "is_set_aside", "missing", "screened")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.codecs: dict[str, Codec] = {}  # of its events, by schema id
        # Schema ids of its events that have no codec yet.
        self.missing: tuple[str, ...] = tuple({raw.schema_id for raw in arrival.batch.events})
        self.screened: Screened | None = None  # once all codecs are known
        self.is_set_aside = False  # whether its undecodable events are durable


class _Prepared(NamedTuple):
    """A response that is ready for delivery, and those of its batches not yet handed out."""

    arrival: Arrival | None
    acks: tuple[int, ...]
    batches: deque[EventBatch]


class Consumer:
    """Decides what one subscription does with the responses it receives. Not thread-safe.

    Args:
        target: The topic or managed subscription.
        on_undecodable: The policy for events that cannot be decoded.
        auto_ack: Whether requesting the next batch acks the previous one.
        peek: Returns the codec for a schema id, or None if it is not cached; never blocks.
        ack: Called by batches to ack, with the first and the last ``delivery_seq``.
        timings: Timings of retries and of storing positions.
        datetimes: Whether `Event.value` returns ``DateTime`` fields as `datetime`.
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
        self.acks_automatically = auto_ack
        """Whether requesting the next batch acks the previous one."""
        self.hand: Hand = Hand()
        """What the application was given last; set by the subscription."""
        self._peek = peek
        self._screen = Screen(target, on_undecodable, ack, datetimes=datetimes)
        self._head: _Head | None = None
        self._prepared = _Prepared(None, (), deque())  # the last response that was prepared
        self._schema_backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._schema_due = 0.0  # when to retry after a schema could not be fetched
        self._schema_error: str | None = None
        # Since when each failure of a fetch has been one that may not be temporary.
        self._schema_doubt: float | None = None
        self._patience = timings.session_budget
        self._paused = False
        self._seen: ReplayId | None = None  # the last position that `storable` was given
        self._unstored: ReplayId | None = None
        self._store_interval = timings.store_interval
        self._store_due = float("-inf")
        self._store_when_idle = False  # whether the application is waiting for a batch

    # Inputs.

    @property
    def in_hand(self) -> tuple[int, int] | None:
        """First and last ``delivery_seq`` of the events last handed out to the application."""
        given = self.hand.given
        if given is None:
            return None
        if isinstance(given, Opened):
            return (given.last, given.last) if given.last >= given.batch.first_seq else None
        return given.first_seq, given.first_seq + len(given) - 1

    def asked(self) -> None:
        """Handle the application's request for the next batch.

        This resets `in_hand`, so a caller that has yet to ack the previous batch must read
        `in_hand` first. The events of an `Opened` batch that were not handed out come next.
        """
        given = self.hand.given
        if given is not None:
            batch, rest = (
                (given.batch, given.batch.behind(given.last))
                if isinstance(given, Opened)
                else (given, None)
            )
            ready = self._prepared.batches
            if ready and ready[0] is batch:
                if rest is None:
                    ready.popleft()
                else:
                    ready[0] = rest
            self.hand.given = None
        self._store_when_idle = True

    def found(self, codecs: dict[str, Codec]) -> None:
        """Add the codecs of fetched schemas, by schema id."""
        if self._head is None:
            raise AssertionError("no response needs a schema")
        self._head.codecs.update(codecs)

    def not_found(self, error: SfPubSubError, now: float, jitter: float, *, over: bool) -> None:
        """Handle a failure to fetch a schema.

        A temporary failure must not lose events, so the response that needs the schema waits. The
        service has let the stream in, so a failure to sign in, or one of which neither the service
        nor the login host named the cause, counts as temporary for `Timings.session_budget`.

        Args:
            error: The error that the fetch raised.
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
            over: Whether the subscription has ended. *error* is then neither raised nor logged,
                because the reason for the end is reported instead.

        Raises:
            SfPubSubError: *error* itself, if a retry would not help.
        """
        if error.retryable and not isinstance(error, AuthenticationError):
            self._schema_doubt = None
        elif self._schema_doubt is None:
            self._schema_doubt = now
        is_late = self._schema_doubt is not None and now - self._schema_doubt >= self._patience
        if (is_final(error) or is_late) and not over:
            self._schema_doubt = None
            raise error
        wait = self._schema_backoff.next(jitter)
        self._schema_due = now + wait
        self._schema_error = str(error)
        if not over:
            logger.warning("%s; retrying in %.1f s", error, wait)

    def set_aside(self) -> None:
        """Record that the events of the preceding `Quarantine` step have been stored durably."""
        if self._head is None:
            raise AssertionError("no response has undecodable events")
        self._head.is_set_aside = True

    def pause(self, paused: bool) -> None:
        """Set whether deliveries are paused."""
        self._paused = paused

    # Positions.

    def storable(self, position: ReplayId | None) -> None:
        """Set the position to store next: the newest one up to which all events are acked.

        A position that is given again is not stored again.
        """
        if position is not None and position is not self._seen:
            self._unstored = position
            self._seen = position

    def may_store(self, now: float) -> bool:
        """Return whether the store interval has passed, so that a new position would be stored."""
        return now >= self._store_due

    def is_store_due(self, now: float) -> bool:
        """Return whether the acked position is due to be stored."""
        return self._unstored is not None and self.may_store(now)

    def to_store(self, now: float, *, last: bool = False) -> ReplayId | None:
        """Return the position to store now; None if no position needs to be stored yet.

        Args:
            now: The current time, in seconds.
            last: Whether this is the last opportunity to store a position, so that even one that is
                not due is returned.
        """
        return self._unstored if last or self._store_when_idle or self.is_store_due(now) else None

    def needs_position(self, now: float, head: Arrival | None) -> bool:
        """Return whether `next` must know the newest position, because it may store it.

        While there is something to hand out, a position is stored only once per interval.
        """
        return self.may_store(now) or (head is None and not self._prepared.batches)

    def stored(self, position: ReplayId, now: float) -> None:
        """Record that *position* has been stored durably, and restart the store interval.

        After this, `to_store` does not return *position* again.
        """
        if self._unstored == position:
            self._unstored = None
        self._store_due = now + self._store_interval

    # Decisions.

    def next(self, now: float, head: Arrival | None, *, over: bool, discarded: bool) -> Step:
        """Decide what the subscription does next, and return it as a step.

        Args:
            now: The current time, in seconds.
            head: The first response in the queue; None if the queue is empty.
            over: Whether the subscription had ended before *head* was read from the queue.
            discarded: Whether received events should no longer be delivered.
        """
        if discarded:
            self._prepared.batches.clear()
            return _END if over else _FOR_EVER  # the outcome is known only at the end
        prepared = self._prepared
        # Still in the queue if the delivery was interrupted before the response was removed.
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
        return HandOut(self._prepared.batches[0], arrival)

    def _wait(self) -> WaitUntil:
        return _FOR_EVER if self._unstored is None else WaitUntil(self._store_due)

    def _prepare(self, arrival: Arrival, now: float, over: bool) -> Step:
        head = self._head
        if head is None or arrival is not head.arrival:
            self._head = head = _Head(arrival)
        if head.missing and not self._has_codecs(head):
            if now < self._schema_due:
                return _END if over else WaitUntil(self._schema_due)
            return FetchSchemas(head.missing)
        if head.screened is None:
            head.screened = self._screen.sort(arrival, head.codecs)
        screened = head.screened
        if screened.undecodable and self._screen.keeps and not head.is_set_aside:
            return Quarantine(screened.undecodable)
        acks: tuple[int, ...] = ()
        if screened.undecodable:
            self._screen.count(screened.undecodable)
            acks = tuple([event.delivery_seq for event in screened.undecodable])
        self._prepared = _Prepared(arrival, acks, deque(screened.batches))
        return Take(arrival, acks) if acks else self._hand_out(arrival)

    def _has_codecs(self, head: _Head) -> bool:
        missing: list[str] = []
        for schema_id in head.missing:
            codec = head.codecs.get(schema_id) or self._peek(schema_id)
            if codec is None:
                missing.append(schema_id)
            else:
                head.codecs[schema_id] = codec
        head.missing = tuple(missing)
        if missing:
            return False
        if self._schema_error is not None:
            self._schema_backoff.reset()
            self._schema_error = self._schema_doubt = None
        return True

    def health(self, health: Health, mismatches: int, *, discarded: bool) -> Health:
        """Return the driver's health snapshot, completed with the consumer's state and counts.

        Args:
            health: The driver's snapshot.
            mismatches: Number of schema ids that are not the hash of their schema.
            discarded: Whether received events should no longer be delivered.
        """
        if self._schema_error is not None and health.state == "streaming":
            reason = f"events are waiting for a schema that cannot be fetched: {self._schema_error}"
            health = replace(health, state="waiting_for_schema", reason=reason)
        given = self.hand.given
        waiting = [each for each in list(self._prepared.batches) if each is not given]
        return replace(
            health,
            pending_count=0 if discarded else health.pending_count + sum(map(len, waiting)),
            quarantined=self._screen.quarantined,
            skipped=self._screen.skipped,
            details={**health.details, "schema_id_mismatches": mismatches},
        )
