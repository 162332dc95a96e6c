"""Events being published, and batches that become durable in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.store import Event, Store

_EVENT_ID_CHARS = 36
"""Maximum characters of an event id; a longer or blank id is replaced by a UUID. Documented."""


@dataclass(frozen=True)
class Topic:
    """A topic, or a channel made of topics.

    Attributes:
        number: Key of the topic's log in the store.
        schema_id: Current schema; blank for a channel.
        published: Total number of events published to it.
    """

    number: int
    name: str
    schema_id: str
    can_publish: bool
    can_subscribe: bool
    published: int = 0


@dataclass(frozen=True)
class Draft:
    """An event as its publisher sent it."""

    payload: bytes
    schema_id: str
    event_id: str = ""


@dataclass(frozen=True)
class Published:
    """The result of publishing one event.

    Attributes:
        event_id: The publisher's id, or a generated one. Also set if the event was rejected.
        replay_id: Its position as clients see it; empty if it was rejected.
        problem: Why it was rejected; None if it was published.
    """

    event_id: str
    replay_id: bytes
    schema_id: str
    problem: str | None = None


class Batch:
    """Events that become durable together. Created and completed by `Bus.together`.

    Args:
        carriers: Returns the topic of a name and the channels that carry it.
        ids: Converts positions to replay ids.
        store: The store, with its transaction open.
        tip: The newest position before this batch.
        at: Time of publication, in seconds since 1970 UTC.

    Attributes:
        tip: The newest position so far.
        at: Time of publication.
        added: Topics and channels that have received events so far, and how many, by name.
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
        """Publish without any check, even bytes that no schema can decode.

        Args:
            name: A topic; the channels that carry it receive the events too.
            drafts: One or more.
            skip: Number of positions to skip first.
            only: Publish to these topics instead of `name` and its channels.

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
    """Return the id of an event: the publisher's if it is valid, else a new one."""
    fits = 0 < len(draft.event_id) <= _EVENT_ID_CHARS
    return draft.event_id if fits else str(uuid.uuid4())
