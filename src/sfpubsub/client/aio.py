"""The asyncio face of the client: a thin bridge over the one driver.

The driver's threads wake the loop, and the face then polls the same queue that the sync face takes
from; it has no queue of its own, so that nothing is read ahead of the consumer. Nothing blocks in
the loop or in its default executor: calls that wait for the service run in a few threads of the
client's own. The methods are those of the sync face, whose docstrings hold here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from types import TracebackType
from typing import Any, TypeVar, cast

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import Session, SessionProvider
from sfpubsub.client.aio_bridge import call_in, in_thread, settled
from sfpubsub.client.aio_subscription import AnyStore, AsyncManagedSubscription, AsyncSubscription
from sfpubsub.client.connection import CLOSE_TIMEOUT, Connection
from sfpubsub.client.quarantine import Quarantine
from sfpubsub.client.replay_store import AsyncReplayStore, ReplayStore, as_store, is_async
from sfpubsub.client.schema_store import SchemaStore
from sfpubsub.client.subscription import AckMode
from sfpubsub.client.undecodable import OnUndecodable, Screen
from sfpubsub.config import DEFAULT_ENDPOINT, Limits, Settings, Timings
from sfpubsub.errors import LocalProtocolError
from sfpubsub.transports.base import Transport
from sfpubsub.transports.grpc_driver import StreamDriver
from sfpubsub.types import Gap, PublishResult, Replay, SchemaInfo, StartPosition, TopicInfo

T = TypeVar("T")
S = TypeVar("S", bound=AsyncSubscription)

# Threads for calls that wait for the service. A schema is fetched once for all subscriptions, so
# that even many of them need few; more calls than this at a time wait for their turn.
POOL_SIZE = 8


class AsyncPubSubClient:
    """A client of the Pub/Sub API for asyncio; see `PubSubClient`, whose arguments it takes.

    Use it as an async context manager; leaving it aborts subscriptions that are still open and
    closes the channel. It belongs to no loop, but each of its subscriptions belongs to the loop it
    was made in. A unary call that is cancelled may still be carried out.
    """

    def __init__(
        self,
        session: Session | SessionProvider,
        *,
        endpoint: str = DEFAULT_ENDPOINT,
        insecure: str = "",
        ca_file: str = "",
        proxy: str = "",
        timings: Timings | None = None,
        transport: Transport | None = None,
        schema_store: SchemaStore | None = None,
    ) -> None:
        self._connection = Connection(
            session,
            endpoint=endpoint,
            insecure=insecure,
            ca_file=ca_file,
            proxy=proxy,
            timings=timings,
            transport=transport,
            schema_store=schema_store,
        )
        self._pool = ThreadPoolExecutor(POOL_SIZE, thread_name_prefix="sfpubsub-aio")
        self._jobs: set[Future[Any]] = set()  # what runs in the pool, or waits for it

    @classmethod
    def from_env(
        cls,
        options: Mapping[str, str | None] | None = None,
        *,
        schema_store: SchemaStore | None = None,
    ) -> AsyncPubSubClient:
        """Make a client of the ``SFPUBSUB_…`` settings; see `PubSubClient.from_env`."""
        settings = Settings.load(options)
        return cls(
            session_provider(settings),
            endpoint=settings.endpoint,
            insecure=settings.insecure,
            ca_file=settings.ca_file,
            proxy=settings.proxy,
            timings=settings.timings,
            schema_store=schema_store,
        )

    # Unary calls.

    async def connect(self, timeout: float = 10.0) -> None:
        """Wait until the service can be reached; see `PubSubClient.connect`."""
        await self._run(lambda: self._connection.connect(timeout))

    async def get_topic(self, name: str) -> TopicInfo:
        """Return what the service says of a topic; see `PubSubClient.get_topic`."""
        return await self._run(lambda: self._connection.get_topic(name))

    async def get_schema(self, schema_id: str) -> SchemaInfo:
        """Return a schema; not cached; see `PubSubClient.get_schema`."""
        return await self._run(lambda: self._connection.get_schema(schema_id))

    async def publish(
        self,
        topic: str,
        events: Iterable[Mapping[str, Any]],
        *,
        created_by: str | None = None,
    ) -> list[PublishResult]:
        """Publish events, encoded by the topic's schema; see `PubSubClient.publish`."""
        taken = list(events)  # here: a generator of the caller's may not leave the caller's thread
        return await self._run(lambda: self._connection.publish(topic, taken, created_by))

    async def _run(self, call: Callable[[], T]) -> T:
        future = self._submit(call)
        try:
            await settled(future)
            return future.result()
        finally:
            future.cancel()  # if it has not begun, it need not

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        try:
            future = self._pool.submit(call)
        except RuntimeError:
            raise LocalProtocolError("the client is closed") from None
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    # Streams.

    def subscribe(
        self,
        topic: str,
        *,
        replay: Replay | MutableMapping[str, Any] | ReplayStore | AsyncReplayStore = "latest",
        replay_fallback: Replay | None = None,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
    ) -> AsyncSubscription:
        """Subscribe to a topic; the caller keeps the position. See `PubSubClient.subscribe`.

        *replay* may be an async store as well; then the stream is opened when the subscription is
        entered or first awaited. Any other store is called in the loop's thread, where it must not
        wait long; so is *quarantine*. *on_gap* is called in the loop's thread.
        """
        tell = self._in_loop(on_gap)
        screen = Screen(on_undecodable, quarantine)
        later = is_async(replay)
        store = cast("AnyStore", replay) if later else as_store(replay)

        def open_driver(start: Replay | None) -> StreamDriver:
            return self._connection.open_plain(
                topic,
                StartPosition.latest() if start is None else start,
                replay_fallback,
                tracked=store is not None,
                limits=Limits(max_pending_count, max_bytes, max_unacked),
                connection_timeout=connection_timeout,
                on_gap=tell,
            )

        if later:
            first = open_driver(None)
            return self._make(AsyncSubscription, first, ack, screen, store, open_driver)
        start = cast("Replay", replay) if store is None else cast("ReplayStore", store).get(topic)
        return self._make(AsyncSubscription, open_driver(start), ack, screen, store)

    def subscribe_managed(
        self,
        name: str,
        *,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
    ) -> AsyncManagedSubscription:
        """Subscribe through a managed subscription; see `PubSubClient.subscribe_managed`.

        *on_gap* and *quarantine* are called in the loop's thread.
        """
        screen = Screen(on_undecodable, quarantine)
        driver = self._connection.open_managed(
            name,
            limits=Limits(max_pending_count, max_bytes, max_unacked),
            connection_timeout=connection_timeout,
            on_gap=self._in_loop(on_gap),
        )
        return self._make(AsyncManagedSubscription, driver, ack, screen)

    def _in_loop(self, on_gap: Callable[[Gap], None] | None) -> Callable[[Gap], None] | None:
        loop = asyncio.get_running_loop()
        return None if on_gap is None else lambda gap: call_in(loop, on_gap, gap)

    def _make(
        self,
        kind: type[S],
        driver: StreamDriver,
        ack: AckMode,
        screen: Screen,
        store: AnyStore | None = None,
        open_later: Callable[[Replay | None], StreamDriver] | None = None,
    ) -> S:
        return kind(
            driver,
            self._connection,
            ack=ack,
            store=store,
            screen=screen,
            submit=self._submit,
            open_later=open_later,
        )

    # The end.

    async def close(self) -> None:
        """Abort the subscriptions that are still open, then close the channel."""
        self._pool.shutdown(wait=False)
        if self._connection.abort():
            await in_thread("sfpubsub-aio-close", self._finish)

    def _finish(self) -> None:
        self._connection.finish()
        # Calls in flight failed with their channel; only a provider of sessions may take longer.
        if not wait_for_futures(list(self._jobs), CLOSE_TIMEOUT).not_done:
            self._pool.shutdown()

    async def __aenter__(self) -> AsyncPubSubClient:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
