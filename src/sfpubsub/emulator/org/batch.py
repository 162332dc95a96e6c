"""The data types for publishing, and `Batch`, which adds events to the log in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.store import Event, Store

_EVENT_ID_CHARS = 36
"""Maximum number of characters in an event id. A longer or blank id is replaced by a UUID.
Documented.
"""


@dataclass(frozen=True)
class Topic:
    """A topic of the bus, or a channel that carries the events of other topics.

    Attributes:
        number: Key of the topic's log in the store.
        name: Name, such as `/event/Order_Event__e`.
        schema_id: Id of the current schema; blank for a channel.
        can_publish: Whether clients can publish to the topic.
        can_subscribe: Whether clients can subscribe to the topic.
        published: Total number of events published to the topic.
    """

    number: int
    name: str
    schema_id: str
    can_publish: bool
    can_subscribe: bool
    published: int = 0


@dataclass(frozen=True)
class Draft:
    """An event as its publisher sent it. `event_id` is blank if the publisher set none."""

    payload: bytes
    schema_id: str
    event_id: str = ""


@dataclass(frozen=True)
class Published:
    """The result of publishing one event.

    Attributes:
        event_id: The id that the publisher gave the event, or a generated one. Also set if the
            event was rejected.
        replay_id: The event's replay id; empty if the event was rejected.
        schema_id: Id of the schema with which the event was encoded.
        problem: Why the event was rejected; None if it was published.
    """

    event_id: str
    replay_id: bytes
    schema_id: str
    problem: str | None = None


class Batch:
    """Events that are committed in one transaction. `Bus.together` creates and commits a batch.

    Args:
        carriers: Returns the topic with a given name, and the channels that carry it.
        ids: Converts positions to replay ids.
        store: The store, with its transaction open.
        tip: The newest position before this batch.
        at: Time of publication, in seconds since the epoch.

    Attributes:
        tip: The newest position, including the events added so far.
        at: Time of publication, in seconds since the epoch.
        added: The topics and channels that received events, by name, each with its number of added
            events.
    """

    def __init__(
        self,
        carriers: Callable[[str], list[Topic]],
        ids: ReplayIds,
        store: Store,
        tip: int,
        at: float,
    ) -> None:
        self._carriers = carriers
        self._mint = ids.mint
        self._store = store
        self.tip: int = tip
        self.at = at
        self.added: dict[str, tuple[Topic, int]] = {}

    def add(
        self,
        name: str,
        drafts: Sequence[Draft],
        *,
        skip: int = 0,
        only: Sequence[Topic] | None = None,
    ) -> list[Published]:
        """Add events without checking them: even payloads that cannot be decoded are accepted.

        Args:
            name: Name of a topic; the channels that carry the topic receive the events too.
            drafts: The events; at least one.
            skip: Number of positions to skip before the first event.
            only: Topics that receive the events instead of *name* and its channels.

        Returns:
            The result for each event, in order.

        Raises:
            Refused: *only* is None, and the topic is unknown.
        """
        carriers = self._carriers(name) if only is None else only
        events = [
            Event(position, event_id(draft), draft.schema_id, draft.payload)
            for position, draft in enumerate(drafts, start=self.tip + skip + 1)
        ]
        self._store.append([item.number for item in carriers], events, self.at)
        self.tip = events[-1].position
        for item in carriers:
            _, before = self.added.get(item.name, (item, 0))
            self.added[item.name] = item, before + len(events)
        return [Published(e.event_id, self._mint(e.position), e.schema_id) for e in events]


def event_id(draft: Draft) -> str:
    """Return the event id that the publisher set, or a new UUID if it is missing or not valid."""
    fits = 0 < len(draft.event_id) <= _EVENT_ID_CHARS
    return draft.event_id if fits else str(uuid.uuid4())
