"""The events and batches that an application receives.

An `EventBatch` holds consecutive events from one of the service's responses. Its `Event` objects
are created on iteration, and an event is decoded when `Event.value` is first read. No I/O happens
here: the schemas of a batch are fetched before it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from sfpubsub.avro.bitmaps import change_schema
from sfpubsub.avro.change_events import ChangeEvent
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec
from sfpubsub.avro.json import to_json
from sfpubsub.errors import DecodeError
from sfpubsub.types import RawEvent, ReplayId, dedupe_key

T = TypeVar("T")


class Event:
    """A received event, decoded on first access.

    Not thread-safe, but different events can be handled in different threads.
    """

    # Saves memory: thousands of events exist at a time.
    __slots__ = ("_batch", "_change", "_value", "codec", "delivery_seq", "raw")

    def __init__(self, raw: RawEvent, codec: Codec, batch: EventBatch, delivery_seq: int) -> None:
        self.raw: RawEvent = raw
        """The event as received."""
        self.codec: Codec = codec
        """Codec of the event's schema."""
        self._batch = batch
        self.delivery_seq: int = delivery_seq
        """Number of the event in order of arrival at this subscription object."""
        self._value: dict[str, Any] | None = None
        self._change: ChangeEvent | None = None

    @property
    def id(self) -> str:
        """The event's id (``ProducerEvent.id``); may be empty for change events."""
        return self.raw.id

    @property
    def schema_id(self) -> str:
        """Id of the schema with which the payload was encoded."""
        return self.raw.schema_id

    @property
    def payload(self) -> bytes:
        """The Avro bytes as received."""
        return self.raw.payload

    @property
    def replay_id(self) -> ReplayId:
        """The event's position in the stream, an opaque value."""
        return self.raw.replay_id

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The event's headers, as pairs of a name and a value (``ProducerEvent.headers``)."""
        return self.raw.headers

    @property
    def received_at(self) -> float:
        """When the event was received, in seconds since the epoch on this machine's clock."""
        return self._batch.received_at

    @property
    def subscription(self) -> str:
        """The source of the event: the topic, or the managed subscription's name or id."""
        return self._batch.subscription

    @property
    def topic(self) -> str:
        """The subscribed topic; for a managed subscription, the event type's own topic.

        The service does not reveal which topic a managed subscription reads, so the topic is
        derived from the event's API name.
        """
        return self._batch.topic or self.codec.topic

    @property
    def event_name(self) -> str:
        """The API name of the event type: the name of its Avro record."""
        return self.codec.name

    @property
    def value(self) -> dict[str, Any]:
        """The decoded fields by name: all of them, or those selected with ``fields``.

        Times are integers, as in the payload; a ``DateTime`` is in milliseconds since the epoch.

        If the client was created with ``datetimes=True``, fields that the schema documents as
        ``DateTime`` are `datetime` objects in UTC, except for times outside the years 1 to 9999.

        Raises:
            DecodeError: The payload does not fit its schema. The message names the event and its
                position.
        """
        value = self._value
        if value is None:
            try:
                value = self.codec.decode(self.raw.payload, datetimes=self._batch.datetimes)
            except DecodeError as error:
                raise self._undecodable(error) from error
            self._value = value
        return value

    @property
    def event_time(self) -> int | None:
        """When the event occurred, in milliseconds since the epoch; None if unknown.

        Raises:
            DecodeError: The payload does not fit its schema.
        """
        return self.codec.event_time(self.value)

    def facts_and_json(self) -> tuple[int | None, Mapping[str, Any] | None, str]:
        """Return the event's time, its header, and its fields as JSON, without caching `value`.

        Use this for many events that are kept in memory: it is faster than reading the properties,
        and causes less garbage collection. Time and JSON are those of `event_time` and `to_json`,
        but the JSON contains all fields even if the subscription decodes only some. The header uses
        Salesforce's names, and is None if the event is not a change event.

        Raises:
            DecodeError: The payload does not fit its schema.
        """
        if self._value is not None and not self._batch.datetimes and self.codec.wanted is None:
            return (*self.codec.facts(self._value), to_json(self._value))
        return self._decoded_by(self.codec.whole.facts_and_json)

    def _decoded_by(self, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(self.raw.payload)
        except DecodeError as error:
            raise self._undecodable(error) from error

    def _undecodable(self, error: DecodeError) -> DecodeError:
        return DecodeError(
            f"event {self.id or '(without an id)'} at position {self.replay_id.hex()} of "
            f"{self.subscription} cannot be decoded: {error}",
            error_code=error.error_code,
            rpc_id=error.rpc_id,
        )

    @property
    def change_event(self) -> ChangeEvent | None:
        """The changes described by a change data capture event; None for other events.

        Raises:
            DecodeError: The payload does not fit its schema, or has no header.
        """
        if self._change is None and self.codec.is_change_event:
            schema = change_schema(self.schema_id, self.codec.schema_json)
            self._change = ChangeEvent(schema, self.value, self.codec.wanted)
        return self._change

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the fields that an update changed; empty for all other events.

        This is faster than ``change_event.changed_fields``.

        Raises:
            DecodeError: The payload does not fit its schema, or has no list of changed fields.
        """
        if not self.codec.is_change_event:
            return ()
        header = self.value.get(CHANGE_EVENT_HEADER)
        entries = header.get("changedFields") if type(header) is dict else None
        if type(entries) is not list:
            change = self.change_event  # raises a descriptive error
            return () if change is None else change.changed_fields
        return change_schema(self.schema_id, self.codec.schema_json).expand(entries)

    @property
    def dedupe_key(self) -> bytes:
        """16 bytes that are equal whenever the same event is received again; computed on access."""
        return dedupe_key(self.raw.id, self.raw.schema_id, self.raw.payload)

    def to_json(self) -> str:
        """Return the fields as one line of JSON.

        Times are integers, as in the payload, even if the client was created with
        ``datetimes=True``.

        Raises:
            DecodeError: The payload does not fit its schema.
        """
        if self._value is not None and not self._batch.datetimes:
            return to_json(self._value)
        if self.codec.compiled is not None:  # which does not need the value
            return self._decoded_by(self.codec.to_json)
        value, text = self._decoded_by(self.codec.decode_with_json)
        if not self._batch.datetimes:
            self._value = value
        return text

    def ack(self) -> None:
        """Ack this event. Its position may be committed once all earlier events are also acked."""
        self._batch.ack_range(self.delivery_seq, self.delivery_seq)

    def __repr__(self) -> str:
        return f"Event({self.event_name}, id={self.id!r}, replay_id={self.replay_id.hex()})"


class EventBatch:
    """Consecutive events from one response, in order of arrival. Never empty.

    Args:
        subscription: The topic, or the managed subscription's name or id.
        topic: The subscribed topic; None for a managed subscription.
        events: The received events.
        codecs: Codecs by schema id, one for each schema of the events.
        first_seq: `Event.delivery_seq` of the first event; the others are numbered consecutively.
        received_at: When the response was received, in seconds since the epoch on this machine's
            clock.
        rpc_id: The service's id for the response.
        ack: Called with the first and the last ``delivery_seq`` of consecutive events to ack.
            Thread-safe.
        decoded: Values of events that are already decoded, by index in *events*. Each becomes the
            `Event.value` of the first `Event` that is created for its index.
        datetimes: Whether `Event.value` returns ``DateTime`` fields as `datetime`.
    """

    def __init__(
        self,
        *,
        subscription: str,
        topic: str | None,
        events: tuple[RawEvent, ...],
        codecs: Mapping[str, Codec],
        first_seq: int,
        received_at: float,
        rpc_id: str = "",
        ack: Callable[[int, int], None],
        decoded: Mapping[int, dict[str, Any]] | None = None,
        datetimes: bool = False,
    ) -> None:
        self.subscription = subscription
        self.topic = topic
        self.raw_events = events
        self.first_seq = first_seq
        self.received_at = received_at
        self.rpc_id = rpc_id
        self.ack_range = ack
        self.codecs = codecs
        """Codecs by schema id, one for each schema of the events."""
        self._decoded = dict(decoded or ())
        self.datetimes = datetimes
        """Whether `Event.value` returns ``DateTime`` fields as `datetime`."""

    def __iter__(self) -> Iterator[Event]:
        for place, raw in enumerate(self.raw_events):
            yield self._event(place, raw)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """Return the event at a place of the batch, or the events of a slice.

        Each access creates the `Event` again, which then decodes its payload again.
        """
        places = range(len(self.raw_events))[index]
        if isinstance(places, range):
            return [self._event(place, self.raw_events[place]) for place in places]
        return self._event(places, self.raw_events[places])

    def _event(self, place: int, raw: RawEvent) -> Event:
        event = Event(raw, self.codecs[raw.schema_id], self, self.first_seq + place)
        if self._decoded and place in self._decoded:
            event._value = self._decoded.pop(place)
        return event

    def behind(self, seq: int) -> EventBatch | None:
        """Return the events after ``delivery_seq`` *seq* as a batch; None if no event follows."""
        start = seq + 1 - self.first_seq
        if start >= len(self.raw_events):
            return None
        return EventBatch(
            subscription=self.subscription,
            topic=self.topic,
            events=self.raw_events[start:],
            codecs=self.codecs,
            first_seq=self.first_seq + start,
            received_at=self.received_at,
            rpc_id=self.rpc_id,
            ack=self.ack_range,
            decoded={place - start: value for place, value in self._decoded.items()},
            datetimes=self.datetimes,
        )

    def __len__(self) -> int:
        return len(self.raw_events)

    @property
    def last_replay_id(self) -> ReplayId:
        """Position of the batch's last event."""
        return self.raw_events[-1].replay_id

    def ack(self) -> None:
        """Ack every event of the batch."""
        self.ack_range(self.first_seq, self.first_seq + len(self.raw_events) - 1)

    def __repr__(self) -> str:
        return f"EventBatch({self.subscription}, {len(self)} events)"
