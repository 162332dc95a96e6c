"""The asyncio client, which uses the same driver as the synchronous client.

The driver's threads wake the event loop, which then reads the driver's queue directly, as the
synchronous client does; events are not copied to a second queue. Nothing blocks the loop or its
default executor: blocking calls run in a few worker threads of the client.

The methods match those of `PubSubClient`, whose docstrings apply here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from sfpubsub.aio_bridge import call_in, in_thread, settled
from sfpubsub.client.aio_publisher import AsyncPublisher, deliver_in
from sfpubsub.client.aio_subscription import AsyncManagedSubscription, AsyncSubscription
from sfpubsub.client.base import ClientBase
from sfpubsub.client.connection import CLOSE_TIMEOUT
from sfpubsub.client.options import SubscribeOptions
from sfpubsub.client.publisher import publish_all
from sfpubsub.client.publishing import DEFAULT_TIMEOUT, Outbound, publish_limits
from sfpubsub.config import PublishLimits
from sfpubsub.errors import LocalProtocolError
from sfpubsub.stores.replay_store import AnyStore, ReplayStore, is_async
from sfpubsub.transports.base import Target
from sfpubsub.types import PublishResult, SchemaInfo, StartPosition, TopicInfo

T = TypeVar("T")

# Worker threads for blocking calls. Schemas are fetched once for all subscriptions, so even many
# subscriptions need only a few threads; further concurrent calls wait.
POOL_SIZE = 8


class AsyncPubSubClient(ClientBase[AsyncSubscription, AsyncManagedSubscription, AnyStore]):
    """A client of the Pub/Sub API for asyncio; see `PubSubClient`.

    Use it as an async context manager; leaving the block aborts subscriptions and publishers that
    are still open, and closes the channel. The client is not tied to an event loop, but each of its
    subscriptions and publishers belongs to the loop in which it was created. If a unary call is
    cancelled, the service may still execute it.
    """

    def _opened(self) -> None:
        self._pool = ThreadPoolExecutor(POOL_SIZE, thread_name_prefix="sfpubsub-aio")
        self._jobs: set[Future[Any]] = set()  # running and waiting jobs of the pool

    # Unary calls.

    async def connect(self, timeout: float = 10.0) -> None:
        """Wait until the service can be reached; see `PubSubClient.connect`."""
        await self._run(lambda: self._connection.connect(timeout))

    async def get_topic(self, name: str) -> TopicInfo:
        """Fetch a topic's schema id and permissions; see `PubSubClient.get_topic`."""
        return await self._run(lambda: self._connection.get_topic(name))

    async def get_schema(self, schema_id: str) -> SchemaInfo:
        """Fetch a schema from the service; see `PubSubClient.get_schema`."""
        return await self._run(lambda: self._connection.get_schema(schema_id))

    async def publish(
        self,
        topic: str,
        events: Iterable[Mapping[str, Any]],
        *,
        created_by: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[PublishResult]:
        """Publish events, encoded with the topic's schema; see `PubSubClient.publish`."""
        taken = list(events)  # here, because a generator must run in the caller's thread
        return await self._run(
            lambda: publish_all(self._connection, topic, taken, created_by, timeout)
        )

    def open_publisher(
        self,
        topic: str,
        *,
        ordered: bool = False,
        streamed: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        created_by: str | None = None,
        max_pending_count: int = PublishLimits.max_pending_count,
    ) -> AsyncPublisher:
        """Open a publisher in the running event loop; see `PubSubClient.open_publisher`.

        The topic is looked up on entering the ``async with`` block, or else on first use.
        """
        limits = publish_limits(ordered, max_pending_count)

        def connect() -> Outbound[asyncio.Future[PublishResult]]:
            return self._connection.outbound(
                topic,
                streamed=streamed,
                timeout=timeout,
                limits=limits,
                created_by=created_by,
                deliver=partial(deliver_in, loop),
            )

        loop = asyncio.get_running_loop()
        return AsyncPublisher(topic, connect, run=self._run)

    async def _run(self, call: Callable[[], T]) -> T:
        future = self._submit(call)
        try:
            await settled(future)
            return future.result()
        finally:
            future.cancel()  # cancel it if it has not started

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        self._connection.check_usable()  # here, because a forked child has no worker threads
        try:
            future = self._pool.submit(call)
        except RuntimeError:
            raise LocalProtocolError("the client is closed: create a new one") from None
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    # Streams. A blocking store is read when the subscription is entered or first awaited; the
    # stream is opened only after that.

    def _plain(
        self, topic: str, start: StartPosition, store: AnyStore | None, options: SubscribeOptions
    ) -> AsyncSubscription:
        asks_store = is_async(store) or (isinstance(store, ReplayStore) and store.may_wait)
        if isinstance(store, ReplayStore) and not asks_store:
            start = store.get(topic) or start
        delivery = self._connection.open(
            Target(topic, False),
            self._in_loop(options),
            start=start,
            store=store,
            stores_on_ack=False,
        )
        return AsyncSubscription(delivery, submit=self._submit, asks_store=asks_store)

    def _managed(self, name: str, options: SubscribeOptions) -> AsyncManagedSubscription:
        delivery = self._connection.open(
            Target(name, True), self._in_loop(options), stores_on_ack=False
        )
        return AsyncManagedSubscription(delivery, submit=self._submit)

    def _in_loop(self, options: SubscribeOptions) -> SubscribeOptions:
        loop, on_gap = asyncio.get_running_loop(), options.on_gap
        if on_gap is None:
            return options
        return replace(options, on_gap=lambda gap: call_in(loop, on_gap, gap))

    # Closing.

    async def close(self) -> None:
        """Abort the subscriptions and publishers that are still open, then close the channel."""
        self._pool.shutdown(wait=False)
        if self._connection.abort():
            await in_thread("sfpubsub-aio-close", self._finish)

    def _finish(self) -> None:
        self._connection.finish()
        # Calls in flight failed with the channel; only a session provider may take longer.
        if not wait_for_futures(list(self._jobs), CLOSE_TIMEOUT).not_done:
            self._pool.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()
