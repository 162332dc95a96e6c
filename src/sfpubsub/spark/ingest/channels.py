"""Adapt a channel of the legacy Streaming API to an ingest job.

The payload is the message's ``data`` as JSON in UTF-8; there is no schema. The position is stored
in the table, so nothing is acked to the service.

Replay ids are numbers that restart when an org is migrated, so a position consists of a replay id
and an *epoch*: the number of positions that the service has rejected so far. ``123`` is a position
in the first epoch, ``123/1`` one in the next. Rows contain only the replay id. Invariant: an event
belongs to the new epoch if and only if it was received after the rejection.

An event's position is not always its own replay id: if an earlier event may still be on its way, it
is the one up to which nothing can be missing, as the client would store it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType

from sfpubsub.avro.codec import NoCodec
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    ReplayIdRejectedError,
    SchemaError,
    StreamUnavailableError,
    SubscriptionClosedError,
)
from sfpubsub.streaming import StreamingClient, StreamingMessage
from sfpubsub.streaming.positions import ALL_EVENTS, NEW_EVENTS
from sfpubsub.types import Gap, Health, HealthState, RawEvent, ReplayId, dedupe_key

# Seconds without a connection after which the job is notified, so that it does not mistake an
# outage for an idle channel. Shorter than typical idle timeouts, longer than a reconnect.
CONNECTION_TIMEOUT = 5.0

# Maximum number of messages in one batch, and of received messages that wait for the next batch. A
# server response has about this many messages.
_MOST = 1000

_STARTS = {"earliest": ALL_EVENTS, "latest": NEW_EVENTS}

_SEPARATOR = "/"


class ChannelEvent(Event):
    """A message of the Streaming API as an event for a raw table."""

    __slots__ = ()

    _batch: ChannelBatch

    @property
    def event_time(self) -> int | None:
        """When the event was created, in milliseconds since the epoch; None if unknown."""
        return _milliseconds(self._message.created_date)

    def facts_and_json(self) -> tuple[int | None, None, str]:
        """Return `event_time`, None (there is no change event header), and the payload as JSON."""
        return self.event_time, None, self.raw.payload.decode()

    @property
    def dedupe_key(self) -> bytes:
        """Dedupe key, derived from the event's UUID.

        Without a UUID, it is derived from channel, epoch, replay id and creation date.
        """
        if self.raw.id:
            return dedupe_key(self.raw.id, "", b"")
        message = self._message
        identity = [self._batch.epoch, message.replay_id, message.created_date]
        return dedupe_key("", message.channel, json.dumps(identity).encode())

    @property
    def _message(self) -> StreamingMessage:
        return self._batch.messages[self.delivery_seq - self._batch.first_seq]


class ChannelBatch(EventBatch):
    """Messages of one epoch, in order of arrival.

    Args:
        subscription: The subscribed channel, including its filter.
        messages: At least one message.
        positions: The position to store after each message, without the epoch.
        epoch: Number of positions that were rejected before these messages.
        first_seq: `Event.delivery_seq` of the first message.
        received_at: When the messages were received, in seconds since the epoch.
        ack: Called with the first and the last ``delivery_seq`` of consecutive events to ack.
    """

    def __init__(
        self,
        subscription: str,
        messages: list[StreamingMessage],
        positions: list[int],
        *,
        epoch: int,
        first_seq: int,
        received_at: float,
        ack: Callable[[int, int], None],
    ) -> None:
        self.messages = messages
        self.epoch = epoch
        name = messages[0].channel
        # The positions of these events include the epoch; those of the rows do not.
        events = tuple(
            _raw_event(message, position, epoch)
            for message, position in zip(messages, positions, strict=True)
        )
        super().__init__(
            subscription=subscription,
            topic=name,
            events=events,
            codecs={"": JsonCodec(name)},
            first_seq=first_seq,
            received_at=received_at,
            ack=ack,
        )

    def __iter__(self) -> Iterator[Event]:
        codec = self.codecs[""]
        for place, raw in enumerate(self.raw_events):
            digits = ReplayId(str(self.messages[place].replay_id).encode())
            yield ChannelEvent(raw._replace(replay_id=digits), codec, self, self.first_seq + place)


class JsonCodec(NoCodec):
    """Placeholder codec for the events of a channel, which have no schema.

    Its `name` is the last part of the channel's path.

    Args:
        channel: The channel of the events.
    """

    def __init__(self, channel: str) -> None:
        super().__init__("", SchemaError(f"events of {channel} are JSON and have no schema"))
        self.name = channel.rpartition("/")[2]
        self.topic = channel


class ChannelSubscription:
    """A subscription to one channel. A context manager; use it in one thread at a time.

    Args:
        connect: Creates the client; called with keyword arguments of `StreamingClient`.
        channel: The channel, optionally with a filter.
        position: Position after which to resume; None for the oldest retained event.
        fallback: ``earliest`` or ``latest``: where to continue if the position is rejected. With
            None, a rejection raises ReplayIdRejectedError.
        clock: Returns the time in seconds since the epoch.

    Raises:
        ConfigurationError: *position* is not a valid channel position.
    """

    def __init__(
        self,
        connect: Callable[..., StreamingClient],
        channel: str,
        position: ReplayId | None,
        *,
        fallback: str | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = channel
        # What the client would store if everything that it has returned were processed.
        self._safe: dict[str, bytes] = {}
        self._client = connect(
            replay=self._safe,
            connection_timeout=CONNECTION_TIMEOUT,
            max_pending_count=_MOST,
            on_gap=self._note,
        )
        self._id, self._epoch = (ALL_EVENTS, 0) if position is None else _parsed(position, channel)
        self._fallback = None if fallback is None else _STARTS[fallback]
        self._clock = clock
        self._gaps: list[Gap] = []
        self._state: HealthState = "new"
        self._reason: str | None = None
        self._down_until = 0.0
        self._delivered = self._acked = 0
        self._last: ReplayId | None = None

    def __enter__(self) -> ChannelSubscription:
        self._client.open()
        self._state = "streaming"
        try:
            self._subscribe()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next batch, or None if no event arrives within *timeout* seconds.

        None is returned earlier if the connection is lost, or if the position was rejected and the
        subscription continues at the fallback.

        Raises:
            ReplayIdRejectedError: The position was rejected, and there is no fallback.
            SubscriptionClosedError: The client was closed.
            SfPubSubError: The client has failed, or an event has no replay id.
        """
        first = self._receive(timeout)
        if first is None:
            return None
        messages, positions, epoch = [first], [self._position(first)], self._epoch
        while len(messages) < _MOST and self._client.pending_count:
            message = self._receive(0.0)
            if message is None or self._epoch != epoch:
                break
            messages.append(message)
            positions.append(self._position(message))
        batch = ChannelBatch(
            self.name,
            messages,
            positions,
            epoch=epoch,
            first_seq=self._delivered + 1,
            received_at=self._clock(),
            ack=self._ack,
        )
        self._delivered += len(messages)
        self._last = batch.last_replay_id
        return batch

    def health(self) -> Health:
        """Return the subscription's current state, counts and gaps. Thread-safe."""
        return Health(
            state=self._state,
            reason=self._reason,
            outstanding=0,
            pending_count=self._client.pending_count,
            pending_bytes=0,
            unacked=self._delivered - self._acked,
            delivered=self._delivered,
            redelivered=0,
            reconnects=0,
            last_position=self._last,
            committed=None,
            gaps=tuple(self._gaps),
            confirmed=self._acked,
            responses=self._delivered,
        )

    def report_gap(self, gap: Gap) -> None:
        """Add a gap that the job found. Thread-safe."""
        self._note(gap)

    def abort(self) -> None:
        """Disconnect. The job's next call raises SubscriptionClosedError. Thread-safe."""
        if self._state != "new":
            self._client.close()

    def _receive(self, timeout: float | None) -> StreamingMessage | None:
        """Return the next message; None on a timeout, a lost connection or a new epoch.

        An epoch starts when the position is rejected and there is a fallback; without a fallback, a
        rejection raises ReplayIdRejectedError.
        """
        try:
            message = self._client.receive(timeout)
        except ReplayIdRejectedError as error:
            self._handle_rejected_id(error)
            return None
        except StreamUnavailableError as error:
            if self._client.closed:
                raise
            self._state, self._reason = "waiting", str(error)
            self._down_until = time.monotonic() + 2 * CONNECTION_TIMEOUT
            return None
        except LocalProtocolError as error:
            raise SubscriptionClosedError(f"the subscription to {self.name} is closed") from error
        # The client reports repeatedly that it is disconnected, but does not report a reconnect.
        if message is not None or time.monotonic() >= self._down_until:
            self._state, self._reason = "streaming", None
        if message is not None and message.replay_id is None:
            raise RemoteProtocolError(
                f"an event from {self.name} has no replay id, so the job could not resume after "
                f"it: ingest only channels whose events have replay ids"
            )
        return message

    def _position(self, message: StreamingMessage) -> int:
        """Return the position to store after *message*, which has just been received."""
        safe = self._safe.get(self.name)
        if safe is not None:
            return int.from_bytes(safe, "big")
        # Nothing can be fetched again before the first event of a start with new events.
        return message.replay_id or 0 if self._id == NEW_EVENTS else self._id

    def _subscribe(self) -> None:
        try:
            self._client.subscribe(self.name, self._id)
        except ReplayIdRejectedError as error:
            self._handle_rejected_id(error)

    def _handle_rejected_id(self, error: ReplayIdRejectedError) -> None:
        """Handle the rejection of the position, which *error* reports.

        Record the gap. Then start a new epoch at the fallback; without a fallback, raise *error*.
        """
        if error.gap is not None:
            self._note(error.gap)
        if self._fallback is None:
            raise error
        self._epoch += 1
        self._id = self._fallback
        self._safe.clear()
        self._client.subscribe(self.name, self._fallback)

    def _note(self, gap: Gap) -> None:
        self._gaps.append(gap)

    def _ack(self, first: int, last: int) -> None:
        self._acked += last - first + 1

    def _end(self) -> None:
        self._state = "closed"
        self._client.close()


def _raw_event(message: StreamingMessage, position: int, epoch: int) -> RawEvent:
    data = message.data
    about = data.get("event") if isinstance(data, Mapping) else None
    uuid = about.get("EventUuid") if isinstance(about, Mapping) else None
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        # Escape the text, because lone surrogates cannot be encoded as UTF-8.
        text = json.dumps(data, separators=(",", ":"))
    full = str(position) if epoch == 0 else f"{position}{_SEPARATOR}{epoch}"
    return RawEvent(
        uuid if isinstance(uuid, str) else "",
        "",
        text.encode(),
        ReplayId(full.encode()),
    )


def _parsed(position: ReplayId, channel: str) -> tuple[int, int]:
    try:
        digits, _, epoch = bytes(position).decode("ascii").partition(_SEPARATOR)
        return int(digits), int(epoch or "0")
    except ValueError as error:
        raise ConfigurationError(
            f"the table's position {position.hex()} is not a position of the channel {channel}: "
            f"check that it was not stored for a topic"
        ) from error


def _milliseconds(date: str | None) -> int | None:
    """Convert `StreamingMessage.created_date` to milliseconds since the epoch.

    The date is in ISO format or a number of milliseconds. If it is missing or has any other form,
    return None.
    """
    if date is None:
        return None
    try:
        if date.lstrip("-").isdecimal():
            return int(date)
        found = datetime.fromisoformat(date)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
