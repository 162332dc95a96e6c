"""Reread a batch that an earlier process recorded in the checkpoint.

The checkpoint contains only the start and the end of a batch. Its events are read again from the
start until the replay id of an event EQUALS the end: ids have no order, so no other comparison can
detect that the end was passed. Each event is compared, because the service may divide the events
into responses differently than before. The batch had ``end.seq - start.seq`` events, so no more
than that many are kept at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfpubsub.spark.stream.feed import Feed, Horizon, ReceivedEvent
from sfpubsub.spark.stream.offsets import Offset


class Found(NamedTuple):
    """The result of `find`: a batch that was read again."""

    events: list[ReceivedEvent]
    after: list[ReceivedEvent]
    """Events after the batch's end, from the same response."""
    whole: bool
    """Whether the batch has the same start and number of events as before."""


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
    """Read the events after *start* again, up to the one that ends the batch.

    Args:
        start: The start of the batch.
        end: The end of the batch. If the batch started at LATEST or EARLIEST, it also contains the
            replay id of the batch's first event.
        feed: A new feed from *start*, or from EARLIEST if *start* is not a fixed position.
        take: Returns the feed's next events, or an empty list if none arrive soon.
        refused: Returns whether the service rejected the start. In that case, the feed continues
            at EARLIEST.
        horizon: Creates a `Horizon`, which detects when everything published before now has been
            read.
        patience: Seconds without an event after which no more events are expected.

    Returns:
        The batch; None if its end was not found, for example because it is no longer retained.
    """
    size = end.seq - start.seq
    # The newest events: those of the batch, once its end is found.
    held: deque[ReceivedEvent] = deque(maxlen=size)
    # Whether `held` starts with the batch's first event. If *end* names that event, it must be
    # found first, because option startingOffsets may have changed since.
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
                    return None  # as many events as the batch had, but not its end
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
