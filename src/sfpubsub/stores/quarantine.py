"""The quarantine: stores events that could not be decoded or handled, for later processing.

An entry contains everything that was received, so it can be processed once the schema, decoder or
handler is fixed. It is durable before the event's position can be committed: the event is acked
only after `Quarantine.put` has returned. The library never removes entries.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from sfpubsub.types import RawEvent

FailedIn: TypeAlias = Literal["decoding", "handler"]
"""Stage that failed: ``decoding``, or ``handler`` if a handler raised."""


@dataclass(frozen=True)
class QuarantinedEvent:
    """One event as it was received, and why it could not be decoded or handled."""

    raw: RawEvent
    """The event as received: payload, schema id, replay id, event id and headers."""
    subscription: str
    """Source of the event: the topic, or the managed subscription's name or id."""
    topic: str
    """The event's topic; empty if a managed subscription delivered it and its schema is unknown."""
    reason: str
    """Error message of the decoder, the service or the handler."""
    received_at: float
    """When the event was received, in seconds since the epoch."""
    delivery_seq: int = 0
    """Order of arrival among events received at the same time."""
    schema_json: str | None = None
    """The Avro schema as JSON text; None if it was not available."""
    failed_in: FailedIn = "decoding"
    """Stage that failed: ``decoding`` or ``handler``."""
    traceback: str = ""
    """Traceback of the handler's exception; empty if the event could not be decoded."""

    @cached_property
    def key(self) -> str:
        """Key of the entry, which stays the same if the subscription redelivers the event.

        An event with an id may be redelivered under a different replay id. For an event without an
        id, the replay id distinguishes it from another event with the same bytes. Events with
        different bytes are never merged. An event that first failed in decoding and later in a
        handler has two entries, because each failure is redriven separately.
        """
        raw = self.raw
        digest = hashlib.blake2b(digest_size=16, person=b"sfpubsub quarant")
        which = raw.id.encode() if raw.id else bytes(raw.replay_id)
        for part in (
            self.subscription.encode(),
            b"id" if raw.id else b"replay id",
            which,
            raw.schema_id.encode(),
            raw.payload,
            *([b"handler"] if self.failed_in == "handler" else []),
        ):
            # The length separates the parts, so that moving bytes between them changes the key.
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()


class Quarantine(ABC):
    """Stores events that cannot be decoded or that a handler failed on.

    `put` is called in the thread that iterates over the subscription, or in a handler thread. The
    asyncio client calls it in worker threads. A subscription makes one call at a time.
    """

    @abstractmethod
    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """Store events durably. An event that is already stored is not stored again.

        If this method raises an error, none of the events is acked: the subscription calls it again
        with the same events, or the service redelivers them.
        """
