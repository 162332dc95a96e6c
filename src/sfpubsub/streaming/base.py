"""The code shared by the synchronous and the asyncio client: everything except waiting.

Nothing here blocks. `Operation` is a request to the protocol, for whose outcome a client waits.
`StreamingBase._turn` returns the next message, or a step to carry out first: `Wait` or `Store`. The
synchronous client carries steps out in the calling thread, the asyncio client in the event loop.

A message is acked when it is delivered (automatic policy) or by the application (manual policy). A
position is stored once every message up to it is acked, in order of arrival.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

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
from sfpubsub.stores.replay_store import AnyStore, is_async
from sfpubsub.streaming import positions
from sfpubsub.streaming.bayeux import Call, StreamingMessage
from sfpubsub.streaming.driver import StreamingDriver
from sfpubsub.streaming.pending import Pending
from sfpubsub.streaming.progress import Progress, Storable
from sfpubsub.streaming.protocol import Pace, StreamingProtocol
from sfpubsub.streaming.subscriptions import Subscriptions
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.tooling.pushtopics import GenericChannels
from sfpubsub.types import Gap, ReplayOption

ReplayPolicy = Literal["automatic", "manual"]

# Earlier versions have no replay; the service refuses them or treats them as the newest.
_VERSION = re.compile(r"(3[7-9]|[4-9]\d|\d{3})\.0")


class Wait(NamedTuple):
    """Step: wait until `StreamingBase._has_news` returns true, or `seconds` have passed."""

    seconds: float | None
    """None means no limit."""


class Store(NamedTuple):
    """Step: store a position, then call `Progress.stored`."""

    channel: str
    progress: Progress
    storable: Storable


Turn: TypeAlias = StreamingMessage | Wait | Store | None


class Operation:
    """Opening, subscribing or unsubscribing: an input to the protocol with an outcome.

    Args:
        driver: Runs the protocol.
        input_: Passes the operation's `Call` to the protocol.
    """

    def __init__(self, driver: StreamingDriver, input_: Callable[[Call], None]) -> None:
        self.driver = driver
        self._input = input_
        self._call = Call()

    def start(self) -> None:
        """Begin.

        Raises:
            LocalProtocolError: The input is not allowed.
        """
        if not self.driver.over:
            self.driver.step(partial(self._input, self._call))

    def is_over(self) -> bool:
        """Return whether there is an outcome."""
        return self._call.is_done or self.driver.over

    def abandon(self) -> None:
        """Undo the operation: its caller was interrupted, and would not learn of a success."""
        self.driver.step(partial(self.driver.protocol.abandon, self._call))

    def finish(self) -> None:
        """Raise the error if the operation has failed.

        Raises:
            SfPubSubError: The operation failed.
            LocalProtocolError: The client is closed.
        """
        if not self._call.is_done:  # the input was not processed
            raise LocalProtocolError("the client is closed: open it first")
        if self._call.error is not None:
            raise self._call.error


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
        self._start, store = positions.start_and_store(replay)
        self.replay_store: AnyStore | None = store
        """The store that keeps positions; None if the client has a fixed start."""
        self._auto_acks = self.replay_store is not None and replay_policy == "automatic"
        # The acks by channel; changed by the driver, too. Kept after a close, because messages may
        # still be acked then.
        self._progress: dict[str, Progress] | None = None if self.replay_store is None else {}
        sessions = CurrentSession(session)
        http = HttpClient(ca_file=ca_file, proxy=proxy, insecure=insecure)
        self._channels = GenericChannels(OrgClient(sessions, http), api_version)
        fallback = None if replay_fallback is None else positions.as_number(replay_fallback)

        def new_driver(first: int) -> StreamingDriver:
            pending = Pending(first, max_pending_count)
            channels = Subscriptions(json_dumps, fallback, pending, self._progress)
            protocol = StreamingProtocol(
                channels, pace or Pace(), random.random, connection_timeout
            )
            transport = LongPolling(http, f"/cometd/{api_version}", sessions, json_loads)
            return StreamingDriver(protocol, transport, on_gap or (lambda _gap: None))

        self._home = CreatorProcess()
        self._new_driver = new_driver
        self._driver = new_driver(1)  # never started; each `open` replaces it

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

    @property
    def late_count(self) -> int:
        """The number of messages that were queued after one of the same channel with a higher
        replay id, since the client was opened.
        """
        return self._driver.protocol.channels.late

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else 'open'})"

    def _check_process(self) -> None:
        self._home.check("the streaming client")

    # The operations of both clients.

    def _opening(self, ring: Callable[[], None] = lambda: None) -> Operation:
        """Start the driver, and return the operation that opens the client.

        Args:
            ring: See `StreamingDriver.start`.
        """
        self._check_process()
        if not self.closed:
            raise LocalProtocolError("the client is already open")
        # Later messages have higher numbers than those before.
        self._driver = self._new_driver(self._driver.pending.next_seq)
        self._driver.start(ring)
        return Operation(self._driver, self._driver.protocol.open)

    def _subscribing(
        self, channel: str, replay: positions.ReplayStart | None, stored: Any
    ) -> Operation:
        """Return the operation that subscribes to a channel.

        Args:
            channel: The channel.
            replay: Where to start, if the caller requires it.
            stored: The position in the store; None if there is none.
        """
        start = stored if replay is None else replay
        number = self._start if start is None else positions.as_number(start, channel)
        subscribe = partial(self._driver.protocol.channels.subscribe, channel, number)
        resumes = replay is None and self.replay_store is not None
        return Operation(
            self._driver, partial(subscribe, rewind=replay is not None, resumes=resumes)
        )

    def _unsubscribing(self, channel: str) -> Operation:
        self._check_process()
        return Operation(self._driver, partial(self._driver.protocol.channels.unsubscribe, channel))

    # Receiving. One thread or task at a time.

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else time.monotonic() + timeout

    def _turn(self, deadline: float | None) -> Turn:
        """Return the next message, or the step to carry out first.

        Args:
            deadline: When to stop waiting, on the monotonic clock; None means no limit.

        Returns:
            None if the deadline has passed, or the client is closed and no message is left.

        Raises:
            SfPubSubError: The next item in the queue is this error.
        """
        self._check_process()
        driver, pending = self._driver, self._driver.pending
        over = driver.over  # read first: a message may be queued just before the end
        head = pending.head()
        if self._auto_acks and isinstance(head, StreamingMessage):
            # First: if storing the position fails, the message stays queued.
            self._note_ack(head)
        if (store := self._due()) is not None:
            return store
        if head is not None:
            pending.take()
            if isinstance(head, SfPubSubError):
                raise head
            return head
        seconds = None if deadline is None else deadline - time.monotonic()
        if over or (seconds is not None and seconds <= 0):
            return None
        pending.report_room()
        return Wait(seconds)

    def _has_news(self) -> bool:
        return bool(self._driver.pending) or self._driver.over or self._due() is not None

    def _received(self, message: StreamingMessage | None) -> StreamingMessage | None:
        """Check the result of a wait for a message.

        Raises:
            LocalProtocolError: The client is closed, and no message is left.
        """
        # Checked in this order, so that a message queued just before the end is not missed.
        if message is None and self._driver.over and not self.has_pending_messages:
            raise LocalProtocolError("the client is closed and there are no pending messages")
        return message

    def _already_queued(self) -> Iterator[StreamingMessage]:
        """Return an iterator over the messages before the next queued error, without waiting.

        This is cheaper than calling `_turn` for each message. With the automatic policy, the
        iterator is empty, because only `_turn` stores positions.
        """
        return iter(()) if self._auto_acks else self._driver.pending.messages()

    # Positions.

    def _acking(self, message: StreamingMessage) -> Store | None:
        """Ack a message, and return the step that stores the position, if it has moved."""
        self._check_process()
        if message.replay_id is None:
            raise RemoteProtocolError(
                f"an event of {message.subscription} has no replay id: it cannot be acked"
            )
        self._note_ack(message)
        return self._due()

    def _note_ack(self, message: StreamingMessage) -> None:
        progress = (self._progress or {}).get(message.subscription)
        if progress is not None and message.replay_id is not None:
            progress.ack(message.delivery_seq)

    def _due(self) -> Store | None:
        """Return the step that stores a position which is due, if there is one."""
        for channel, progress in tuple((self._progress or {}).items()):
            storable = progress.storable()
            if storable is not None:
                return Store(channel, progress, storable)
        return None
