"""How a job reaches the org: one sign-in, for HTTP requests and the clients of both APIs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession, org_id_of
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Settings
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.session import is_java_running
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.streaming import StreamingClient
from sfpubsub.tooling import Tooling

_log = logging.getLogger("sfpubsub.spark")


class Service:
    """The org that a job reads, and the caller's client or one of its own. Thread-safe.

    Args:
        options: See `PubSubClient.from_env`.
        client: The caller's client; None to open one.

    Raises:
        ConfigurationError: A setting is missing or not valid, or there is a client, but no JVM.
    """

    def __init__(
        self, options: Mapping[str, str | None] | None, client: PubSubClient | None
    ) -> None:
        if client is not None and not is_java_running():
            raise ConfigurationError(
                "start Spark before you open a client, because starting its JVM forks the process, "
                "which must not happen while gRPC's threads run"
            )
        self.settings: Settings = Settings.load(options)
        self.http: HttpClient = HttpClient.from_settings(self.settings)
        self.sessions: CurrentSession = (
            CurrentSession(session_provider(self.settings)) if client is None else client.sessions
        )
        self._client = client

    @property
    def org_id(self) -> str:
        """Id of the org, 18 characters.

        Raises:
            SfPubSubError: The sign-in failed.
        """
        return org_id_of(self.sessions.get().tenant_id)

    @contextmanager
    def client(self, schemas: SchemaStore) -> Iterator[PubSubClient]:
        """Return the caller's client, or one that has reached the service and is signed in.

        Only the latter looks up *schemas*, and is closed at the end of the block.

        Raises:
            AuthenticationError: The sign-in was rejected.
            StreamUnavailableError: The service or the login host cannot be reached.
        """
        if self._client is not None:
            yield self._client
            return
        record_of = Tooling(self.sessions, http=self.http).stamp
        with PubSubClient.from_settings(
            self.settings, self.sessions, schema_store=schemas, record_of=record_of
        ) as client:
            client.connect()
            session = self.sessions.get()  # fail now on a wrong login host, instead of waiting
            _log.info("signed in at %s, org %s", session.instance_url, session.tenant_id)
            yield client

    def streaming_client(self, **options: Any) -> StreamingClient:
        """Create a client of the Streaming API; *options* are arguments of its constructor."""
        return StreamingClient(
            self.sessions,
            api_version=self.settings.streaming_api_version,
            insecure=self.settings.insecure,
            ca_file=self.settings.ca_file,
            proxy=self.settings.proxy,
            **options,
        )
