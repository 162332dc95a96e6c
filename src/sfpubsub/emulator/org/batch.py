"""Events on their way to the bus: as publishers make them, and batches durable at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.store import Event, Store

_EVENT_ID_CHARS = 36
"""A longer or blank event id is replaced by a UUID. Documented."""


@dataclass(frozen=True)
class Topic:
    """A topic, or a channel made of topics.

    Attributes:
        number: Key of its log in the store.
        schema_id: Current schema; blank for a channel.
        published: Events ever published to it.
    """

    number: int
    name: str
    schema_id: str
    can_publish: bool
    can_subscribe: bool
    published: int = 0


@dataclass(frozen=True)
class Draft:
    """An event as its publisher made it."""

    payload: bytes
    schema_id: str
    event_id: str = ""


@dataclass(frozen=True)
class Published:
    """What became of one published event.

    Attributes:
        event_id: The publisher's, or the one made here. Also set when the event was refused.
        replay_id: Its position as clients see it; empty when refused.
        problem: Why it was refused; None when it was published.
    """

    event_id: str
    replay_id: bytes
    schema_id: str
    problem: str | None = None


class Batch:
    """Events that become durable together; made and ended by `Bus.together`.

    Args:
        carriers: The topic of a name, and the channels that carry it.
        ids: Bytes of a position.
        store: Holds the transaction that is open.
        tip: The newest position before.
        at: When they are made, in seconds since 1970 UTC.

    Attributes:
        tip: The newest position so far.
        at: As given.
        added: Topics and channels that have got events so far, and how many, by name.
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
        """Publish without any check, even bytes that no schema can read.

        Args:
            name: A topic; the channels that carry it have the events too.
            drafts: One or more.
            skip: Leave so many positions out before.
            only: Where the events go instead.

        Raises:
            Refused: The topic is unknown.
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
    """The id of an event: its publisher's, if that can be one, else a new one."""
    fits = 0 < len(draft.event_id) <= _EVENT_ID_CHARS
    return draft.event_id if fits else str(uuid.uuid4())
