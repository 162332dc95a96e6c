"""The common base of both clients: construction and subscribing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.client.connection import Connection
from sfpubsub.client.face import SubscriptionFace
from sfpubsub.client.options import AckMode, ClientOptions, SubscribeOptions, chosen_fields
from sfpubsub.client.undecodable import OnUndecodable
from sfpubsub.config import DEFAULT_ENDPOINT, Limits, Settings, Timings
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.stores.replay_store import AnyStore, start_and_store
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.transports.base import Transport
from sfpubsub.types import Gap, Replay, StartPosition

PlainT = TypeVar("PlainT", bound=SubscriptionFace[Any, Any])
ManagedT = TypeVar("ManagedT", bound=SubscriptionFace[Any, Any])
StoreT = TypeVar("StoreT", bound=AnyStore)


class ClientBase(ABC, Generic[PlainT, ManagedT, StoreT]):
    """Base class of `PubSubClient` and `AsyncPubSubClient`, which take the same arguments.

    Args:
        session: A session, or an object whose ``get_session`` supplies sessions.
        endpoint: ``host:port`` of the service.
        insecure: ``1`` for plaintext to loopback, ``force`` for plaintext to any host, empty for
            TLS.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; if empty, the environment variable ``https_proxy`` applies.
            Either way, hosts in the environment variable ``no_proxy`` are reached directly.
        timings: Intervals, delays and timeouts; see `Timings`.
        transport: Replaces the gRPC channel, for tests.
        schema_store: Store for schemas, so that raw events can be decoded later, even offline. A
            schema is fetched from the service only if the store does not have it.
        datetimes: Whether `Event.value` converts fields that the schema documents as ``DateTime``
            to `datetime` in UTC; otherwise, they are milliseconds since the epoch.
        record_of: Returns what a managed subscription's record says, such as `Tooling.stamp`; its
            argument is the name or id. It is called, in a thread of its own, when a stream begins,
            until it raises an error that is not retryable. If the record has changed since the last
            stream, a `Gap` is reported, because the position is lost if the subscription was
            stopped and started. Without it, this cannot be known.

    Raises:
        ConfigurationError: A setting is not valid.
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
        datetimes: bool = False,
        record_of: Callable[[str], object] | None = None,
    ) -> None:
        self._connection = Connection(
            session,
            ClientOptions(
                endpoint,
                insecure,
                ca_file,
                proxy,
                timings,
                transport,
                schema_store,
                datetimes,
                record_of,
            ),
        )
        self._opened()

    def _opened(self) -> None:
        """Create the subclass's own resources. Called after the connection object is created."""

    @classmethod
    def from_env(
        cls,
        options: Mapping[str, str | None] | None = None,
        *,
        schema_store: SchemaStore | None = None,
        datetimes: bool = False,
    ) -> Self:
        """Create a client from the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that override the environment, by field name of `Settings`; ``config``
                and ``profile`` select a settings file and a table in it.
            schema_store: See `ClientBase`.
            datetimes: See `ClientBase`.

        Raises:
            ConfigurationError: A setting is missing or not valid.
        """
        return cls.from_settings(
            Settings.load(options), schema_store=schema_store, datetimes=datetimes
        )

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        session: Session | SessionProvider | None = None,
        *,
        schema_store: SchemaStore | None = None,
        datetimes: bool = False,
        record_of: Callable[[str], object] | None = None,
    ) -> Self:
        """Create a client from settings that are already loaded.

        Args:
            settings: The settings.
            session: A session, or a provider of one; None to sign in as the settings say.
            schema_store: See `ClientBase`.
            datetimes: See `ClientBase`.
            record_of: See `ClientBase`.

        Raises:
            ConfigurationError: A setting is missing or not valid.
        """
        return cls(
            session or session_provider(settings),
            endpoint=settings.endpoint,
            insecure=settings.insecure,
            ca_file=settings.ca_file,
            proxy=settings.proxy,
            timings=settings.timings,
            schema_store=schema_store,
            datetimes=datetimes,
            record_of=record_of,
        )

    @property
    def sessions(self) -> CurrentSession:
        """The session used for calls. Pass it to other classes to share one sign-in."""
        return self._connection.sessions

    # Streams.

    def subscribe(
        self,
        topic: str,
        *,
        replay: Replay | MutableMapping[str, Any] | StoreT = "latest",
        replay_store: MutableMapping[str, Any] | StoreT | None = None,
        replay_fallback: Replay | None = None,
        ack: AckMode = "auto",
        max_pending_count: int = Limits.max_pending_count,
        max_bytes: int = Limits.max_bytes,
        max_unacked: int = Limits.max_unacked,
        connection_timeout: float | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_undecodable: OnUndecodable = "fail",
        quarantine: Quarantine | None = None,
        fields: Iterable[str] | None = None,
    ) -> PlainT:
        """Subscribe to a topic. Positions are stored only if a store is given.

        Args:
            topic: Full path of the topic, such as ``/event/Order_Event__e``.
            replay: Where to start: ``latest``, ``earliest``, a `ReplayOption`, a replay id or its
                hexadecimal form. With a store, it applies only if the topic has no stored position.
                A store can also be passed here instead of as *replay_store*.
            replay_store: Stores the position: a mapping or a `ReplayStore`, or for the asyncio
                client an `AsyncReplayStore`.
            replay_fallback: Where to continue if the service rejects the position; by default, the
                subscription fails.
            ack: ``auto``: requesting the next batch acks the previous one; ``manual``: the caller
                acks. If positions are not stored, acks have no effect, and no event counts as
                unacked.
            max_pending_count: No more events are requested while this many are undelivered. While
                this or one of the next two limits is reached, single events may still be requested,
                to keep the stream open.
            max_bytes: No more events are requested while the payloads of the undelivered ones total
                this many bytes.
            max_unacked: No more events are requested while this many are unacked or, for a managed
                subscription, not yet committed.
            connection_timeout: The outage budget: seconds that transport failures may last before
                the subscription fails; None means forever. This is not the timeout of one
                connection attempt.
            on_gap: Called with every gap, in the thread that detects the gap. It must not block or
                close the client, because that thread may be the one that receives the events of all
                subscriptions. The asyncio client calls it in the event loop.
            on_undecodable: What to do with an event that cannot be decoded. ``fail``: reading its
                value raises; ``quarantine``: it is stored durably in *quarantine* before its
                position can be committed, and is not delivered; ``skip``: it is counted and logged,
                but not delivered. With the last two, a batch is decoded when it is delivered.
            quarantine: Stores undecodable events; required by ``on_undecodable="quarantine"``, and
                not allowed otherwise.
            fields: Names of the fields to decode; None means all. A change event's header and a
                platform event's ``CreatedDate`` are always included. Unknown fields are ignored,
                with one log message per schema.

        Raises:
            ConfigurationError: The store is async but the client is not; two stores are given;
                *ack*, *on_undecodable* or *fields* is not valid; or *quarantine* is missing or not
                allowed.
            ValueError: *replay* or *replay_fallback* is not a valid position, or a limit is below
                1.
            LocalProtocolError: The client is closed.
        """
        options = SubscribeOptions(
            ack,
            Limits(max_pending_count, max_bytes, max_unacked),
            connection_timeout,
            on_gap,
            on_undecodable,
            quarantine,
            replay_fallback,
            chosen_fields(fields),
        )
        start, store = start_and_store(replay, replay_store)
        return self._plain(topic, start, store, options)

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
        fields: Iterable[str] | None = None,
    ) -> ManagedT:
        """Subscribe through a managed subscription, whose position the service stores.

        Args:
            name: Developer name or record id of the ManagedEventSubscription.
            ack: See `subscribe`.
            max_pending_count: See `subscribe`.
            max_bytes: See `subscribe`.
            max_unacked: See `subscribe`.
            connection_timeout: See `subscribe`. Time spent waiting for another client to release
                the managed subscription does not count.
            on_gap: See `subscribe`.
            on_undecodable: See `subscribe`.
            quarantine: See `subscribe`.
            fields: See `subscribe`.

        Raises:
            ConfigurationError: *ack*, *on_undecodable* or *fields* is not valid, or *quarantine* is
                missing or not allowed.
            ValueError: A limit is below 1.
            LocalProtocolError: The client is closed.
        """
        options = SubscribeOptions(
            ack,
            Limits(max_pending_count, max_bytes, max_unacked),
            connection_timeout,
            on_gap,
            on_undecodable,
            quarantine,
            fields=chosen_fields(fields),
        )
        return self._managed(name, options)

    @abstractmethod
    def _plain(
        self, topic: str, start: StartPosition, store: AnyStore | None, options: SubscribeOptions
    ) -> PlainT:
        """Create a subscription to a topic. If *store* is None, its position is not stored."""

    @abstractmethod
    def _managed(self, name: str, options: SubscribeOptions) -> ManagedT:
        """Create a subscription that reads through the managed subscription *name*."""
