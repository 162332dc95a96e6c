"""Carries out the decisions of the `Consumer`, for synchronous and asyncio subscriptions.

`Delivery.turn` never blocks. `Delivery.carry_out` may block: a synchronous subscription calls it
directly, an asyncio subscription in a worker thread. Batches refer to this object and not to the
subscription, so that an unreferenced subscription can be detected.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.ack_watch import AckWatch
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.consumer import (
    Consumer,
    End,
    FetchSchemas,
    Hand,
    HandOut,
    Quarantine,
    Step,
    Store,
    Take,
    WaitUntil,
)
from sfpubsub.client.options import SubscribeOptions
from sfpubsub.client.undecodable import codec_of
from sfpubsub.config import Timings
from sfpubsub.errors import SfPubSubError
from sfpubsub.stores.quarantine import Quarantine as QuarantineStore
from sfpubsub.stores.quarantine import QuarantinedEvent
from sfpubsub.stores.replay_store import AnyStore, ReplayStore
from sfpubsub.transports.driver import StreamDriver
from sfpubsub.types import Health, ReplayId

logger = logging.getLogger("sfpubsub.client")


Work: TypeAlias = FetchSchemas | Quarantine | Take | Store


class Wait(NamedTuple):
    """Step: wait until something changes in the subscription or `seconds` have passed."""

    seconds: float | None
    """Maximum seconds to wait; None means no limit."""


class Delivery:
    """Carries out the steps that the `Consumer` of one subscription decides on. Thread-safe.

    Args:
        driver: Driver of the stream; the subscription starts it.
        schemas: Schema cache of the client.
        options: Options passed to `subscribe`.
        store: Stores positions; None if they are not stored.
        timings: Intervals, delays and timeouts; see `Timings`.
        datetimes: Whether `Event.value` returns ``DateTime`` fields as `datetime`.
        release: Removes the driver from the client; called once the subscription has ended.
        stores_on_ack: Whether the acking thread may store a due position. If not, only the
            iterating or draining thread does.
    """

    def __init__(
        self,
        driver: StreamDriver,
        schemas: SchemaCache,
        options: SubscribeOptions,
        *,
        store: AnyStore | None,
        timings: Timings,
        datetimes: bool,
        release: Callable[[], None],
        stores_on_ack: bool,
    ) -> None:
        self.driver = driver
        self.store = store
        self.is_tracked: bool = driver.target.managed or store is not None
        """Whether acks have an effect: the service or a store keeps the position."""
        self._schemas = schemas
        self._fields = options.fields
        self._quarantine = options.quarantine
        self.release = release
        """Removes the driver from the client, once it has ended."""
        self._stores_on_ack = stores_on_ack
        # Guards the consumer; held only briefly, and by no thread that the driver needs. Reentrant,
        # because a signal handler may call any method while its own thread holds it.
        self._lock = threading.RLock()
        # Positions are stored one by one, in order. Reentrant for the same reason.
        self._storing = threading.RLock()
        self._is_storing = False
        self._stores_last = False  # whether the last opportunity to store a position has come
        self._quarantining = threading.Lock()  # one call at a time
        self._unhandled = 0  # number of events quarantined because a handler failed
        self._paused = False  # by the application
        self._held = False  # by a run that has enough events
        self._has_taken = False  # whether a `Take` followed the application's last request
        # First and last event that the application is done with but that are not acked yet. They
        # are acked when the next response is taken, or before waiting for one.
        self._done: tuple[int, int] | None = None
        self._stopped = False
        self._watch = AckWatch(timings.unacked_warning)
        self._consumer = Consumer(
            driver.target,
            on_undecodable=options.on_undecodable,
            auto_ack=options.ack == "auto",
            peek=self._codec,
            ack=self.ack,
            timings=timings,
            datetimes=datetimes,
        )

    @property
    def acks_automatically(self) -> bool:
        """Whether requesting the next batch acks the previous one."""
        return self._consumer.acks_automatically

    @property
    def name(self) -> str:
        """The topic, or the managed subscription's name or id."""
        return self.driver.target.name

    @property
    def hand(self) -> Hand:
        """What the application was given last; set by the subscription."""
        return self._consumer.hand

    # For the thread or task that iterates.

    def asked(self) -> None:
        """Handle the application's request for the next batch.

        With ``ack="auto"``, this marks the previous batch as done. The batch is acked by the next
        call to `turn`. A caller that may block before that call must first call `ack_done`.
        """
        self._has_taken = False
        # Read and acked before `asked` resets it, so that an interrupted call can be repeated.
        done = self._in_hand
        if done is not None:
            self._done = done
        with self._lock:
            self._consumer.asked()

    def ack_done(self) -> None:
        """Ack the events that the application has finished processing, unless already acked."""
        if self._done is not None:
            self.driver.ack(*self._done)
            self._done = None

    def ack_in_hand(self) -> None:
        """With ``ack="auto"``, ack all events delivered to the application. Thread-safe."""
        for acked in (self._done, self._in_hand):
            if acked is not None:
                self.driver.ack(*acked)

    @property
    def _in_hand(self) -> tuple[int, int] | None:
        """First and last ``delivery_seq`` of the events that the next request for a batch will ack.

        None if it will ack no events.
        """
        return self._consumer.in_hand if self.acks_automatically and self.is_tracked else None

    def turn(self, deadline: float | None) -> EventBatch | Wait | Work | End | None:
        """Return the next batch, or a step that must be carried out first. Never blocks.

        Args:
            deadline: Time on the `time.monotonic()` clock at which the application stops waiting;
                None means never.

        Returns:
            The batch or step; None if the deadline has passed and no batch is ready.
        """
        step = self._step()
        if isinstance(step, HandOut):
            if step.arrival is None:
                self.ack_done()
            else:
                self.driver.accept(step.arrival, self._done)
                self._done = None
            if self.is_tracked and not self.acks_automatically:
                self._watch_acks(time.monotonic())
                self._watch.handed_out(time.monotonic())
            return step.batch
        self.ack_done()
        if isinstance(step, End):
            return step
        now = time.monotonic()
        is_late = deadline is not None and now >= deadline
        # All events of a response may have been set aside, and another response may follow.
        more = self._has_taken and not isinstance(step, Store)
        if is_late and (more or isinstance(step, WaitUntil)):
            return None
        if isinstance(step, WaitUntil):
            self._watch_acks(now)
            times = [at for at in (step.time, deadline, self._watch.due) if at is not None]
            return Wait(max(0.0, min(times) - now) if times else None)
        self._has_taken = self._has_taken or isinstance(step, Take)
        return step

    def _watch_acks(self, now: float) -> None:
        seconds = self._watch.warns(now)
        if seconds is not None:
            logger.warning(
                "%s: events were delivered, but none was acked for %.0f s, so the position does "
                "not advance: ack events once they are processed",
                self.name,
                seconds,
            )

    def _step(self) -> Step:
        driver = self.driver
        # Read before checking the queue, so that events before the end are taken first.
        over = driver.over
        head, now = driver.peek(), time.monotonic()
        with self._lock:
            if self.store is not None and self._consumer.needs_position(now, head):
                self.ack_done()
                self._note_storable()
            return self._consumer.next(
                now,
                head,
                over=over or self._stopped,
                discarded=self.discards,
            )

    def carry_out(self, step: Work) -> None:
        """Carry out one step. May block, except for `Take`.

        Raises:
            SfPubSubError: The step failed, and `turn` will return it again. A failure to fetch a
                schema is raised only if a retry would not help.
        """
        if isinstance(step, Take):
            for seq in step.acks:
                self.driver.ack(seq, seq)
            self.driver.accept(step.arrival)
        elif isinstance(step, FetchSchemas):
            self._fetch(step.schema_ids)
        elif isinstance(step, Quarantine):
            assert self._quarantine is not None  # noqa: S101  # checked with the options
            self._put(self._quarantine, step.events)
            with self._lock:
                self._consumer.set_aside()
        else:
            self.store_position()

    def _fetch(self, schema_ids: tuple[str, ...]) -> None:
        try:
            found = {name: codec_of(self._schemas, name) for name in schema_ids}
        except SfPubSubError as error:
            over = self.driver.over
            with self._lock:
                jitter = random.random()  # noqa: S311  # not a secret
                self._consumer.not_found(error, time.monotonic(), jitter, over=over)
        else:
            with self._lock:
                codecs = {name: self._reading(codec) for name, codec in found.items()}
                self._consumer.found(codecs)

    def _codec(self, schema_id: str) -> Codec | None:
        codec = self._schemas.peek(schema_id)
        return None if codec is None else self._reading(codec)

    def _reading(self, codec: Codec) -> Codec:
        """Return *codec*, restricted to the fields that the application requested."""
        return codec if self._fields is None else codec.only(self._fields)

    def pause(self) -> None:
        """Pause deliveries; see `SubscriptionFace.pause`."""
        self.driver.pause()
        self._set_paused(True)

    def resume(self) -> None:
        """After `pause`, resume deliveries and requests for events."""
        self._set_paused(False)
        self.driver.resume()

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        self._set_waiting()

    def _set_waiting(self) -> None:
        with self._lock:
            self._consumer.pause(self._paused or self._held)
        self.driver.wake()

    def stop(self) -> None:
        """Stop deliveries. Safe in signal handlers, because it does not wait for a lock."""
        self._stopped = True
        self.driver.wake()

    @property
    def discards(self) -> bool:
        """Whether received events are no longer delivered."""
        return self._stopped or self.driver.discarded

    # For a run of a handler.

    def begin_run(self) -> None:
        """Prepare for a run of a handler.

        From now on, the run acks events itself, and positions are stored only in the thread that
        requests batches.
        """
        self.asked()  # the current batch counts as done, as if the next one were requested
        with self._lock:
            self._consumer.acks_automatically = self._stores_on_ack = False

    def hold(self, held: bool) -> None:
        """Hold deliveries, or resume them if *held* is false. Events are still received."""
        self._held = held
        self._set_waiting()

    def quarantine(self, quarantine: QuarantineStore, event: QuarantinedEvent) -> None:
        """Durably store an event on which a handler failed. May block."""
        self._put(quarantine, [event])
        with self._lock:
            self._unhandled += 1

    def _put(self, quarantine: QuarantineStore, events: list[QuarantinedEvent]) -> None:
        with self._quarantining:
            quarantine.put(events)

    # Acks and positions.

    def ack(self, first_seq: int, last_seq: int) -> None:
        """Ack the events from *first_seq* to *last_seq*, inclusive. Thread-safe.

        This may also store the position, and block while doing so.
        """
        if not self.is_tracked:
            return  # no position is stored
        self._watch.acked()
        self.driver.ack(first_seq, last_seq)
        # Once it is over, the drain or the last read stores the position, which is then final. A
        # thread that waits for a batch is woken when the driver has noted the ack.
        if self._stores_on_ack and not self.driver.over and self._is_store_due():
            self.store_position()

    def _is_store_due(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if not self._consumer.may_store(now):
                return False
            self._note_storable()
            return self._consumer.is_store_due(now)

    def _note_storable(self) -> None:
        if self.store is not None:  # under the lock, so that no newer position is overwritten
            self.driver.catch_up()
            self._consumer.storable(self.driver.storable)

    def store_position(self, *, last: bool = False) -> None:
        """Store the newest acked position if storing is due. Does nothing for async stores.

        Args:
            last: Whether this is the last opportunity. If so, the position is stored even if
                storing is not due.
        """
        if not isinstance(self.store, ReplayStore):
            return
        if last:
            self._stores_last = True
        with self._storing:
            if self._is_storing:  # called by a signal handler that interrupted the call below
                return
            self._is_storing = True
            try:
                while (position := self.to_store(last=self._stores_last)) is not None:
                    self.store.set(self.name, position)
                    self.stored(position)
            finally:
                self._is_storing = False

    def to_store(self, *, last: bool = False) -> ReplayId | None:
        """Return the position to store now; None if no position needs to be stored yet."""
        with self._lock:
            self._note_storable()
            return self._consumer.to_store(time.monotonic(), last=last)

    def stored(self, position: ReplayId) -> None:
        """Record that *position* has been stored durably."""
        with self._lock:
            self._consumer.stored(position, time.monotonic())

    # For any thread.

    def health(self) -> Health:
        """Return a snapshot of the subscription's health."""
        health = self._consumer.health(
            self.driver.health(), self._schemas.mismatches, discarded=self.discards
        )
        return replace(health, quarantined=health.quarantined + self._unhandled)

    def abort(self) -> None:
        """Abort the subscription immediately."""
        self.driver.abort()
        self.release()
