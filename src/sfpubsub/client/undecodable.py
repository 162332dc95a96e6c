"""Policies for events that cannot be decoded: `OnUndecodable`.

An event cannot be decoded if its payload does not fit its schema, if its schema is not valid, or if
the service reports that there is no such schema. If a schema is only temporarily unavailable, a
response that needs it waits instead.

With ``fail``, a batch is delivered unchanged, and each event is decoded on first access: reading
`Event.value` of an undecodable event raises an error. With ``quarantine`` and ``skip``, a batch is
decoded when it is delivered, in the receiving thread, because undecodable events must be removed.
A batch must contain consecutive events, because acks rely on this; so a response from which events
are removed is split into several batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.errors import ConfigurationError, DecodeError, SchemaError, SchemaNotFoundError
from sfpubsub.stores.quarantine import FailedIn, Quarantine, QuarantinedEvent
from sfpubsub.transports.base import Target
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.types import RawEvent

logger = logging.getLogger("sfpubsub.client")

OnUndecodable: TypeAlias = Literal["fail", "quarantine", "skip"]
"""``fail``: reading the event's value raises DecodeError. ``quarantine``: the event is stored and
not delivered. ``skip``: the event is counted and logged, but not delivered.
"""


def codec_of(schemas: SchemaCache, schema_id: str) -> Codec:
    """Return the codec of a schema, or a `NoCodec` if the schema will never be available.

    Raises:
        SfPubSubError: The schema cannot be fetched at the moment.
    """
    try:
        return schemas.get(schema_id)
    except SchemaError as error:
        # Only an error with the service's own error code proves that there is no such schema; a
        # bare NOT_FOUND may come from an intermediary.
        is_word = error.error_code is not None or not isinstance(error, SchemaNotFoundError)
        if error.retryable or not is_word:
            raise
        return NoCodec(schema_id, error)


def reason_of(error: DecodeError) -> str:
    """Return the reason why a payload cannot be decoded, without naming the event."""
    return str(error.__cause__ if isinstance(error.__cause__, DecodeError) else error)


def quarantined(
    event: Event,
    reason: str,
    received_at: float,
    failed_in: FailedIn = "decoding",
    traceback: str = "",
) -> QuarantinedEvent:
    """Return the quarantine entry for an event."""
    return QuarantinedEvent(
        RawEvent(event.id, event.schema_id, event.payload, event.replay_id, event.headers),
        subscription=event.subscription,
        topic=event.topic,
        reason=reason,
        received_at=received_at,
        delivery_seq=event.delivery_seq,
        schema_json=event.codec.schema_json or None,
        failed_in=failed_in,
        traceback=traceback,
    )


class Screened(NamedTuple):
    """A response, split into deliverable batches and undecodable events."""

    batches: list[EventBatch]
    """The batches between the undecodable events, in order; may be empty."""
    undecodable: list[QuarantinedEvent]


def check_policy(on_undecodable: OnUndecodable, quarantine: Quarantine | None) -> None:
    """Check *on_undecodable*, and that a quarantine is given if, and only if, it requires one.

    Raises:
        ConfigurationError: *on_undecodable* is unknown, or a quarantine is missing or not allowed.
    """
    if on_undecodable not in get_args(OnUndecodable):
        raise ConfigurationError(
            f"on_undecodable must be 'fail', 'quarantine' or 'skip', not {on_undecodable!r}"
        )
    if (on_undecodable == "quarantine") != (quarantine is not None):
        raise ConfigurationError(
            "on_undecodable='quarantine' and quarantine=… must be used together"
        )


class Screen:
    """Splits responses into batches and undecodable events, as the policy requires.

    One object per subscription. No I/O; not thread-safe.

    Args:
        target: The topic or managed subscription.
        on_undecodable: The policy for events that cannot be decoded.
        ack: Called by batches to ack, with the first and the last ``delivery_seq``.
        datetimes: Whether `Event.value` returns ``DateTime`` fields as `datetime`.
    """

    def __init__(
        self,
        target: Target,
        on_undecodable: OnUndecodable,
        ack: Callable[[int, int], None],
        *,
        datetimes: bool,
    ) -> None:
        self._target = target
        self._policy = on_undecodable
        self._ack = ack
        self._datetimes = datetimes
        self.quarantined: int = 0
        """Number of events quarantined."""
        self.skipped: int = 0
        """Number of events skipped."""

    @property
    def keeps(self) -> bool:
        """Whether undecodable events are stored in the quarantine."""
        return self._policy == "quarantine"

    def sort(self, arrival: Arrival, codecs: Mapping[str, Codec]) -> Screened:
        """Split a response into deliverable batches and undecodable events.

        Args:
            arrival: The received response.
            codecs: Codecs by schema id, one for each schema of the events.
        """
        count = len(arrival.batch.events)
        whole = self._run(arrival, codecs, 0, count, {})
        if self._policy == "fail":
            return Screened([whole], [])
        decoded: dict[int, dict[str, Any]] = {}
        undecodable: list[QuarantinedEvent] = []
        cuts: list[int] = []
        for place, event in enumerate(whole):
            try:
                decoded[place] = event.value
            except DecodeError as error:
                kept = quarantined(event, reason_of(error), arrival.received_at)
                undecodable.append(kept)
                cuts.append(place)
        batches = [
            self._run(arrival, codecs, start, stop, decoded)
            for start, stop in zip([0, *(cut + 1 for cut in cuts)], [*cuts, count], strict=True)
            if start < stop
        ]
        return Screened(batches, undecodable)

    def _run(
        self,
        arrival: Arrival,
        codecs: Mapping[str, Codec],
        start: int,
        stop: int,
        decoded: Mapping[int, dict[str, Any]],
    ) -> EventBatch:
        batch = arrival.batch
        return EventBatch(
            subscription=self._target.name,
            topic=None if self._target.managed else self._target.name,
            events=batch.events[start:stop],
            codecs=codecs,
            first_seq=batch.first_seq + start,
            received_at=arrival.received_at,
            rpc_id=batch.rpc_id,
            ack=self._ack,
            decoded={p - start: decoded[p] for p in range(start, stop) if p in decoded}
            if decoded
            else None,
            datetimes=self._datetimes,
        )

    def count(self, events: list[QuarantinedEvent]) -> None:
        """Count and log events that are not delivered."""
        if self.keeps:
            self.quarantined += len(events)
        else:
            self.skipped += len(events)
        for event in events:
            logger.warning(
                "event %s at position %s of %s is %s: %s",
                event.raw.id or "(without an id)",
                event.raw.replay_id.hex(),
                event.subscription,
                f"quarantined with key {event.key}" if self.keeps else "skipped",
                event.reason,
            )
