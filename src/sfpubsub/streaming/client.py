"""The synchronous client of the Streaming API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.streaming.base import Operation, Store, StreamingBase, Wait
from sfpubsub.streaming.bayeux import StreamingMessage
from sfpubsub.streaming.positions import ReplayStart, as_replay_id


class StreamingClient(StreamingBase):
    """A client of the Streaming API: PushTopics and generic channels, with replay.

    All channels share one session and one queue. Thread-safe, except that only one thread may
    receive and ack. The replay store is called in that thread and in those that subscribe. Use the
    client as a context manager, or call `open` and `close`.

    Args:
        session: A session, or a provider whose ``get_session`` returns one.
        replay: Where channels start: ``NEW_EVENTS`` (-1), ``ALL_EVENTS`` (-2), the replay id of an
            event, or a store of positions: a mapping or a `ReplayStore`.
        replay_fallback: Where a channel continues if its position is refused, at the start or after
            a reconnect; None to raise `ReplayIdRejectedError`.
        replay_policy: ``automatic`` stores a message's position just before it is delivered; after
            a crash, the message in progress may be lost. ``manual`` stores it once the message and
            all before it are acked; after a crash, the others are delivered again.
        connection_timeout: Seconds without a connection after which `receive` raises an error,
            repeated after each further period of this length; the client keeps retrying. With None
            or 0, this error is never raised.
        max_pending_count: The client stops fetching while this many messages are pending. The limit
            can be exceeded by one response to a poll, and by events that the server sends with its
            response to a subscribe. 0 means no limit.
        json_dumps: Encodes the JSON of requests.
        json_loads: Decodes the JSON of responses; must raise ValueError for invalid JSON. Neither
            function is used for sign-ins, whose responses contain secrets, or for `push`.
        api_version: Version of the Streaming API, 37.0 or later.
        insecure: ``force`` allows plaintext to any host; plaintext to loopback is always allowed.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; if empty, ``https_proxy`` and ``no_proxy`` are used.
        pace: Timeouts and delays.
        on_gap: Called with a `Gap`, in one of the client's threads, whenever a channel continues
            from another position and may have missed events; must not block.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    def open(self) -> None:
        """Sign in and connect.

        Raises:
            LocalProtocolError: The client is already open.
            AuthenticationError: The credentials or the token were refused.
            StreamUnavailableError: The server cannot be reached, or is too busy.
            SfPubSubError: The server refused the connection for another reason.
        """
        self._wait_for(self._opening())

    def close(self) -> None:
        """Disconnect from the server, and wait up to ``Pace.close`` seconds (5 by default) for each
        of the client's three threads.

        Messages that were already fetched can still be received. In a forked child, this does
        nothing: the connections are the parent's.
        """
        self._driver.close()

    def subscribe(self, channel: str, replay: ReplayStart | None = None) -> None:
        """Subscribe to a channel. Returns when the server has confirmed the subscription.

        Does nothing if the channel is already subscribed and *replay* is omitted.

        Args:
            channel: ``/topic/NAME``, optionally with a filter (``?Field='x'``), ``/u/NAME``,
                ``/event/NAME__e`` or ``/data/NAME``.
            replay: Where to start; takes precedence over the store and the client's own ``replay``.
                If omitted, and the client has a store, a channel that was unsubscribed continues
                after the last message fetched.

        Raises:
            LocalProtocolError: The channel is not valid, is subscribed with another filter, is
                already subscribed and *replay* was given, or is being subscribed or unsubscribed
                by another call; or the client is closed.
            ReplayIdRejectedError: The position was refused, and there is no fallback.
            TopicNotFoundError: The channel does not exist.
            PermissionDeniedError: The user is not allowed to read the channel.
            QuotaExceededError: A limit of the org is reached.
            StreamUnavailableError: There was no connection for ``connection_timeout``.
        """
        self._check_process()
        store = self.replay_store if replay is None else None
        stored = cast("ReplayStore", store).get(channel) if store is not None else None
        self._wait_for(self._subscribing(channel, replay, stored))

    def unsubscribe(self, channel: str) -> None:
        """Unsubscribe from a channel. Does nothing if it is not subscribed.

        Raises:
            LocalProtocolError: The channel is not valid, is subscribed with another filter, or is
                being subscribed or unsubscribed by another call; or the client is closed.
            SfPubSubError: The server refused the request, or there was no connection for
                ``connection_timeout``.
        """
        self._wait_for(self._unsubscribing(channel))

    def receive(self, timeout: float | None = None) -> StreamingMessage | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None to wait forever.

        Returns:
            The message, or None if none arrived within the timeout.

        Raises:
            StreamUnavailableError: There was no connection for ``connection_timeout``; call again
                to keep waiting.
            ReplayIdRejectedError: A channel's position was refused after a reconnect, and there is
                no fallback. The channel is no longer subscribed; the others continue.
            AuthenticationError: The token was refused, and a new one cannot be obtained. The client
                is then closed.
            LocalProtocolError: The client is closed, and there are no pending messages.
            SfPubSubError: The server refused a channel after a reconnect, and the others continue;
                or it ended the connection, and the client is closed.
        """
        return self._received(self._next(self._deadline(timeout)))

    def ack(self, message: StreamingMessage) -> None:
        """Ack a message. If all messages of its channel before it are acked, store its position.

        Does nothing if the client has no store, or for messages from before the last `subscribe`.

        Raises:
            RemoteProtocolError: The message has no replay id.
        """
        store = self._acking(message)
        if store is not None:
            self._store(store)

    @contextmanager
    def handling(self, message: StreamingMessage) -> Iterator[StreamingMessage]:
        """Yield *message*, and ack it when the ``with`` block ends without an exception."""
        yield message
        self.ack(message)

    def push(self, channel: str, payload: str, user_ids: Sequence[str] = ()) -> int:
        """Push a generic event through REST.

        Args:
            channel: ``/u/NAME``.
            payload: At most 3,000 characters.
            user_ids: Ids of the users who receive it; empty for everybody.

        Returns:
            The number of users who received it; -1 for a broadcast.

        Raises:
            LocalProtocolError: An argument is not valid.
            TopicNotFoundError: The generic channel does not exist.
            SfPubSubError: As raised by `sfpubsub.auth.rest.OrgClient`.
        """
        self._check_process()
        return self._channels.push(channel, payload, user_ids)

    def __iter__(self) -> Iterator[StreamingMessage]:
        while (message := self._next(None)) is not None:
            yield message
            yield from self._already_queued()

    def __enter__(self) -> StreamingClient:
        self.open()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    # Carrying out what `StreamingBase` decides.

    def _wait_for(self, operation: Operation) -> None:
        try:
            operation.start()
            operation.driver.wait(operation.is_over, None)
        except BaseException:
            operation.abandon()
            raise
        operation.finish()

    def _next(self, deadline: float | None) -> StreamingMessage | None:
        while True:
            turn = self._turn(deadline)
            if isinstance(turn, Wait):
                self._driver.wait(self._has_news, turn.seconds)
            elif isinstance(turn, Store):
                self._store(turn)
            else:
                return turn

    def _store(self, step: Store) -> None:
        store = cast("ReplayStore", self.replay_store)  # this client rejects async stores
        store.set(step.channel, as_replay_id(step.storable.position))
        step.progress.stored(step.storable)
