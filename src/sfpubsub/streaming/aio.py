"""The asyncio client of the Streaming API. It never blocks the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from inspect import isawaitable
from itertools import islice
from typing import Any

from sfpubsub.aio_bridge import Bell, in_thread, next_turn, settled
from sfpubsub.streaming.base import StreamingBase
from sfpubsub.streaming.bayeux import StreamingMessage
from sfpubsub.streaming.positions import ReplayStart

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
        await self._open()

    async def close(self) -> None:
        """Disconnect, like `StreamingClient.close`."""
        await in_thread("sfpubsub-close", self._driver.close)

    async def subscribe(self, channel: str, replay: ReplayStart | None = None) -> None:
        """Subscribe to a channel, like `StreamingClient.subscribe`.

        If the call is cancelled, the client unsubscribes from the channel again.
        """
        await self._subscribe(channel, replay)

    async def unsubscribe(self, channel: str) -> None:
        """Unsubscribe from a channel, like `StreamingClient.unsubscribe`."""
        await self._unsubscribe(channel)

    async def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message, like `StreamingClient.receive`. Cancelling loses no message."""
        await next_turn()  # before a message is taken, because this may be cancelled
        return await self._receive(timeout)

    async def ack(self, message: StreamingMessage) -> None:
        """Store a message's position, like `StreamingClient.ack`."""
        await self._ack(message)

    @asynccontextmanager
    async def handling(self, message: StreamingMessage) -> AsyncIterator[StreamingMessage]:
        """Yield *message*, and ack it when the ``async with`` block ends without an exception."""
        yield message
        await self._ack(message)

    async def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST, like `StreamingClient.push`. Runs in a thread."""
        self._check_process()
        push = partial(self._channels.push, channel, payload, user_ids)
        return await in_thread("sfpubsub-push", push)

    async def __aiter__(self) -> AsyncIterator[StreamingMessage]:
        while (message := await self._next()) is not None:
            yield message
            for message in islice(self._already_queued(), _TURN):
                yield message
            await next_turn()

    async def __aenter__(self) -> AsyncStreamingClient:
        await self.open()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    def _launch(self) -> None:
        self._bell = Bell()
        self._driver.start(self._bell.ring)

    async def _until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        await self._bell.until(condition, self._bell.deadline(timeout))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        # One thread, so that a cancelled call, which keeps running, ends before the next starts.
        return ThreadPoolExecutor(1, thread_name_prefix="sfpubsub-store")

    async def _stored(self, call: Callable[[], Any]) -> Any:
        if getattr(self.replay_store, "may_wait", False):
            future = self._pool.submit(call)
            await settled(future)
            call = future.result
        found = call()
        return await found if isawaitable(found) else found
