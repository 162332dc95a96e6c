"""Subscriptions as the application holds them: iterate, ack, commit, drain.

The stream, credit, commits and reconnects are the driver's business; here batches get their
schemas, undecodable events are taken out, and stores get their positions, all in the thread that
iterates or acks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Literal, TypeVar

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.replay_store import ReplayStore
from sfpubsub.client.undecodable import Screen, codec_of
from sfpubsub.config import Timings
from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.transports.grpc_driver import Arrival, StreamDriver
from sfpubsub.types import CommitReceipt, Health, ReplayId

logger = logging.getLogger("sfpubsub.client")

AckMode = Literal["auto", "manual"]
Self = TypeVar("Self", bound="Subscription")

# How long `commit` waits for its answer, in seconds: the time after which an answer counts as
# lost, and one more try.
COMMIT_TIMEOUT = 60.0


def check_ack(ack: str) -> None:
    """Refuse a way of acking that there is not.

    Raises:
        ConfigurationError: *ack* is neither ``auto`` nor ``manual``.
    """
    if ack not in ("auto", "manual"):
        raise ConfigurationError(f"ack is 'auto' or 'manual', not {ack!r}")


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


class Subscription:
    """A plain subscription: iterate over its batches.

    ::

        with client.subscribe("/event/Order_Event__e") as subscription:
            for batch in subscription:
                for event in batch:
                    print(event.value)

    Iterating is for one thread; `ack` of events and batches, `health`, `drain` and `abort` are for
    any thread. Leaving the ``with`` block drains.
    """

    def __init__(
        self,
        driver: StreamDriver,
        schemas: SchemaCache,
        *,
        ack: AckMode,
        store: ReplayStore | None,
        screen: Screen,
        timings: Timings,
        on_close: Callable[[StreamDriver], None],
    ) -> None:
        self._driver = driver
        self._target = driver.target
        self._schemas = schemas
        self._auto = ack == "auto"
        self._store = store
        self._screen = screen
        self._timings = timings
        self._on_close = on_close
        self._handed_out: EventBatch | None = None
        self._ready: deque[EventBatch] = deque()  # of one response, not yet handed out
        self._prepared: Arrival | None = None  # what these are of, while it may not be accepted
        self._schema_backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._schema_due = 0.0  # no schema that could not be had is asked for before
        self._unstored: ReplayId | None = None  # a position that the store does not have yet
        self._storing = threading.Lock()  # positions reach the store one by one, in their order
        driver.start()

    @property
    def name(self) -> str:
        """Topic, or name or id of the managed subscription."""
        return self._target.name

    # Receiving.

    def __iter__(self) -> Iterator[EventBatch]:
        return self

    def __next__(self) -> EventBatch:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Wait for the next batch. With ``ack="auto"`` this acks the one before.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            Consecutive events of one response: all of them, unless ``on_undecodable`` took some
            out. None after the timeout, and after the subscription was drained or aborted.

        Raises:
            WriteError: The quarantine could not be written; the next call tries again.
            SfPubSubError: The subscription failed; everything received before was handed out.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._ack_handed_out()
        while True:
            self._store_position()
            if self._ready:
                return self._hand_out()
            over = self._driver.over  # before looking: what comes before the end is taken first
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            arrival = self._driver.wait(rest)
            if arrival is not None:
                if not self._prepare(arrival, deadline):
                    return None
                if self._ready or not _is_past(deadline):
                    continue  # if all of it was taken out, there may be more behind it
            # A plain None may be a wake-up to store a keepalive's position.
            if over or _is_past(deadline):
                self._store_position()
                return None

    def _ack_handed_out(self) -> None:
        batch, self._handed_out = self._handed_out, None
        if batch is not None and self._auto:
            batch.ack()

    def _prepare(self, arrival: Arrival, deadline: float | None) -> bool:
        # Ready first, accepted then: Ctrl-C between the two costs nothing.
        codecs = self._codecs({raw.schema_id for raw in arrival.batch.events}, deadline)
        if codecs is None:
            if self._driver.over:
                self._driver.raise_failure()
            return False
        runs = self._screen.runs(arrival, self._target, codecs, self._ack)
        self._prepared = arrival
        self._ready.extend(runs)
        if not self._driver.accept(arrival):
            self._ready.clear()  # discarded meanwhile, by a drain in another thread
        self._prepared = None
        return True

    def _hand_out(self) -> EventBatch | None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._driver.accept(prepared)  # again, where the first time was interrupted
        with suppress(IndexError):  # drained or aborted by another thread just now
            self._handed_out = self._ready.popleft()
            return self._handed_out
        return None

    def _codecs(self, schema_ids: set[str], deadline: float | None) -> dict[str, Codec] | None:
        # A schema that cannot be had for now must not cost an event: the batch waits for it.
        while True:
            wait = self._schema_due - time.monotonic()
            if deadline is not None and wait > deadline - time.monotonic():
                self._driver.wait_until_over(max(0.0, deadline - time.monotonic()))
                return None
            if wait > 0 and self._driver.wait_until_over(wait):
                return None
            try:
                codecs = {name: codec_of(self._schemas, name) for name in schema_ids}
            except SfPubSubError as error:
                if self._driver.over:
                    return None
                if not error.retryable:
                    raise
                wait = self._schema_backoff.next(random.random())  # noqa: S311  # jitter
                self._schema_due = time.monotonic() + wait
                logger.warning("%s; trying again in %.1f s", error, wait)
            else:
                self._schema_backoff.reset()
                return codecs

    # Acks and positions.

    def _ack(self, first_seq: int, last_seq: int) -> None:
        self._driver.ack(first_seq, last_seq)
        self._store_position()

    def _store_position(self) -> None:
        if self._store is None:
            return
        with self._storing:
            position = self._driver.storable()
            if position is not None:
                self._unstored = position
            if self._unstored is not None:
                self._store.set(self._target.name, self._unstored)
                self._unstored = None  # only now: a store that failed is asked again

    @property
    def pending_count(self) -> int:
        """Events received and not yet handed out."""
        return self.health().pending_count

    def health(self) -> Health:
        """Return a snapshot: state, counts, position, gaps."""
        return self._screen.health(self._driver.health(), self._schemas)

    # The end.

    def drain(self) -> None:
        """End in order: nothing more is taken, what is acked is committed and confirmed.

        Events received and not acked come again next time.

        Raises:
            CommitError: Acked events could not be committed; they come again.
            SfPubSubError: The subscription had failed.
        """
        try:
            self._driver.drain()
        except SfPubSubError:
            raise
        except BaseException:  # Ctrl-C: the second one ends at once
            self._driver.abort()
            raise
        finally:
            self._ready.clear()
            try:
                self._store_position()
            finally:
                self._on_close(self._driver)

    def abort(self) -> None:
        """End now. What is acked and not committed comes again."""
        self._driver.abort()
        self._ready.clear()
        self._on_close(self._driver)

    def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the threads of a subscription that has ended."""
        self._driver.join(timeout)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.drain()
        except Exception as error:
            if exc is None:
                raise
            if error is not exc:  # a second failure must not hide the first
                logger.warning("draining %s: %s", self.name, error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.health().state})"


class ManagedSubscription(Subscription):
    """A managed subscription: the service keeps the position, and it moves by commits.

    Acked events are committed by themselves, the newest acked prefix at a time; `commit` waits for
    the service's word.
    """

    def commit(self, timeout: float = COMMIT_TIMEOUT) -> CommitReceipt:
        """Commit everything acked so far and wait for the answer.

        Args:
            timeout: Seconds.

        Raises:
            CommitError: It was refused, or not answered in time; its events come again.
            LocalProtocolError: Nothing was acked yet, or the subscription is closed.
        """
        return self._driver.commit(timeout)
