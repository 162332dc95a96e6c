"""The streaming client for threads."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sfpubsub.streaming.base import StreamingBase
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import ReplayStart

T = TypeVar("T")


class StreamingClient(StreamingBase):
    """A client of the Streaming API: PushTopics and generic channels, with replay.

    One session, any number of channels, one queue. Thread-safe, except that one thread receives and
    acks; the replay store is called in that thread and in the one that subscribes. Use it as a
    context manager, or call `open` and `close`.

    Args:
        session: A ready session, or an object whose ``get_session`` supplies one.
        replay: Where channels start: ``NEW_EVENTS`` (-1), ``ALL_EVENTS`` (-2), the id of an event;
            or the store that knows: a mapping or a `ReplayStore`.
        replay_fallback: Where a channel continues when its position is refused, at its start and
            after every reconnect; None to raise `ReplayIdRejectedError`.
        replay_policy: ``automatic`` stores a message's position just before it is delivered: a
            crash may lose the message being handled. ``manual`` stores it when `ack` is called: a
            crash repeats what was not acked.
        connection_timeout: Seconds without a connection after which `receive` raises, and raises
            again; the client keeps trying. None for never.
        max_pending_count: No more is fetched while this many messages wait; at most one answer to
            a poll comes on top, and what a server sends with its answer to a subscribe. 0 for no
            bound.
        json_dumps: Makes the JSON of requests.
        json_loads: Reads the JSON of answers; raises a ValueError for what is not JSON. Neither is
            used for sign-ins, whose answers hold secrets, or for `push`.
        api_version: Of the Streaming API, 37.0 or later.
        insecure: ``force`` for plaintext to anywhere; to loopback it is always allowed.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        pace: Times.
        on_gap: Called with every position that is given up, in a thread of the client's; must not
            block.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def open(self) -> None:
        """Sign in and connect.

        Raises:
            LocalProtocolError: The client is open already.
            AuthenticationError: The credentials or the token were refused.
            StreamUnavailableError: The server cannot be reached, or is too busy.
            SfPubSubError: The server refused for another reason.
        """
        _finished(self._open())

    def close(self) -> None:
        """Say goodbye to the server. What was fetched can still be received."""
        _finished(self._close())
        self._driver.join()

    def subscribe(self, channel: str, replay: ReplayStart | None = None) -> None:
        """Subscribe to a channel; returns when the server has confirmed it.

        A channel that is subscribed already stays as it is.

        Args:
            channel: ``/topic/NAME``, perhaps with a filter (``?Field='x'``), ``/u/NAME``,
                ``/event/NAME__e``, ``/data/NAME``.
            replay: Where to start; takes precedence over the store and the client's own ``replay``.
                Without it, and with a store, a channel that was unsubscribed continues after the
                last message that was fetched.

        Raises:
            LocalProtocolError: The channel is not valid, is subscribed with another filter, or is
                subscribed already and *replay* was given; or the client is closed.
            ReplayIdRejectedError: The position was refused, and there is no fallback.
            TopicNotFoundError: There is no such channel.
            PermissionDeniedError: The user may not read it.
            QuotaExceededError: A limit of the org is reached.
            StreamUnavailableError: There was no connection for ``connection_timeout``.
        """
        _finished(self._subscribe(channel, replay))

    def unsubscribe(self, channel: str) -> None:
        """Unsubscribe; does nothing for a channel that is not subscribed.

        Raises:
            LocalProtocolError: The client is closed.
        """
        _finished(self._unsubscribe(channel))

    def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None to wait for ever.

        Returns:
            The message, or None if none came in that time.

        Raises:
            StreamUnavailableError: There was no connection for ``connection_timeout``; call again
                to keep waiting.
            ReplayIdRejectedError: After a reconnect a channel's position was refused, and there is
                no fallback. The channel is no longer subscribed; others continue.
            AuthenticationError: The token was refused, and no other can be obtained. The client is
                then closed, as after every error that is not described otherwise here.
            LocalProtocolError: The client is closed, and nothing is left to receive.
            SfPubSubError: The server ended the connection, or refused a channel.
        """
        return _finished(self._receive(timeout))

    def ack(self, message: StreamingMessage) -> None:
        """Store a message's position, unless that of a later message is stored.

        Raises:
            RemoteProtocolError: The message has no position.
        """
        _finished(self._ack(message))

    @contextmanager
    def handling(self, message: StreamingMessage) -> Iterator[StreamingMessage]:
        """Ack a message when the block ends without an exception."""
        yield message
        self.ack(message)

    def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST.

        Args:
            channel: ``/u/NAME``.
            payload: At most 3,000 characters.
            user_ids: Who receives it; empty for everybody.

        Returns:
            How many users received it; -1 for a broadcast.

        Raises:
            TopicNotFoundError: There is no such generic channel.
            SfPubSubError: As `sfpubsub.auth.rest.OrgClient` raises.
        """
        return self._channels.push(channel, payload, user_ids)

    def __iter__(self) -> Iterator[StreamingMessage]:
        while (message := _finished(self._next())) is not None:
            yield message
            yield from self._at_once()

    def __enter__(self) -> StreamingClient:
        self.open()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of this face, which waits in this thread and never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine of the synchronous face was suspended")
