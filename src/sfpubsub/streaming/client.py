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

    One connection, any number of channels, one queue. Thread-safe, but for receiving and acking,
    which are one thread's business; the replay store is touched in that thread, and in the one that
    subscribes. Use it as a context manager, or call `open` and `close`.

    Args:
        session: A ready session, or an object whose ``get_session`` supplies one.
        replay: Where channels start: ``NEW_EVENTS`` (-1), ``ALL_EVENTS`` (-2), the id of an event;
            or where their positions are kept: a mapping or a `ReplayStore`.
        replay_fallback: Where a channel continues when its position is refused, at its start and
            after every reconnect; None to raise `ReplayIdRejectedError`.
        replay_policy: ``automatic`` keeps a message's position just before it is delivered: a
            crash may lose the message being handled. ``manual`` keeps it when `ack` is called: a
            crash repeats what was not acked.
        connection_timeout: Seconds without a connection after which `receive` raises, and raises
            again; the client keeps trying. None for never.
        max_pending_count: No more is fetched while so many messages wait; at most one answer of the
            server comes on top. 0 for no bound.
        json_dumps: Makes the JSON of requests.
        json_loads: Reads the JSON of answers; raises a ValueError for what is not JSON. Neither is
            used for sign-ins, whose answers hold secrets, nor for `push`.
        api_version: Of the Streaming API, 37.0 or later.
        insecure: ``force`` for plaintext to anywhere; to loopback it is always allowed.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        pace: Times.
        on_gap: Told of every position that is given up, in a thread of the client's; must not wait.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def open(self) -> None:
        """Sign in and connect.

        Raises:
            LocalProtocolError: It is open.
            AuthenticationError: The credentials or the token are refused.
            StreamUnavailableError: The server cannot be reached, or is too busy.
            SfPubSubError: The server refuses otherwise.
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
            replay: Where to start, before what the store and the client's own ``replay`` say.

        Raises:
            LocalProtocolError: It is no channel, is subscribed with another filter, or is
                subscribed and *replay* was given; or the client is closed.
            ReplayIdRejectedError: The position is refused, and there is no fallback.
            TopicNotFoundError: There is no such channel.
            PermissionDeniedError: The user may not read it.
            QuotaExceededError: A limit of the org is reached.
            StreamUnavailableError: There was no connection for ``connection_timeout``.
        """
        _finished(self._subscribe(channel, replay))

    def unsubscribe(self, channel: str) -> None:
        """Unsubscribe; of a channel that is not subscribed there is nothing to do.

        Raises:
            LocalProtocolError: The client is closed.
        """
        _finished(self._unsubscribe(channel))

    def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for one; None for ever.

        Returns:
            None if none came in that time.

        Raises:
            StreamUnavailableError: There was no connection for ``connection_timeout``; call again
                to keep waiting.
            ReplayIdRejectedError: After a reconnect a channel's position is refused, and there is
                no fallback. The channel is no longer subscribed; others continue.
            AuthenticationError: The token is refused, and no other is available. The client is
                closed, as after every error for which this text does not say otherwise.
            LocalProtocolError: The client is closed, and everything was received.
            SfPubSubError: The server ended the connection, or refused a channel.
        """
        return _finished(self._receive(timeout))

    def ack(self, message: StreamingMessage) -> None:
        """Keep a message's position in the store, unless a later one is kept.

        Raises:
            RemoteProtocolError: It has none.
        """
        _finished(self._ack(message))

    @contextmanager
    def handling(self, message: StreamingMessage) -> Iterator[StreamingMessage]:
        """Ack a message when the block ends well; not when it raises."""
        yield message
        self.ack(message)

    def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST.

        Args:
            channel: ``/u/NAME``.
            payload: At most 3,000 characters.
            user_ids: Who gets it; empty for everybody.

        Returns:
            How many users got it; -1 for a broadcast.

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
    raise AssertionError("it has suspended")
