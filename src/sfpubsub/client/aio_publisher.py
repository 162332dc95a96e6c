"""The asyncio publisher. It uses the same driver as `Publisher`, but returns asyncio futures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from sfpubsub.aio_bridge import Bell, call_in
from sfpubsub.client.publishing import Draft, Outbound, late
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
        # Held while an event is handed over, so that events are sent in the order of the calls.
        self._turn = asyncio.Lock()
        self._bell = Bell()

    async def _begun(self) -> Outbound[asyncio.Future[PublishResult]]:
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
    ) -> PublishResult:
        """Send an event, and wait for its result; see `Publisher.send`.

        To have several events in flight, call this in several tasks. Events are sent in the order
        in which the tasks begin. While too many events are pending, tasks wait for their turn.

        If the call is cancelled, the event may have been sent; `flush` and `close` then wait for
        its result, and raise its failure.

        Returns:
            The result of the accepted event.

        Raises:
            PublishError: The event has failed; `PublishError.results` has its result.
            EncodeError: See `Publisher.send`, as for the other errors.
            LocalProtocolError: The publisher is closed.
            SfPubSubError: The publisher has failed.
        """
        receipt: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        async with self._turn:
            outbound = await self._begun()
            draft = await self._draft(outbound, value, event_id, headers)
            while True:
                changes = self._bell.count
                if outbound.offer([draft], [receipt]):
                    break
                await self._bell.until(lambda: self._bell.count != changes)  # noqa: B023  # awaited
        result = await receipt
        if not result.ok:
            raise outbound.failure_of(result)
        return result

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
        """Wait for the results of all events sent so far; see `Publisher.flush`.

        This includes events for which a task was created before, even if it has not run yet.
        """
        deadline = self._bell.deadline(timeout)
        await asyncio.sleep(0)  # tasks that were created before begin now, and wait for their turn
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                outbound = self._outbound
        except TimeoutError:
            raise late(self._topic, self.counts.pending, timeout) from None
        if outbound is None:  # nothing was sent
            return
        last = outbound.last
        if not await self._bell.until(lambda: outbound.is_settled(last), deadline):
            raise outbound.late(timeout or 0.0)
        await self._others()
        outbound.raise_failures()

    async def close(self) -> None:
        """Wait for all results and close; see `Publisher.close`."""
        await asyncio.sleep(0)  # as in `flush`
        async with self._turn:
            outbound = await self._begun()
            outbound.driver.drain()
        await self._bell.until(lambda: outbound.is_over)
        await self._others()
        outbound.raise_failures()

    async def _others(self) -> None:
        """Let the tasks that wait in `send` raise their failures first."""
        await asyncio.sleep(0)  # the loop sets the results: the calls that do so are scheduled
        await asyncio.sleep(0)  # the tasks run

    async def __aenter__(self) -> Self:
        async with self._turn:
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
