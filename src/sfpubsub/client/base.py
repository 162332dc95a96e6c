"""How a client of either face is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import Session, SessionProvider
from sfpubsub.client.connection import Connection
from sfpubsub.client.options import ClientOptions
from sfpubsub.config import DEFAULT_ENDPOINT, Settings, Timings
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.transports.base import Transport


class ClientBase:
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
