"""How a client of either face is made, and how it subscribes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import Session, SessionProvider
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
    """The base of `PubSubClient` and `AsyncPubSubClient`, which take the same arguments.

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
        datetimes: Whether `Event.value` gives fields that the schema documents as ``DateTime`` as
            `datetime` in UTC, and not as milliseconds since 1970.

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
        datetimes: bool = False,
    ) -> None:
        self._connection = Connection(
            session,
            ClientOptions(
                endpoint, insecure, ca_file, proxy, timings, transport, schema_store, datetimes
            ),
        )
        self._opened()

    def _opened(self) -> None:
        """Make what a face needs beside the connection."""

    @classmethod
    def from_env(
        cls,
        options: Mapping[str, str | None] | None = None,
        *,
        schema_store: SchemaStore | None = None,
        datetimes: bool = False,
    ) -> Self:
        """Make a client of the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that go before the environment, by field of `Settings`, and
                ``config`` and ``profile``, which choose a file and a table in it.
            schema_store: Where schemas are kept.
            datetimes: Whether `Event.value` gives dates with a time as `datetime`.

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
            datetimes=datetimes,
        )

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
        """Subscribe to a topic; the caller keeps the position.

        Args:
            topic: Full path.
            replay: Where to start: ``latest``, ``earliest``, a `ReplayOption`, a replay id or its
                hexadecimal form. With a store: for a topic that the store does not know. A store is
                taken here as well.
            replay_store: Where the position is kept: a mapping or a `ReplayStore`, for the asyncio
                client also an `AsyncReplayStore`.
            replay_fallback: Where to continue when the position is refused; None to stop.
            ack: ``auto``: asking for the next batch acks the one before; ``manual``: the caller
                acks. Matters only with a store.
            max_pending_count: Events held unread before no more are asked for.
            max_bytes: Payload bytes held unread before no more are asked for.
            max_unacked: Events delivered and not acked before no more are asked for.
            connection_timeout: The outage budget: seconds that transport failures may last before
                the subscription fails; None for ever. Not a timeout of one connection attempt.
            on_gap: Told of every position that is given up; must not wait, nor close the client:
                it is called in the thread that finds it, which may be the one that receives for all
                subscriptions; by the asyncio client in the loop's.
            on_undecodable: What becomes of an event that cannot be decoded: ``fail``: reading its
                value raises; ``quarantine``: it is put into *quarantine*, durably before its
                position can be passed, and is not delivered; ``skip``: it is counted, logged, and
                not delivered. The last two decode a batch when it is delivered.
            quarantine: Where such events are kept.
            fields: Names of the fields that are read; None for all. A change event's header and a
                platform event's ``CreatedDate`` always are. A field that an event's schema does not
                have is not in its value; a line in the log says so, once for each schema.

        Raises:
            ConfigurationError: The store is an async one, or there are two, or *ack* or
                *on_undecodable* is not one of its values, or the latter does not go with
                *quarantine*, or *fields* is not a list of names of whole fields.
            ValueError: *replay* or *replay_fallback* is a string that is not a position, or a limit
                is below 1.
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
        """Subscribe through a managed subscription; the service keeps the position.

        Args:
            name: Developer name or record id of the ManagedEventSubscription.
            ack: As for `subscribe`.
            max_pending_count: As for `subscribe`.
            max_bytes: As for `subscribe`.
            max_unacked: As for `subscribe`.
            connection_timeout: As for `subscribe`; does not count waiting for the managed slot.
            on_gap: As for `subscribe`.
            on_undecodable: As for `subscribe`.
            quarantine: As for `subscribe`.
            fields: As for `subscribe`.

        Raises:
            ConfigurationError: *ack* or *on_undecodable* is not one of its values, or the latter
                does not go with *quarantine*, or *fields* is not a list of names of whole fields.
            ValueError: A limit is below 1.
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
        """Return a plain subscription of this face."""

    @abstractmethod
    def _managed(self, name: str, options: SubscribeOptions) -> ManagedT:
        """Return a managed subscription of this face."""
