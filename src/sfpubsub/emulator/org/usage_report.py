"""Usage of the org's event allocations: published and delivered events, by event and time.

Published events are counted from the log, so their counts survive a restart; deliveries are counted
since the start of the process. Allocations are not enforced, but the fault `fail_stream` with
subscription.limit.exceeded simulates an exceeded allocation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.store import Store
from sfpubsub.emulator.org.usage import SEGMENT_S

UsageType = Literal["PUBLISH", "DELIVERY"]


@dataclass(frozen=True)
class Used:
    """How many times one kind of event was published or delivered in an interval.

    Attributes:
        event: Name of the event, such as `Order_Event__e`.
        usage: PUBLISH or DELIVERY.
        start: Start of the interval, in seconds since the epoch.
        end: End of the interval, in seconds since the epoch, exclusive.
        count: Number of publications or deliveries.
    """

    event: str
    usage: UsageType
    start: float
    end: float
    count: int


def used(store: Store, bus: Bus, now: float, *, since: float, every: int) -> list[Used]:
    """Return the usage of each event in intervals of equal length, sorted by event, usage type and
    time. Intervals without usage are omitted.

    Args:
        store: Provides the published events.
        bus: Provides the names of events, and the counts of deliveries.
        now: The current time, in seconds since the epoch.
        since: Start of the reported period, in seconds since the epoch. Deliveries are counted
            in segments of `SEGMENT_S` seconds, so the whole segment that contains this time is
            included.
        every: Length of each interval in seconds; a multiple of `SEGMENT_S`.
    """
    names = {topic.name: topic.name.rpartition("/")[2] for topic in bus.topics() if topic.schema_id}
    found: Counter[tuple[str, UsageType, int]] = Counter()
    for name, at, count in store.rows(
        "SELECT t.name, CAST(e.at / ? AS INTEGER), count(*) FROM events AS e"
        " JOIN topic_log AS l ON l.position = e.position JOIN topics AS t ON t.id = l.topic_id"
        " WHERE e.at >= ? AND e.at <= ? GROUP BY 1, 2",
        every,
        since,
        now,
    ):
        if name in names:
            found[names[name], "PUBLISH", at] += count
    for segment, schema_id, count in bus.counters.usage.by_segment(since):
        event = bus.event_of(schema_id)
        if event is not None:
            found[event, "DELIVERY", segment * SEGMENT_S // every] += count
    return [
        Used(event, usage, at * every, (at + 1) * every, count)
        for (event, usage, at), count in sorted(found.items())
    ]
