"""The way into the API: one client per org, one channel, any number of subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, TypeVar, cast

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import Session, SessionProvider
from sfpubsub.client.connection import Connection
from sfpubsub.client.quarantine import Quarantine
from sfpubsub.client.replay_store import ReplayStore, as_store
from sfpubsub.client.schema_store import SchemaStore
from sfpubsub.client.subscription import (
    AckMode,
    ManagedSubscription,
    Subscription,
    check_ack,
)
from sfpubsub.client.undecodable import OnUndecodable, Screen
from sfpubsub.config import DEFAULT_ENDPOINT, Limits, Settings, Timings
from sfpubsub.transports.base import Transport
from sfpubsub.transports.grpc_driver import StreamDriver
from sfpubsub.types import Gap, PublishResult, Replay, SchemaInfo, StartPosition, TopicInfo

S = TypeVar("S", bound=Subscription)


class PubSubClient:
    """A client of the Pub/Sub API. Thread-safe.

    Use it as a context manager; leaving it aborts subscriptions that are still open and closes the
    channel.

    Args:
        session: A ready session, or an object whose ``get_session`` supplies one.
        endpoint: ``host:port``.
        insecure: ``1`` for plaintext to loopback, ``force`` for plaintext to anywhere.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        timings: Times of the service and the client.
        transport: Instead of a grpc channel: for tests.
        schema_store: Where schemas are kept, so that raw events can be decoded offline and later;
            looked into before the service is asked.

    Raises:
        ConfigurationError: A setting is wrong.
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

    @classmethod
    def from_env(
        cls,
        options: Mapping[str, str | None] | None = None,
        *,
        schema_store: SchemaStore | None = None,
    ) -> PubSubClient:
        """Make a client of the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that go before the environment, by field of `Settings`, and
                ``config`` and ``profile``, which choose a file and a table in it.
            schema_store: Where schemas are kept.

        Raises:
            ConfigurationError: A setting is missing or wrong.
        """
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

    def connect(self, timeout: float = 10.0) -> None:
        """Wait until the service can be reached; calls do not need it.

        Args:
            timeout: Seconds.

        Raises:
            StreamUnavailableError: It could not be reached in that time.
        """
        self._connection.connect(timeout)

    def get_topic(self, name: str) -> TopicInfo:
        """Return what the service says of a topic.

        Raises:
            TopicNotFoundError: There is no such topic.
            SfPubSubError: The call failed otherwise.
        """
        return self._connection.get_topic(name)

    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Return a schema; not cached.

        Raises:
            SchemaNotFoundError: The service does not know the id.
            SfPubSubError: The call failed otherwise.
        """
        return self._connection.get_schema(schema_id)

    def publish(
        self,
        topic: str,
        events: Iterable[Mapping[str, Any]],
        *,
        created_by: str | None = None,
    ) -> list[PublishResult]:
        """Publish events, encoded by the topic's schema.

        Args:
            topic: Full path, such as ``/event/Order_Event__e``.
            events: Values by field name. Fields left out take the schema's default, which
                ``CreatedDate`` (milliseconds since 1970 UTC) and ``CreatedById`` do not have.
            created_by: Id of a user: events that lack ``CreatedById`` get it, and those that lack
                ``CreatedDate`` the time of this call.

        Returns:
            One result an event, in order.

        Raises:
            PermissionDeniedError: The topic cannot be published to.
            EncodeError: An event does not fit the schema; none was published.
            PublishError: Events were refused, or a later call failed; has the results so far.
            SfPubSubError: The first call failed.
        """
        return self._connection.publish(topic, events, created_by)

    # Streams.

    def subscribe(
        self,
        topic: str,
        *,
        replay: Replay | MutableMapping[str, Any] | ReplayStore = "latest",
        replay_fallback: Replay | None = None,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
    ) -> Subscription:
        """Subscribe to a topic; the caller keeps the position.

        Args:
            topic: Full path.
            replay: Where to start: ``latest``, ``earliest``, a `ReplayOption`, a replay id or its
                hexadecimal form; or where the position is kept: a mapping or a `ReplayStore`.
            replay_fallback: Where to go on when the position is refused; None to stop.
            ack: ``auto``: asking for the next batch acks the one before; ``manual``: the caller
                acks. Matters only with a store.
            max_pending_count: Events held unread before no more are asked for.
            max_bytes: Payload bytes held unread before no more are asked for.
            max_unacked: Events handed out and not acked before no more are asked for.
            connection_timeout: Seconds that transport failures may last; None for ever.
            on_gap: Told of every position that is given up; must not wait.
            on_undecodable: What becomes of an event that cannot be decoded: ``fail``: reading its
                value raises; ``quarantine``: it is put into *quarantine*, durably before its
                position can be passed, and is not handed out; ``skip``: it is counted, logged, and
                not handed out. The last two decode a batch when it is handed out.
            quarantine: Where such events are kept.

        Raises:
            ConfigurationError: *replay* is an async store, or *on_undecodable* is no policy, or
                does not go with *quarantine*.
            ValueError: *replay* is a string that is no position.
        """
        check_ack(ack)
        screen = Screen(on_undecodable, quarantine)
        store = as_store(replay)
        if store is not None:
            start: Replay = store.get(topic) or StartPosition.latest()
        else:
            start = cast("Replay", replay)
        driver = self._connection.open_plain(
            topic,
            start,
            replay_fallback,
            tracked=store is not None,
            limits=Limits(max_pending_count, max_bytes, max_unacked),
            connection_timeout=connection_timeout,
            on_gap=on_gap,
        )
        return self._start(Subscription, driver, ack, store, screen)

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
    ) -> ManagedSubscription:
        """Subscribe through a managed subscription; the service keeps the position.

        Args:
            name: Developer name or record id of the ManagedEventSubscription.
            ack: ``auto``: asking for the next batch acks the one before; ``manual``: the caller
                acks.
            max_pending_count: As for `subscribe`.
            max_bytes: As for `subscribe`.
            max_unacked: As for `subscribe`.
            connection_timeout: As for `subscribe`; does not count waiting for the managed slot.
            on_gap: As for `subscribe`.
            on_undecodable: As for `subscribe`.
            quarantine: As for `subscribe`.

        Raises:
            ConfigurationError: *on_undecodable* is no policy, or does not go with *quarantine*.
        """
        check_ack(ack)
        screen = Screen(on_undecodable, quarantine)
        driver = self._connection.open_managed(
            name,
            limits=Limits(max_pending_count, max_bytes, max_unacked),
            connection_timeout=connection_timeout,
            on_gap=on_gap,
        )
        return self._start(ManagedSubscription, driver, ack, None, screen)

    def _start(
        self,
        kind: type[S],
        driver: StreamDriver,
        ack: AckMode,
        store: ReplayStore | None,
        screen: Screen,
    ) -> S:
        return kind(
            driver,
            self._connection.schemas,
            ack=ack,
            store=store,
            screen=screen,
            timings=self._connection.timings,
            on_close=self._connection.release,
        )

    # The end.

    def close(self) -> None:
        """Abort the subscriptions that are still open, then close the channel."""
        self._connection.close()

    def __enter__(self) -> PubSubClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
