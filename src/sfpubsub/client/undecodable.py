"""What becomes of an event that cannot be decoded: `OnUndecodable`.

Such an event's payload does not fit its schema, or its schema is not valid, or the service says
that there is no such schema. A schema that cannot be had for now is none of this: the batch waits.

With ``fail`` a batch is handed out as it came, and decoding stays lazy: reading `Event.value` of
the event raises. With ``quarantine`` and ``skip`` a batch is decoded when it is handed out, in the
thread that asks for it, because what is handed out has to be without those events. A batch stays a
run of consecutive deliveries, which acks rely on: a response is handed out as the runs between the
events that were taken out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from sfpubsub.avro.codec import Codec, NoCodec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.batch import EventBatch
from sfpubsub.client.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.errors import ConfigurationError, DecodeError, SchemaError, SchemaNotFoundError
from sfpubsub.transports.base import Target
from sfpubsub.transports.grpc_driver import Arrival
from sfpubsub.types import Health

logger = logging.getLogger("sfpubsub.client")

OnUndecodable: TypeAlias = Literal["fail", "quarantine", "skip"]
"""``fail``: reading it raises DecodeError. ``quarantine``: it is kept and passed over. ``skip``: it
is counted, logged and passed over."""


def codec_of(schemas: SchemaCache, schema_id: str) -> Codec:
    """Return what decodes the payloads of a schema, or a `NoCodec` if nothing ever will.

    Raises:
        SfPubSubError: The schema cannot be had, which says nothing about the payloads.
    """
    try:
        return schemas.get(schema_id)
    except SchemaError as error:
        # Only the service can say that there is no such schema, and what it says carries a code; a
        # bare NOT_FOUND may come from anything on the way.
        is_word = error.error_code is not None or not isinstance(error, SchemaNotFoundError)
        if error.retryable or not is_word:
            raise
        return NoCodec(schema_id, error)


def reason_of(error: DecodeError) -> str:
    """Return why a payload cannot be decoded, without which event it is."""
    return str(error.__cause__ if isinstance(error.__cause__, DecodeError) else error)


class Screen:
    """Applies one subscription's policy to what arrives. For one thread at a time.

    Args:
        on_undecodable: The policy.
        quarantine: Takes the events, with ``quarantine`` and only then.

    Raises:
        ConfigurationError: The policy is none, or the quarantine does not go with it.
    """

    def __init__(self, on_undecodable: OnUndecodable, quarantine: Quarantine | None) -> None:
        if on_undecodable not in get_args(OnUndecodable):
            raise ConfigurationError(
                f"on_undecodable is 'fail', 'quarantine' or 'skip', not {on_undecodable!r}"
            )
        if (on_undecodable == "quarantine") != (quarantine is not None):
            raise ConfigurationError(
                "on_undecodable='quarantine' and quarantine=… go together: where events are kept "
                "has to be said, and is of no use otherwise"
            )
        self._lazy = on_undecodable == "fail"
        self._quarantine = quarantine
        self.quarantined = 0
        """Events put into the quarantine."""
        self.skipped = 0
        """Events passed over without being kept."""

    def runs(
        self,
        arrival: Arrival,
        target: Target,
        codecs: Mapping[str, Codec],
        ack: Callable[[int, int], None],
    ) -> list[EventBatch]:
        """Return what of a response is to be handed out, in order; possibly nothing.

        1. Decode every event.
        2. Put those that cannot be decoded into the quarantine, which makes them durable.
        3. Ack them. Their position is passed once everything before them was acked, too.

        If 2 fails nothing is acked, and the response is screened again.

        Args:
            arrival: A response.
            target: What it came from.
            codecs: By schema id, one for each event's.
            ack: Takes the first and the last ``delivery_seq`` of a run of done events.

        Raises:
            WriteError: The quarantine could not be written.
        """
        make = _maker(arrival, target, codecs, ack)
        if self._lazy:
            return [make(0, len(arrival.batch.events), {})]
        decoded: dict[int, dict[str, Any]] = {}
        undecodable: list[tuple[int, QuarantinedEvent]] = []
        for place, event in enumerate(make(0, len(arrival.batch.events), {})):
            try:
                decoded[place] = event.value
            except DecodeError as error:
                kept = QuarantinedEvent.of(event, reason_of(error), arrival.received_at)
                undecodable.append((place, kept))
        self._set_aside([kept for _, kept in undecodable])
        runs, start = [], 0
        for place, kept in undecodable:
            ack(kept.delivery_seq, kept.delivery_seq)
            if start < place:
                runs.append(make(start, place, decoded))
            start = place + 1
        if start < len(arrival.batch.events):
            runs.append(make(start, len(arrival.batch.events), decoded))
        return runs

    def health(self, health: Health, schemas: SchemaCache) -> Health:
        """Return a snapshot with the counts of what was taken out."""
        return replace(
            health,
            quarantined=self.quarantined,
            skipped=self.skipped,
            details={**health.details, "schema_id_mismatches": schemas.mismatches},
        )

    def _set_aside(self, events: list[QuarantinedEvent]) -> None:
        if not events:
            return
        if self._quarantine is not None:
            self._quarantine.put(events)
            self.quarantined += len(events)
        else:
            self.skipped += len(events)
        for event in events:
            logger.warning(
                "event %s at position %s of %s is %s: %s",
                event.raw.id or "(without an id)",
                event.raw.replay_id.hex(),
                event.subscription,
                "skipped" if self._quarantine is None else f"quarantined as {event.key}",
                event.reason,
            )


def _maker(
    arrival: Arrival,
    target: Target,
    codecs: Mapping[str, Codec],
    ack: Callable[[int, int], None],
) -> Callable[[int, int, Mapping[int, dict[str, Any]]], EventBatch]:
    def make(start: int, stop: int, decoded: Mapping[int, dict[str, Any]]) -> EventBatch:
        return EventBatch(
            subscription=target.name,
            topic=None if target.managed else target.name,
            events=arrival.batch.events[start:stop],
            codecs=codecs,
            first_seq=arrival.batch.first_seq + start,
            received_at=arrival.received_at,
            rpc_id=arrival.batch.rpc_id,
            ack=ack,
            decoded={p - start: decoded[p] for p in range(start, stop) if p in decoded},
        )

    return make
