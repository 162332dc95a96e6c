"""Read a batch again that was recorded in the checkpoint by an earlier process.

Only the two ends of a batch are journaled. Its events are read again from its start on, one by one,
because responses are cut otherwise each time, until one is EQUAL to its end: ids have no order, so
nothing else says that the end was passed. A batch had ``end.seq - start.seq`` events, so no more
than that many are ever held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfpubsub.spark.stream.feed import Feed, Horizon, ReceivedEvent
from sfpubsub.spark.stream.offsets import Offset


class Found(NamedTuple):
    """A batch that was read again."""

    events: list[ReceivedEvent]
    after: list[ReceivedEvent]
    """Events after its end in the same response."""
    whole: bool
    """Whether it has the same start and number of events as before."""


def find(
    start: Offset,
    end: Offset,
    *,
    feed: Feed,
    take: Callable[[], list[ReceivedEvent]],
    refused: Callable[[], bool],
    horizon: Callable[[], Horizon],
    patience: float,
) -> Found | None:
    """Read up to the event that ends the batch.

    Args:
        start: Where the batch began.
        end: Its last event; and its first, if it began at LATEST or EARLIEST.
        feed: A new one: at the start, or at EARLIEST if that moves.
        take: Returns its next events, or none if none come soon.
        refused: Whether the service refused the start and the feed continues at EARLIEST.
        horizon: Makes one that says when everything published before now was read.
        patience: Seconds of silence after which nothing more is to come.

    Returns:
        None if the events are no longer available.
    """
    size = end.seq - start.seq
    held: deque[ReceivedEvent] = deque(
        maxlen=size
    )  # the last ones: those before the end, if it comes
    # Whether `held` began with the batch. Not at the start, if that option has changed since.
    begun = start.is_anchored and end.first is None
    limit: Horizon | None = None
    try:
        while True:
            events = take()
            if refused():
                begun = False
            if not begun and limit is None:
                limit = horizon()
            for index, event in enumerate(events):
                if begun and len(held) == size:
                    return None  # as many as there were, and the end was not among them
                if not begun and event.raw.replay_id == end.first:
                    held.clear()
                    begun = True
                held.append(event)
                if event.raw.replay_id == end.position.replay_id:
                    return Found(list(held), events[index + 1 :], begun and len(held) == size)
            if not events and (feed.tip is not None or feed.idle >= patience):
                return None
            if limit is not None:
                if limit.within(events) is not None:
                    return None
                limit.read(events)
    finally:
        if limit is not None:
            limit.close()
