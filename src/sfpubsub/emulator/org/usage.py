"""Counts of delivered events, by event and time, since the start of the process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

SEGMENT_S = 15 * 60
"""The shortest interval for which usage is reported, in seconds. Documented."""

DAY_S = 24 * 3600
HOUR_S = 3600

_KEPT_S = DAY_S + SEGMENT_S
"""How long counts of deliveries are stored, in seconds. No request reads older counts."""


class Usage:
    """Counts the deliveries of the last 24 hours, by time segment and schema. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _delivered
        self._delivered: dict[int, Counter[str]] = {}  # by segment: schema id -> deliveries

    def delivered(self, now: float, schemas: Mapping[str, int]) -> None:
        """Count events that are being sent. Redeliveries count as well, as in an org.

        Args:
            now: The current time, in seconds since the epoch.
            schemas: Number of events of each schema, by schema id.
        """
        segment = int(now // SEGMENT_S)
        with self._lock:
            if segment not in self._delivered:
                oldest = (now - _KEPT_S) // SEGMENT_S
                for old in [item for item in self._delivered if item < oldest]:
                    del self._delivered[old]
                self._delivered[segment] = Counter()
            self._delivered[segment].update(schemas)

    def by_segment(self, since: float) -> Iterable[tuple[int, str, int]]:
        """Return (number of the time segment, schema id, number of deliveries) for each schema in
        each segment that ends after *since* (seconds since the epoch). Segment n begins n times
        `SEGMENT_S` seconds after the epoch.
        """
        with self._lock:
            return [
                (segment, schema_id, count)
                for segment, counts in self._delivered.items()
                if (segment + 1) * SEGMENT_S > since
                for schema_id, count in counts.items()
            ]
