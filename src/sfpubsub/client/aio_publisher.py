"""The asyncio publisher. It uses the same driver as `Publisher`, but returns asyncio futures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from sfpubsub.aio_bridge import Bell, call_in
from sfpubsub.client.publishing import Draft, Outbound
from sfpubsub.errors import EncodeError
from sfpubsub.types import PublishCounts, PublishResult

T = TypeVar("T")


class Run(Protocol):
    """Runs blocking calls in a worker thread of the client."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class AsyncPublisher:
    """Publishes events to one topic; see `Publisher`.

    It belongs to the event loop in which it was created.
    """

    def __init__(
        self,
        topic: str,
        connect: Callable[[], Outbound[asyncio.Future[PublishResult]]],
        *,
        run: Run,
    ) -> None:
        self._topic = topic
        self._connect = connect
        self._run = run
        self._outbound: Outbound[asyncio.Future[PublishResult]] | None = None
        self._beginning = asyncio.Lock()
        self._bell = Bell()

    async def _begun(self) -> Outbound[asyncio.Future[PublishResult]]:
        async with self._beginning:
            if self._outbound is None:
                self._outbound = await self._run(self._connect)
                self._outbound.driver.listen(self._bell.ring)
        return self._outbound

    @property
    def topic(self) -> str:
        """Full path of the topic, such as ``/event/Order_Event__e``."""
        return self._topic

    @property
    def counts(self) -> PublishCounts:
        """Number of events sent so far, by outcome."""
        return PublishCounts() if self._outbound is None else self._outbound.driver.counts()

    async def send(
        self,
        value: Mapping[str, Any],
        *,
        event_id: str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> asyncio.Future[PublishResult]:
        """Send an event; see `Publisher.send`.

        If the call is cancelled, the event is not sent.
        """
        outbound = self._outbound or await self._begun()
        draft = await self._draft(outbound, value, event_id, headers)
        receipt: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # let other tasks run, even if there is room
        while True:
            changes = self._bell.count
            if outbound.offer([draft], [receipt]):
                return receipt
            await self._bell.until(lambda: self._bell.count != changes)  # noqa: B023  # awaited

    async def _draft(
        self,
        outbound: Outbound[Any],
        value: Mapping[str, Any],
        event_id: str | None,
        headers: Mapping[str, bytes | str] | None,
    ) -> Draft:
        if outbound.can_encode:
            try:
                return outbound.draft_at_once(value, event_id, headers)
            except EncodeError:
                pass  # raised again below, unless the schema has changed
        return await self._run(lambda: outbound.draft(value, event_id, headers))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait for the results of all events sent so far; see `Publisher.flush`."""
        outbound = self._outbound
        if outbound is None:
            return
        last = outbound.last
        deadline = self._bell.deadline(timeout)
        if not await self._bell.until(lambda: outbound.is_settled(last), deadline):
            raise outbound.late(timeout or 0.0)
        # Let the loop set the futures' results first: the calls that do so are already scheduled.
        await asyncio.sleep(0)
        outbound.raise_failures()

    async def close(self) -> None:
        """Wait for all results and close; see `Publisher.close`."""
        outbound = await self._begun()
        outbound.driver.drain()
        await self._bell.until(lambda: outbound.is_over)
        await asyncio.sleep(0)  # as in `flush`
        outbound.raise_failures()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        elif self._outbound is not None:
            self._outbound.driver.abort()


def deliver_in(
    loop: asyncio.AbstractEventLoop,
    outcomes: Sequence[tuple[asyncio.Future[PublishResult], PublishResult]],
) -> None:
    """Set the results of futures that belong to *loop*. Thread-safe.

    Args:
        loop: The event loop of the futures.
        outcomes: Pairs of a future and its result. Futures that are already done are skipped.
    """

    def deliver() -> None:
        for receipt, result in outcomes:
            if not receipt.done():  # cancelled by its owner
                receipt.set_result(result)

    call_in(loop, deliver)
