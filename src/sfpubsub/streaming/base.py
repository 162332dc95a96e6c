"""What both faces of the streaming client share, which is all but waiting.

What waits is written once, as coroutines over `_until` and `_stored`. Here those wait in the
caller's thread, so that nothing ever suspends; those of the asyncio face wait in the loop.

A position is kept when its message is delivered (automatic policy), or when the application says
so (manual). It only moves forward, in order of arrival.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, Literal, Self, get_args

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.config import Settings
from sfpubsub.config.settings import STREAMING_API_VERSION
from sfpubsub.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from sfpubsub.stores.replay_store import AnyStore, is_async
from sfpubsub.streaming import positions
from sfpubsub.streaming.bayeux import Call
from sfpubsub.streaming.driver import StreamingDriver
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.pace import Pace
from sfpubsub.streaming.positions import ReplaySource, ReplayStart
from sfpubsub.streaming.protocol import State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.tooling.pushtopics import GenericChannels
from sfpubsub.types import Gap, ReplayOption

logger = logging.getLogger("sfpubsub.streaming")

ReplayPolicy = Literal["automatic", "manual"]

# Earlier versions have no replay and are refused, or treated as the newest.
_VERSION = re.compile(r"(3[7-9]|[4-9]\d|\d{3})\.0")


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
        if not _VERSION.fullmatch(api_version):
            raise ConfigurationError(f"API version {api_version!r} is not 37.0 or later")
        if is_async(replay) and not self._AWAITS:
            name = type(replay).__name__
            raise ConfigurationError(f"{name} is an async store: use AsyncStreamingClient")
        self._start, self._store = positions.start_and_store(replay)
        self._keeps = self._store is not None and replay_policy == "automatic"
        self._kept: dict[str, int] = {}  # order of arrival of the newest position in the store
        sessions = CurrentSession(session)
        http = HttpClient(ca_file=ca_file, proxy=proxy, insecure=insecure)
        self._channels = GenericChannels(OrgClient(sessions, http), api_version)
        fallback = None if replay_fallback is None else positions.as_number(replay_fallback)
        order = count(1)  # for good: a message of before a close and open is the older one

        def new_driver() -> StreamingDriver:
            protocol = StreamingProtocol(
                pace or Pace(),
                json_dumps,
                random.random,
                connection_timeout=connection_timeout,
                max_pending_count=max_pending_count,
                fallback=fallback,
                order=order,
            )
            transport = LongPolling(http, f"/cometd/{api_version}", sessions, json_loads)
            return StreamingDriver(protocol, transport, on_gap)

        self._new_driver = new_driver
        self._driver = new_driver()  # one for each opening; this one is never started

    @classmethod
    def from_env(cls, options: Mapping[str, str | None] | None = None, **arguments: Any) -> Self:
        """Make a client of the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that go before the environment; as for `PubSubClient.from_env`.
            arguments: Keyword arguments of the class.

        Raises:
            ConfigurationError: A setting is missing or wrong.
        """
        settings = Settings.load(options)
        http = {"insecure": settings.insecure, "ca_file": settings.ca_file, "proxy": settings.proxy}
        given = {"api_version": settings.streaming_api_version, **http, **arguments}
        return cls(session_provider(settings), **given)

    @property
    def closed(self) -> bool:
        """Whether the client is not open: not yet, not any more, or ended by an error."""
        # The state, which changes before the error that says why can be read.
        return self._driver.over or self._driver.protocol.state is State.STOPPED

    @property
    def subscriptions(self) -> set[str]:
        """The channels that are subscribed, with their filters."""
        return set() if self.closed else self._driver.protocol.channels.names

    @property
    def pending_count(self) -> int:
        """Messages that were fetched and not yet delivered; errors among them count as well."""
        return len(self._driver.items)

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

    # What the asyncio face does in its own way.

    def _launch(self, driver: StreamingDriver) -> None:
        driver.start()

    async def _until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until *condition* holds after a step of the driver, or for *timeout* seconds."""
        self._driver.wait(condition, timeout)

    async def _stored(self, call: Callable[[], Any]) -> Any:
        """Return what a call of the store returns."""
        return call()

    # What they do.

    async def _open(self) -> None:
        if not self.closed:
            raise LocalProtocolError("the client is open already")
        self._driver = self._new_driver()
        self._launch(self._driver)
        await self._ask(StreamingProtocol.open)

    async def _close(self) -> None:
        driver = self._driver
        if not driver.over:
            driver.step(driver.protocol.close)
            await self._until(lambda: driver.over)

    async def _subscribe(self, channel: str, replay: ReplayStart | None) -> None:
        if channel.startswith(("/event/", "/data/")):
            logger.info("%s can be read through the Pub/Sub API as well: PubSubClient", channel)
        self._opened()
        start, rewind = replay, replay is not None
        resumes = not rewind and self._store is not None
        if start is None and self._store is not None:
            start = await self._stored(partial(self._store.get, channel))
        number = self._start if start is None else positions.as_number(start, channel)

        def subscribe(protocol: StreamingProtocol, call: Call, _now: float) -> None:
            protocol.channels.subscribe(channel, number, call, rewind=rewind, resumes=resumes)

        await self._ask(subscribe)

    async def _unsubscribe(self, channel: str) -> None:
        await self._ask(lambda protocol, call, _now: protocol.channels.unsubscribe(channel, call))

    async def _ask(self, input_: Callable[[StreamingProtocol, Call, float], None]) -> None:
        """Have the protocol do something, and wait until it is done."""
        driver, call = self._opened(), Call()
        try:
            driver.step(partial(input_, driver.protocol, call))
            await self._until(lambda: call.is_done or driver.over)
        except BaseException:  # interrupted or cancelled: nobody would know that it was done
            driver.step(partial(driver.protocol.abandon, call))
            raise
        if call.error is not None:
            raise call.error
        if not call.is_done:  # it ended just before
            self._opened()

    def _opened(self) -> StreamingDriver:
        if self.closed:
            raise LocalProtocolError("the client is closed: open it first")
        return self._driver

    async def _receive(self, timeout: float | None) -> StreamingMessage | None:
        message = await self._next(timeout)
        # In this order: what was put in before the end is seen.
        if message is None and self._driver.over and not self.has_pending_messages:
            raise LocalProtocolError("the client is closed and there are no pending messages")
        return message

    async def _next(self, timeout: float | None = None) -> StreamingMessage | None:
        driver = self._driver
        items = driver.items
        if not items and not driver.over:
            await self._until(lambda: bool(items or driver.over), timeout)
        if not items:
            return None
        head = items[0]
        if not isinstance(head, StreamingMessage):
            driver.take()
            raise head
        if self._keeps and head.replay_id is not None:  # first: if it fails, it is still there
            await self._ack(head)
        driver.take()
        return head

    def _at_once(self) -> Iterator[StreamingMessage]:
        """Take what is there already, if nothing is to be kept: that costs a fraction."""
        driver = self._driver
        items, popleft, room_at = driver.items, driver.items.popleft, driver.room_at
        while not self._keeps and items and type(head := items[0]) is StreamingMessage:
            popleft()
            if len(items) == room_at:
                driver.step()
            yield head

    async def _ack(self, message: StreamingMessage) -> None:
        name, number = message.subscription, message.replay_id
        if number is None:
            raise RemoteProtocolError(f"an event of {name} came without a replay id to keep")
        if self._store is not None and message.delivery_seq > self._kept.get(name, 0):
            position = positions.as_replay_id(number)
            await self._stored(partial(self._store.set, name, position))
            self._kept[name] = message.delivery_seq
