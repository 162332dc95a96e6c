"""One interface for the synchronous and the asyncio client, so that both run each scenario."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from sfpubsub import AsyncPubSubClient, PubSubClient
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.handling import RunSummary
from sfpubsub.types import CommitReceipt, Health

from ..conftest import PATIENCE, QUICK


class Held:
    """A subscription of the synchronous or asyncio client, with blocking methods for both."""

    def __init__(self, face: Face, subscription: Any) -> None:
        self._face = face
        self._subscription = subscription

    def next(self, timeout: float = PATIENCE) -> EventBatch | None:
        """Return the next batch; None if none arrives within *timeout* seconds."""
        return self._face.call(self._subscription.next_batch, timeout)

    def batch(self) -> EventBatch:
        """Return the next batch; fail if none arrives in time."""
        found = self.next()
        assert found is not None, self.health()
        return found

    def collect(self, count: int) -> list[int]:
        """Read batches until at least *count* events have arrived.

        Return the values of ``Order_Number__c`` in these events.
        """
        seen: list[int] = []
        while len(seen) < count:
            seen += numbers(self.batch())
        return seen

    def run(self, handler: Callable[[Event], object], **options: Any) -> RunSummary:
        """Call `run` with a synchronous handler, which may block with either client."""
        return self._face.call(self._subscription.run, self._face.handler(handler), **options)

    def begin_run(self, handler: Callable[[Event], object], **options: Any) -> Future[RunSummary]:
        """Call `run` in a new thread, and return a future for its summary."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="run")
        future = pool.submit(partial(self.run, handler, **options))
        pool.shutdown(wait=False)
        return future

    def stop(self) -> None:
        self._subscription.stop()

    def commit(self) -> CommitReceipt:
        return self._face.call(self._subscription.commit)

    def drain(self) -> None:
        self._face.call(self._subscription.drain)

    def abort(self) -> None:
        self._subscription.abort()

    def all_events(self) -> list[Event]:
        """Read events until the subscription ends, and return them."""
        return self._face.events_of(self._subscription, None)

    def next_events(self, count: int) -> list[Event]:
        """Return the next *count* events, breaking out of the loop while the last one is being
        handled.
        """
        return self._face.events_of(self._subscription, count)

    def fail_inside(self, error: Exception) -> None:
        """Raise *error* in the ``with`` block of the subscription."""
        self._face.fail_inside(self._subscription, error)

    @property
    def subscription(self) -> Any:
        return self._subscription

    def health(self) -> Health:
        return self._subscription.health()


def numbers(batch: EventBatch) -> list[int]:
    """Return the values of ``Order_Number__c`` in a batch's events."""
    return [int(event.value["Order_Number__c"]) for event in batch]


class Face:
    """The synchronous client, with an interface that `AsyncFace` shares."""

    name = "sync"

    def __init__(self, **arguments: Any) -> None:
        arguments.setdefault("timings", QUICK)
        self.client: Any = self.make(arguments)
        self._held: list[Held] = []  # referenced here, so that they are not garbage-collected

    def make(self, arguments: dict[str, Any]) -> Any:
        return PubSubClient(**arguments)

    def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client or of a subscription, and return its result."""
        return method(*arguments, **options)

    def handler(self, function: Callable[[Event], object]) -> Any:
        """Return *function* unchanged: the synchronous `run` can call it directly."""
        return function

    def managed(self, name: str, **options: Any) -> Held:
        """Subscribe to a managed subscription by name."""
        return self._hold(self.call(self.client.subscribe_managed, name, **options))

    def plain(self, topic: str, **options: Any) -> Held:
        """Subscribe to a topic."""
        return self._hold(self.call(self.client.subscribe, topic, **options))

    def _hold(self, subscription: Any) -> Held:
        self._held.append(Held(self, subscription))
        return self._held[-1]

    def forget(self, held: Held) -> None:
        """Drop the reference to a subscription, so that it can be garbage-collected."""
        self._held.remove(held)

    def events_of(self, subscription: Any, count: int | None) -> list[Event]:
        """Return the next *count* events; all events until the end if *count* is None."""
        return list(itertools.islice(subscription.events(), count))

    def commit_at(self, subscription: Any, place: int) -> Any:
        """Iterate over events up to index *place*, commit there, and return the committed
        position.
        """
        for index, _ in enumerate(subscription.events()):
            if index == place:
                return subscription.commit().replay_id
        return None

    def fail_inside(self, subscription: Any, error: Exception) -> None:
        """Raise *error* in the ``with`` block of a subscription."""
        with subscription:
            raise error

    def close(self) -> None:
        self.call(self.client.close)


class AsyncFace(Face):
    """The asyncio client, in an event loop in another thread."""

    name = "asyncio"

    def make(self, arguments: dict[str, Any]) -> Any:
        self._pool = ThreadPoolExecutor(32)  # for handlers that block
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()
        return AsyncPubSubClient(**arguments)

    def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        async def run() -> Any:
            result = method(*arguments, **options)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(3 * PATIENCE)

    @property
    def loop_thread(self) -> int | None:
        return self._thread.ident

    def events_of(self, subscription: Any, count: int | None) -> list[Event]:
        async def take() -> list[Event]:
            taken: list[Event] = []
            async with contextlib.aclosing(subscription.events()) as events:
                async for event in events:
                    taken.append(event)
                    if len(taken) == count:
                        break
            return taken

        return self.call(take)

    def commit_at(self, subscription: Any, place: int) -> Any:
        async def commit() -> Any:
            index = 0
            async with contextlib.aclosing(subscription.events()) as events:
                async for _ in events:
                    if index == place:
                        return (await subscription.commit()).replay_id
                    index += 1
            return None

        return self.call(commit)

    def fail_inside(self, subscription: Any, error: Exception) -> None:
        async def fail() -> None:
            async with subscription:
                raise error

        self.call(fail)

    def handler(self, function: Callable[[Event], object]) -> Any:
        @wraps(function)
        async def handle(event: Event) -> object:
            return await self._loop.run_in_executor(self._pool, function, event)

        return handle

    def close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
