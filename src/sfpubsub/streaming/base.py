"""What both faces of the streaming client share: settings, the queue, positions. Waits for nothing.

A position is kept when its message is handed out (automatic policy), or when the application says
so (manual). It only moves forward, in order of arrival.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, cast, get_args

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider, StaticSession
from sfpubsub.config import Settings
from sfpubsub.config.settings import STREAMING_API_VERSION
from sfpubsub.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from sfpubsub.stores.replay_store import AnyStore
from sfpubsub.streaming.driver import Items, StreamingDriver
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import ReplaySource, ReplayStart, as_number, as_store
from sfpubsub.streaming.protocol import Pace, State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.tooling.pushtopics import GenericChannels
from sfpubsub.types import Gap, ReplayOption

logger = logging.getLogger("sfpubsub.streaming")

ReplayPolicy = Literal["automatic", "manual"]

_VERSION = re.compile(r"[1-9]\d{1,2}\.0")
_OLDEST = 37.0  # earlier versions have no replay and are refused, or treated as the newest

Face = TypeVar("Face", bound="StreamingBase")


class StreamingBase:
    """A client of the Streaming API; see the two faces."""

    _AWAITS = False  # whether the face can await a store

    def __init__(
        self,
        session: Session | SessionProvider,
        *,
        replay: ReplaySource = ReplayOption.NEW_EVENTS,
        replay_fallback: ReplayStart | None = None,
        replay_policy: ReplayPolicy = "automatic",
        connection_timeout: float | None = 10.0,
        max_pending_count: int = 100,
        json_dumps: Callable[[Any], str] = json.dumps,
        json_loads: Callable[[str], Any] = json.loads,
        api_version: str = STREAMING_API_VERSION,
        insecure: str = "",
        ca_file: str = "",
        proxy: str = "",
        pace: Pace | None = None,
        on_gap: Callable[[Gap], None] | None = None,
    ) -> None:
        if replay_policy not in get_args(ReplayPolicy):
            raise ConfigurationError(f"replay_policy is automatic or manual, not {replay_policy!r}")
        if not _VERSION.fullmatch(api_version) or float(api_version) < _OLDEST:
            raise ConfigurationError(
                f"API version {api_version!r} is not {_OLDEST} or later, which the Streaming API "
                f"needs for replay"
            )
        provider = StaticSession(session) if isinstance(session, Session) else session
        is_shared = isinstance(provider, CurrentSession)
        self._sessions = cast("CurrentSession", provider) if is_shared else CurrentSession(provider)
        self._store = as_store(replay, awaits=self._AWAITS)
        self._start = -1 if self._store is not None else as_number(cast("ReplayStart", replay))
        self._fallback = None if replay_fallback is None else as_number(replay_fallback)
        self._keeps = replay_policy == "automatic" and self._store is not None
        self._timeout = connection_timeout
        self._most = max_pending_count
        self._dumps, self._loads = json_dumps, json_loads
        self._version = api_version
        self._pace = pace or Pace()
        self._on_gap = on_gap
        self._network = {"ca_file": ca_file, "proxy": proxy, "insecure": insecure}
        self._http = HttpClient(ca_file=ca_file, proxy=proxy, insecure=insecure)
        self._driver: StreamingDriver | None = None
        self._kept: dict[str, int] = {}  # order of arrival of the newest position in the store

    @classmethod
    def from_env(
        cls: type[Face], options: Mapping[str, str | None] | None = None, **arguments: Any
    ) -> Face:
        """Make a client of the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that go before the environment; as for `PubSubClient.from_env`.
            arguments: Keyword arguments of the class.

        Raises:
            ConfigurationError: A setting is missing or wrong.
        """
        settings = Settings.load(options)
        given = {
            "api_version": settings.streaming_api_version,
            "insecure": settings.insecure,
            "ca_file": settings.ca_file,
            "proxy": settings.proxy,
        }
        return cls(session_provider(settings), **{**given, **arguments})

    @property
    def closed(self) -> bool:
        """Whether the client is not open: not yet, not any more, or ended by an error."""
        # The state, which changes before the error that says why can be read.
        return self._driver is None or self._driver.protocol.state is State.STOPPED

    @property
    def subscriptions(self) -> set[str]:
        """The channels that are subscribed, with their filters."""
        return set() if self._driver is None or self.closed else self._driver.protocol.subscriptions

    @property
    def pending_count(self) -> int:
        """Messages that were fetched and not yet handed out; errors among them count as well."""
        return 0 if self._driver is None else len(self._driver.items)

    @property
    def has_pending_messages(self) -> bool:
        """Whether there are any."""
        return self.pending_count > 0

    @property
    def replay_store(self) -> AnyStore | None:
        """Where positions are kept; None with a fixed start."""
        return self._store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else 'open'})"

    # For the faces.

    def _make_driver(self, notify: Callable[[], None]) -> StreamingDriver:
        if not self.closed:
            raise LocalProtocolError("the client is open already")
        items: Items = deque()
        protocol = StreamingProtocol(
            self._pace,
            self._dumps,
            random.random,
            items.__len__,
            connection_timeout=self._timeout,
            max_pending_count=self._most,
            fallback=self._fallback,
        )
        transport = LongPolling(f"/cometd/{self._version}", **self._network)
        self._kept.clear()
        self._driver = StreamingDriver(
            protocol, items, self._sessions, transport, self._loads, notify, self._on_gap
        )
        return self._driver

    def _opened(self) -> StreamingDriver:
        if self._driver is None or self.closed:
            raise LocalProtocolError("the client is closed: open it first")
        return self._driver

    def _subscribe(self, channel: str, start: ReplayStart | None, *, rewind: bool) -> Future[None]:
        driver = self._opened()
        if channel.startswith(("/event/", "/data/")):
            logger.info(
                "%s can be read through the Pub/Sub API as well, which is the newer one: see "
                "PubSubClient.subscribe",
                channel,
            )
        number = self._start if start is None else as_number(start, channel)
        return driver.ask(driver.protocol.subscribe, channel, number, rewind=rewind)

    def _unsubscribe(self, channel: str) -> Future[None]:
        driver = self._opened()
        return driver.ask(driver.protocol.unsubscribe, channel)

    def _check_not_over(self) -> None:
        # In this order: what was put in before the end is seen.
        if (self._driver is None or self._driver.over) and not self.has_pending_messages:
            raise LocalProtocolError("the client is closed and there are no pending messages")

    def _marks(self, message: StreamingMessage) -> bool:
        """Whether the message's position goes into the store."""
        if message.replay_id is None:
            raise RemoteProtocolError(
                f"an event of {message.subscription} came without a replay id, and so it has no "
                f"position to keep"
            )
        return message.delivery_seq > self._kept.get(message.subscription, 0)

    def _marked(self, message: StreamingMessage) -> None:
        self._kept[message.subscription] = message.delivery_seq

    def _channels(self) -> GenericChannels:
        return GenericChannels(OrgClient(self._sessions, self._http), self._version)
