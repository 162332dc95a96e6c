"""The streaming client for asyncio: the same driver, awaited. Nothing here blocks the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from inspect import isawaitable
from types import TracebackType

from sfpubsub.aio_bridge import Bell, in_thread, settled
from sfpubsub.streaming.base import StreamingBase
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import ReplayStart, as_replay_id


class AsyncStreamingClient(StreamingBase):
    """`StreamingClient` with ``await``; the same arguments, methods and errors.

    For one event loop. The replay store may be an `AsyncReplayStore`.
    """

    _AWAITS = True
    _bell: Bell

    async def open(self) -> None:
        """Sign in and connect; as `StreamingClient.open`."""
        bell = Bell()
        driver = self._make_driver(bell.ring)
        self._bell = bell
        await _done(driver.open())

    async def close(self) -> None:
        """Say goodbye to the server; as `StreamingClient.close`."""
        driver = self._driver
        if driver is not None:
            driver.close()
            await self._bell.until(lambda: driver.over)

    async def subscribe(self, channel: str, replay: ReplayStart | None = None) -> None:
        """Subscribe to a channel; as `StreamingClient.subscribe`."""
        start = replay
        if start is None and self._store is not None:
            kept = self._store.get(channel)
            start = await kept if isawaitable(kept) else kept
        await _done(self._subscribe(channel, start, rewind=replay is not None))

    async def unsubscribe(self, channel: str) -> None:
        """Unsubscribe; as `StreamingClient.unsubscribe`."""
        await _done(self._unsubscribe(channel))

    async def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message; as `StreamingClient.receive`. Can be cancelled."""
        message = await self._next(timeout)
        if message is None:
            self._check_not_over()
        return message

    async def ack(self, message: StreamingMessage) -> None:
        """Keep a message's position in the store; as `StreamingClient.ack`."""
        if self._store is not None and self._marks(message):
            kept = self._store.set(message.subscription, as_replay_id(message.replay_id or 0))
            if isawaitable(kept):
                await kept
            self._marked(message)

    @asynccontextmanager
    async def handling(self, message: StreamingMessage) -> AsyncIterator[StreamingMessage]:
        """Ack a message when the block ends well; not when it raises."""
        yield message
        await self.ack(message)

    async def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST; as `StreamingClient.push`."""
        channels = self._channels()
        return await in_thread("sfpubsub-push", lambda: channels.push(channel, payload, user_ids))

    async def _next(self, timeout: float | None) -> StreamingMessage | None:
        driver = self._driver
        if driver is None:
            return None
        if not driver.items:
            deadline = self._bell.deadline(timeout)
            await self._bell.until(lambda: bool(driver.items or driver.over), deadline)
        message = driver.head()
        if message is not None:
            if self._keeps:
                await self.ack(message)  # first: when it is cancelled the message is still there
            driver.take()
        return message

    async def __aiter__(self) -> AsyncIterator[StreamingMessage]:
        while (message := await self._next(None)) is not None:
            yield message

    async def __aenter__(self) -> AsyncStreamingClient:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _done(future: Future[None]) -> None:
    await settled(future)
    future.result()
