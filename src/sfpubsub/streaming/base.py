"""The code shared by the synchronous and the asyncio client: everything except waiting.

Operations that wait are coroutines, so that they are written only once. They wait in `_until` and
`_stored`. In `StreamingBase`, both block the calling thread, so the coroutines never suspend; the
asyncio client overrides both to wait in the event loop.

A position is stored when its message is delivered (automatic policy) or acked by the application
(manual policy). Stored positions only move forward, in order of arrival.
"""

from __future__ import annotations

import json
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
from sfpubsub.config.settings import STREAMING_API_VERSION, Settings
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
)
from sfpubsub.process import CreatorProcess
from sfpubsub.stores.replay_store import is_async
from sfpubsub.streaming import positions
from sfpubsub.streaming.bayeux import Call, StreamingMessage
from sfpubsub.streaming.driver import StreamingDriver
from sfpubsub.streaming.pending import Pending
from sfpubsub.streaming.protocol import Pace, StreamingProtocol
from sfpubsub.streaming.subscriptions import Subscriptions
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.tooling.pushtopics import GenericChannels
from sfpubsub.types import Gap, ReplayOption

ReplayPolicy = Literal["automatic", "manual"]

# Earlier versions have no replay; the service refuses them or treats them as the newest.
_VERSION = re.compile(r"(3[7-9]|[4-9]\d|\d{3})\.0")


class StreamingBase:
    """Base class of `StreamingClient` and `AsyncStreamingClient`."""

    _AWAITS = False  # whether this client can await a store

    def __init__(
        self,
        session: Session | SessionProvider,
        *,
        replay: positions.ReplaySource = ReplayOption.NEW_EVENTS,
        replay_fallback: positions.ReplayStart | None = None,
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
            raise ConfigurationError(f"replay_policy is {replay_policy!r}: use automatic or manual")
        if not _VERSION.fullmatch(api_version):
            raise ConfigurationError(f"API version {api_version!r} is not valid: use 37.0 or later")
        if is_async(replay) and not self._AWAITS:
            raise ConfigurationError(
                f"the store {type(replay).__name__} is async: use AsyncStreamingClient"
            )
        self._start, self.replay_store = positions.start_and_store(replay)
        """The store that keeps positions; None if the client has a fixed start."""
        self._auto_acks = self.replay_store is not None and replay_policy == "automatic"
        # Channel -> the `delivery_seq` of the message whose position is stored.
        self._acked_seq: dict[str, int] = {}
        sessions = CurrentSession(session)
        http = HttpClient(ca_file=ca_file, proxy=proxy, insecure=insecure)
        self._channels = GenericChannels(OrgClient(sessions, http), api_version)
        fallback = None if replay_fallback is None else positions.as_number(replay_fallback)
        # Not restarted when the client is opened again, so that later messages have higher numbers.
        order = count(1)

        def new_driver() -> StreamingDriver:
            channels = Subscriptions(json_dumps, fallback, Pending(order, max_pending_count))
            protocol = StreamingProtocol(
                channels, pace or Pace(), random.random, connection_timeout
            )
            transport = LongPolling(http, f"/cometd/{api_version}", sessions, json_loads)
            return StreamingDriver(protocol, transport, on_gap or (lambda _gap: None))

        self._home = CreatorProcess()
        self._new_driver = new_driver
        self._driver = new_driver()  # never started; each `open` replaces it

    @classmethod
    def from_env(cls, options: Mapping[str, str | None] | None = None, **arguments: Any) -> Self:
        """Create a client from the ``SFPUBSUB_…`` settings.

        Args:
            options: Settings that take precedence over the environment, as in
                `PubSubClient.from_env`.
            arguments: Further arguments for the constructor; they take precedence over *options*.

        Raises:
            ConfigurationError: A setting is missing or not valid.
        """
        settings = Settings.load(options)
        http = {"insecure": settings.insecure, "ca_file": settings.ca_file, "proxy": settings.proxy}
        given = {"api_version": settings.streaming_api_version, **http, **arguments}
        return cls(session_provider(settings), **given)

    @property
    def closed(self) -> bool:
        """Whether the client is not open: not opened yet, closed, or stopped by an error."""
        return self._driver.protocol.over

    @property
    def subscriptions(self) -> set[str]:
        """Names of the subscribed channels, including filters; empty if the client is closed."""
        return set() if self.closed else self._driver.protocol.channels.names

    @property
    def pending_count(self) -> int:
        """The number of messages and errors that are queued for `receive`."""
        return len(self._driver.pending)

    @property
    def has_pending_messages(self) -> bool:
        """Whether messages or errors are queued; if so, receiving does not wait."""
        return self.pending_count > 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else 'open'})"

    # Overridden by the asyncio client.

    def _launch(self) -> None:
        self._driver.start()

    async def _until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until *condition* is true, checking it after each step of the driver.

        Args:
            condition: Called with the driver's lock held, or in the event loop.
            timeout: Longest wait, in seconds; None means no limit.
        """
        self._driver.wait(condition, timeout)

    async def _stored(self, call: Callable[[], Any]) -> Any:
        """Run *call*, which accesses the replay store, and return its result."""
        return call()

    # The operations of both clients.

    def _check_process(self) -> None:
        self._home.check("the streaming client")

    async def _open(self) -> None:
        self._check_process()
        if not self.closed:
            raise LocalProtocolError("the client is already open")
        self._driver = self._new_driver()
        self._launch()
        await self._ask(self._driver.protocol.open)

    async def _subscribe(self, channel: str, replay: positions.ReplayStart | None) -> None:
        self._check_process()
        start, resumes = replay, False
        if replay is None and self.replay_store is not None:
            start, resumes = await self._stored(partial(self.replay_store.get, channel)), True
        number = self._start if start is None else positions.as_number(start, channel)
        subscribe = partial(self._driver.protocol.channels.subscribe, channel, number)
        await self._ask(partial(subscribe, rewind=replay is not None, resumes=resumes))

    async def _unsubscribe(self, channel: str) -> None:
        self._check_process()
        await self._ask(partial(self._driver.protocol.channels.unsubscribe, channel))

    async def _ask(self, input_: Callable[[Call], None]) -> None:
        """Pass *input_* and a new `Call` to the protocol, and wait until the call is settled.

        Raises:
            SfPubSubError: The call failed.
            LocalProtocolError: The client is closed, or the input is not allowed.
        """
        driver, call = self._driver, Call()
        try:
            if not driver.over:
                driver.step(partial(input_, call))
                await self._until(lambda: call.is_done or driver.over)
        except BaseException:  # interrupted or cancelled: the caller would not learn of a success
            driver.step(partial(driver.protocol.abandon, call))
            raise
        if not call.is_done:  # the input was not processed
            raise LocalProtocolError("the client is closed: open it first")
        if call.error is not None:
            raise call.error

    async def _receive(self, timeout: float | None) -> StreamingMessage | None:
        message = await self._next(timeout)
        # Checked in this order, so that a message queued just before the end is not missed.
        if message is None and self._driver.over and not self.has_pending_messages:
            raise LocalProtocolError("the client is closed and there are no pending messages")
        return message

    async def _next(self, timeout: float | None = None) -> StreamingMessage | None:
        self._check_process()
        driver, pending = self._driver, self._driver.pending
        if not pending and not driver.over:
            pending.report_room()
            await self._until(lambda: bool(pending or driver.over), timeout)
        head = pending.head()
        if self._auto_acks and isinstance(head, StreamingMessage) and head.replay_id is not None:
            await self._ack(head)  # first: if this fails, the message stays queued
        if head is not None:
            pending.take()
        if isinstance(head, SfPubSubError):
            raise head
        return head

    def _already_queued(self) -> Iterator[StreamingMessage]:
        """Return an iterator over the messages before the next queued error, without waiting.

        This is cheaper than calling `_next` for each message. With the automatic policy, the
        iterator is empty, because only `_next` stores positions.
        """
        return iter(()) if self._auto_acks else self._driver.pending.messages()

    async def _ack(self, message: StreamingMessage) -> None:
        self._check_process()
        name, number = message.subscription, message.replay_id
        if number is None:
            raise RemoteProtocolError(f"an event of {name} has no replay id: it cannot be acked")
        if self.replay_store is not None and message.delivery_seq > self._acked_seq.get(name, 0):
            await self._stored(partial(self.replay_store.set, name, positions.as_replay_id(number)))
            self._acked_seq[name] = message.delivery_seq
