"""Events that cannot be decoded, or that a handler failed on, kept until they can be dealt with.

An entry holds everything that was received, so that nothing but a better schema, decoder or handler
is needed later. It is durable before the event's position can be passed: a writer acks
after `Quarantine.put` has returned. Entries are never removed; that is for people.
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
"""``decoding``: the event could not be decoded. ``handler``: a handler failed on it."""


@dataclass(frozen=True)
class QuarantinedEvent:
    """One event as it was received, and why it could not be decoded or handled."""

    raw: RawEvent
    """Payload, schema id, replay id, event id, headers."""
    subscription: str
    """The topic, or the managed subscription's name or id, that delivered it."""
    topic: str
    """Its topic; empty where a managed subscription delivered it and the schema is not known."""
    reason: str
    """What the decoder, the service or the handler said."""
    received_at: float
    """Seconds since 1970 UTC."""
    delivery_seq: int = 0
    """Order of arrival among those received at the same time."""
    schema_json: str | None = None
    """The schema, if it was known."""
    failed_in: FailedIn = "decoding"
    """What could not be done with it."""

    @cached_property
    def key(self) -> str:
        """The entry's name: equal when the same event of the same subscription comes again.

        An event that has an id may come again under another replay id. Without one the replay id
        tells it from another event with the same bytes, and bytes that differ are never merged. An
        event that could not be decoded, came again, and then failed in a handler has two entries:
        the mark that the first was redriven says nothing about the second.
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
            digest.update(len(part).to_bytes(8, "big"))  # so that no byte can move between parts
            digest.update(part)
        return digest.hexdigest()


class Quarantine(ABC):
    """Takes events that cannot be decoded, or that a handler failed on.

    Called in the thread that iterates, or in one that handles; by the asyncio face in threads of
    the client's. A subscription makes one call at a time.
    """

    @abstractmethod
    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """Keep events; durable when this returns. One that is here already is not kept twice.

        If it raises, none of the events is acked, and they come again.
        """
