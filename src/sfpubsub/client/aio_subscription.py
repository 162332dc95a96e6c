"""Subscriptions as an asyncio application holds them.

As `sfpubsub.client.subscription`, over the same driver: where the sync face waits in the driver,
this one waits in the loop for the driver to ring. No method here blocks, and no await stands
between taking a batch and handing it out that could lose it: one that is taken and not handed out
is kept for the next call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, cast

from sfpubsub.avro.codec import Codec
from sfpubsub.client.aio_bridge import Bell, in_thread, settled
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.connection import Connection
from sfpubsub.client.replay_store import AsyncReplayStore, ReplayStore, is_async
from sfpubsub.client.subscription import COMMIT_TIMEOUT, AckMode, check_ack
from sfpubsub.client.undecodable import Screen, codec_of
from sfpubsub.errors import SfPubSubError
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.transports.grpc_driver import Arrival, StreamDriver
from sfpubsub.types import CommitReceipt, Health, Replay, ReplayId

logger = logging.getLogger("sfpubsub.client")

AnyStore: TypeAlias = ReplayStore | AsyncReplayStore
Codecs: TypeAlias = dict[str, Codec]
Self = TypeVar("Self", bound="AsyncSubscription")


class AsyncSubscription:
    """A plain subscription for asyncio: iterate over its batches. See `Subscription`.

    ::

        async with client.subscribe("/event/Order_Event__e") as subscription:
            async for batch in subscription:
                for event in batch:
                    print(event.value)

    Belongs to the loop it was made in, and iterating to one task of it; `ack` of events and
    batches, `health` and `abort` are for any thread. Leaving the ``async with`` block drains, also
    when the task is cancelled; a second cancellation aborts.
    """

    def __init__(
        self,
        driver: StreamDriver,
        connection: Connection,
        *,
        ack: AckMode,
        store: AnyStore | None,
        screen: Screen,
        submit: Callable[[Callable[[], Codecs]], Future[Codecs]],
        open_later: Callable[[Replay | None], StreamDriver] | None,
    ) -> None:
        check_ack(ack)
        self._driver = driver
        self._connection = connection
        self._auto = ack == "auto"
        self._store = store
        self._screen = screen
        self._submit = submit
        self._open_later = open_later  # until an async store has said where to start
        self._handed_out: EventBatch | None = None
        self._waiting: Arrival | None = None  # taken, but not ready: a schema is missing
        self._ready: deque[EventBatch] = deque()  # of one response, not yet handed out
        self._fetch: Future[Codecs] | None = None  # of the schemas of that one
        self._unstored: ReplayId | None = None  # a position that the store does not have yet
        self._storing = asyncio.Lock()  # a store gets one call at a time
        self._thread = threading.get_ident()  # the loop's
        self._bell = Bell()
        if open_later is None:
            self._start()

    @property
    def name(self) -> str:
        """Topic, or name or id of the managed subscription."""
        return self._driver.target.name

    def _start(self) -> None:
        self._driver.listen(self._bell.ring)
        self._driver.start()

    async def _start_by_store(self) -> None:
        if self._open_later is None:
            return
        async with self._storing:
            if self._open_later is None:  # another task was here while this one waited
                return
            if self._driver.over:
                return
            start = await _outcome(cast("AnyStore", self._store).get(self.name))
            if self._driver.over:  # aborted meanwhile
                return
            placeholder, self._driver = self._driver, self._open_later(start)
            self._open_later = None
            self._connection.release(placeholder)
            self._start()

    # Receiving.

    def __aiter__(self) -> AsyncIterator[EventBatch]:
        return self

    async def __anext__(self) -> EventBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Wait for the next batch; see `Subscription.next_batch`.

        Cancelling it loses nothing: the next call returns the batch. Other tasks get their turn
        with every call, also when batches come faster than they are handled.
        """
        deadline = self._bell.deadline(timeout)
        self._ack_handed_out()
        await asyncio.sleep(0)
        await self._start_by_store()
        while True:
            seen = self._bell.count
            await self._store_position()
            if self._ready:
                self._handed_out = self._ready.popleft()
                return self._handed_out
            over = self._driver.over  # before looking: what comes before the end is taken first
            if self._waiting is None:
                self._waiting = self._driver.poll()
            if self._waiting is not None:
                codecs = await self._codecs(self._waiting, deadline)
                if codecs is None:
                    return None
                if self._waiting is None:  # drained or aborted meanwhile
                    return None
                runs = self._screen.runs(self._waiting, self._driver.target, codecs, self._ack)
                self._waiting = None
                self._ready.extend(runs)
                if not self._ready:  # all of it was taken out, and there may be more behind it
                    await asyncio.sleep(0)
                    if self._bell.is_past(deadline):
                        return None
                continue
            if over or not await self._bell.until(partial(self._rung_since, seen), deadline):
                await self._store_position()
                return None

    def _rung_since(self, count: int) -> bool:
        return self._bell.count != count

    def _ack_handed_out(self) -> None:
        batch, self._handed_out = self._handed_out, None
        if batch is not None and self._auto:
            batch.ack()

    async def _codecs(self, arrival: Arrival, deadline: float | None) -> Codecs | None:
        # A schema that cannot be had for now must not cost an event: the batch waits for it.
        schemas = self._connection.schemas
        ids = {raw.schema_id for raw in arrival.batch.events}
        known = {name: codec for name in ids if (codec := schemas.peek(name)) is not None}
        if len(known) == len(ids):
            self._fetch = None  # of these, when it was given up for a time
            return known
        timings = self._connection.timings
        backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        while True:
            try:
                if self._fetch is None:
                    self._fetch = self._submit(
                        lambda: {name: codec_of(schemas, name) for name in ids}
                    )
                    self._fetch.add_done_callback(lambda _future: self._bell.ring())
                if not await self._bell.until(self._fetch.done, deadline):
                    return None  # the fetch goes on, for the next call
                fetch, self._fetch = self._fetch, None
                return fetch.result()
            except SfPubSubError as error:
                if self._driver.over:
                    self._driver.raise_failure()
                    return None
                if not error.retryable:
                    raise
                wait = backoff.next(random.random())  # noqa: S311  # jitter, not a secret
                logger.warning("%s; trying again in %.1f s", error, wait)
            again = cast("float", self._bell.deadline(wait))
            soon = again if deadline is None else min(again, deadline)
            if not await self._bell.until(lambda: self._driver.over, soon) and soon != again:
                return None

    # Acks and positions.

    def _ack(self, first_seq: int, last_seq: int) -> None:
        self._driver.ack(first_seq, last_seq)
        if self._store is None:
            return
        if threading.get_ident() == self._thread and not is_async(self._store):
            self._take_position()
            if self._unstored is not None:
                cast("ReplayStore", self._store).set(self.name, self._unstored)
                self._unstored = None
        else:
            self._bell.ring()  # whoever waits in next_batch stores it, or the next call

    def _take_position(self) -> None:
        position = self._driver.storable()
        if position is not None:
            self._unstored = position

    async def _store_position(self) -> None:
        if self._store is None:
            return
        async with self._storing:
            self._take_position()
            position = self._unstored
            if position is not None:
                await _outcome(self._store.set(self.name, position))
                if self._unstored is position:
                    self._unstored = None

    @property
    def pending_count(self) -> int:
        """Events received and not yet handed out."""
        return self.health().pending_count

    def health(self) -> Health:
        """Return a snapshot: state, counts, position, gaps."""
        return self._screen.health(self._driver.health(), self._connection.schemas)

    # The end.

    async def drain(self) -> None:
        """End in order; see `Subscription.drain`.

        Cancelling it stops the waiting and not the draining; `abort` does that.
        """
        self._driver.begin_drain()
        self._waiting = None
        self._ready.clear()
        await self._bell.until(lambda: self._driver.over)
        try:
            self._driver.raise_failure()
        finally:
            await self._store_position()
            self._connection.release(self._driver)

    def abort(self) -> None:
        """End now. What is acked and not committed comes again."""
        self._driver.abort()
        self._waiting = None
        self._ready.clear()
        self._connection.release(self._driver)

    async def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the threads of a subscription that has ended."""
        await in_thread("sfpubsub-aio-join", lambda: self._driver.join(timeout))

    async def __aenter__(self: Self) -> Self:
        await self._start_by_store()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.drain()
        except asyncio.CancelledError:
            self.abort()
            raise
        except SfPubSubError as error:
            if exc is None:
                raise
            if error is not exc:  # a second failure must not hide the first
                logger.warning("draining %s: %s", self.name, error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.health().state})"


class AsyncManagedSubscription(AsyncSubscription):
    """A managed subscription for asyncio: the service keeps the position.

    See `ManagedSubscription`.
    """

    async def commit(self, timeout: float = COMMIT_TIMEOUT) -> CommitReceipt:
        """Commit everything acked so far and wait for the answer.

        See `ManagedSubscription.commit`. Cancelling it stops the waiting and not the commit.
        """
        future = self._driver.begin_commit()
        try:
            await settled(future, timeout)
            if not future.done():
                raise self._driver.unconfirmed(timeout)
            return future.result()
        finally:
            future.cancel()  # nobody waits for it any more


async def _outcome(returned: Any) -> Any:
    # Of a store's method: the result itself, or a coroutine of an async store.
    return await returned if inspect.isawaitable(returned) else returned
