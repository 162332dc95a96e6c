"""Which time it is, as far as this machine's clock can be believed.

The hour of a batch is written into the table, and never goes back. A clock that was a year ahead
for one batch would keep all later rows in that hour, and every event would look too old for the
window. With a managed subscription the service says its own time with each commit. Without, it is
known that the service keeps an event for some days only, so the newest event of a batch says how
late it can be at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sfpubsub.spark.ingest.dedupe import KEPT

_log = logging.getLogger("sfpubsub.spark")

# Seconds by which a clock may be ahead of what the service's own times allow.
_AHEAD = 3600.0

# Seconds since 1970 UTC: the beginning of 2021, when there was no Pub/Sub API. An event that says
# to be older has a date that was not set, and says nothing.
_FIRST_EVENT = 1_609_459_200.0


class ServiceTime:
    """A clock that is compared with the service's times. One thread reads it; any may call `hear`.

    Args:
        clock: Seconds since 1970 UTC.
        steady: Seconds that only pass.
    """

    def __init__(
        self, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._steady = steady
        self._heard: tuple[float, float] | None = None  # the service's time, and when it came
        self._is_said = False

    def hear(self, service_time: float) -> None:
        """Take note of the service's own clock.

        Args:
            service_time: Seconds since 1970 UTC. Again the same is nothing new.
        """
        if self._heard is None or service_time != self._heard[0]:
            self._heard = service_time, self._steady()

    def read(self) -> float:
        """Return the time: the clock's, if the service's own clock does not say otherwise."""
        return self.at_delivery(None)

    def at_delivery(self, newest_event: float | None) -> float:
        """Return the time at which events were delivered, by the clock or the service's times.

        Args:
            newest_event: When the newest of them happened, in seconds since 1970 UTC; None if
                unknown.
        """
        now, service = self._clock(), None
        if self._heard is not None:
            said, heard_at = self._heard
            service = latest = said + self._steady() - heard_at
        elif newest_event is not None and newest_event >= _FIRST_EVENT:
            service, latest = newest_event, newest_event + KEPT
        if service is None or now <= latest + _AHEAD:
            self._is_said = self._is_said and service is None
            return now
        if not self._is_said:
            _log.warning(
                "this machine's clock says %s UTC, which the service's times contradict: %s; the "
                "clock is not believed, and batches are filed under the service's time: set the "
                "clock",
                _text(now),
                f"its own clock says {_text(service)}"
                if self._heard is not None
                else f"it would not deliver so late what happened at {_text(service)}",
            )
            self._is_said = True
        return service


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
