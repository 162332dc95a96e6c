"""The asyncio client of the Streaming API. It never blocks the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from inspect import isawaitable
from itertools import islice
from typing import Any, cast

from sfpubsub.aio_bridge import Bell, in_thread, next_turn, settled
from sfpubsub.stores.replay_store import AnyStore
from sfpubsub.streaming.base import Operation, Store, StreamingBase, Wait
from sfpubsub.streaming.bayeux import StreamingMessage
from sfpubsub.streaming.positions import ReplayStart, as_replay_id

# Iteration lets other tasks of the loop run after this many messages that were already queued. They
# take a few tenths of a millisecond; letting others run costs as much as a dozen messages.
_TURN = 200


class AsyncStreamingClient(StreamingBase):
    """The asyncio version of `StreamingClient`: the same arguments, methods and errors.

    Use it in one event loop. The replay store may be an `AsyncReplayStore`; a store that can block,
    such as a file, is called in a worker thread.
    """

    _AWAITS = True

    async def open(self) -> None:
        """Sign in and connect, like `StreamingClient.open`. Cancelling closes the client."""
        self._check_process()
        bell = Bell()
        opening = self._opening(bell.ring)
        self._bell = bell
        await self._wait_for(opening)

    async def close(self) -> None:
        """Disconnect, like `StreamingClient.close`."""
        await in_thread("sfpubsub-close", self._driver.close)

    async def subscribe(self, channel: str, replay: ReplayStart | None = None) -> None:
        """Subscribe to a channel, like `StreamingClient.subscribe`.

        If the call is cancelled, the client unsubscribes from the channel again.
        """
        self._check_process()
        store = self.replay_store if replay is None else None
        stored = None if store is None else await self._call_store(partial(store.get, channel))
        await self._wait_for(self._subscribing(channel, replay, stored))

    async def unsubscribe(self, channel: str) -> None:
        """Unsubscribe from a channel, like `StreamingClient.unsubscribe`."""
        await self._wait_for(self._unsubscribing(channel))

    async def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message, like `StreamingClient.receive`. Cancelling loses no message."""
        await next_turn()  # before a message is taken, because this may be cancelled
        return self._received(await self._next(self._deadline(timeout)))

    async def ack(self, message: StreamingMessage) -> None:
        """Ack a message, like `StreamingClient.ack`."""
        store = self._acking(message)
        if store is not None:
            await self._store(store)

    @asynccontextmanager
    async def handling(self, message: StreamingMessage) -> AsyncIterator[StreamingMessage]:
        """Yield *message*, and ack it when the ``async with`` block ends without an exception."""
        yield message
        await self.ack(message)

    async def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST, like `StreamingClient.push`. Runs in a thread."""
        self._check_process()
        push = partial(self._channels.push, channel, payload, user_ids)
        return await in_thread("sfpubsub-push", push)

    async def __aiter__(self) -> AsyncIterator[StreamingMessage]:
        while (message := await self._next(None)) is not None:
            yield message
            for message in islice(self._already_queued(), _TURN):
                yield message
            await next_turn()

    async def __aenter__(self) -> AsyncStreamingClient:
        await self.open()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    # Carrying out what `StreamingBase` decides.

    async def _wait_for(self, operation: Operation) -> None:
        try:
            operation.start()
            if not operation.is_over():
                await self._bell.until(operation.is_over)
        except BaseException:
            operation.abandon()
            raise
        operation.finish()

    async def _next(self, deadline: float | None) -> StreamingMessage | None:
        while True:
            turn = self._turn(deadline)
            if isinstance(turn, Wait):
                await self._bell.until(self._has_news, self._bell.deadline(turn.seconds))
            elif isinstance(turn, Store):
                await self._store(turn)
            else:
                return turn

    async def _store(self, step: Store) -> None:
        replay_id = as_replay_id(step.storable.position)
        store = cast("AnyStore", self.replay_store)
        await self._call_store(partial(store.set, step.channel, replay_id))
        step.progress.stored(step.storable)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        # One thread, so that a cancelled call, which keeps running, ends before the next starts.
        return ThreadPoolExecutor(1, thread_name_prefix="sfpubsub-store")

    async def _call_store(self, call: Callable[[], Any]) -> Any:
        if getattr(self.replay_store, "may_wait", False):
            future = self._pool.submit(call)
            await settled(future)
            call = future.result
        found = call()
        return await found if isawaitable(found) else found
