"""The current time by this machine's clock, or by the service's times if the clock is ahead.

The time of a batch determines the partition of its rows and never decreases. If the clock were a
year ahead for one batch, all later rows would get that time too, and every event would look too old
for the window of dedupe keys (key_window.py). For a managed subscription, the service reports its
own time with each commit. For other sources, the newest event of a batch limits how late the
current time can be, because the service retains an event for only a few days.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sfpubsub.spark.ingest.dedupe import KEPT

_log = logging.getLogger("sfpubsub.spark")

# Seconds by which the clock may exceed the latest time that is consistent with the service's times.
_AHEAD = 3600.0

# Start of 2021, before the Pub/Sub API existed, in seconds since the epoch. An older event time was
# not set properly and is ignored.
_FIRST_EVENT = 1_609_459_200.0


class ServiceTime:
    """A clock that is checked against the service's times.

    Only one thread may read the time; any thread may call `record`.

    Args:
        clock: Returns the time in seconds since the epoch.
        steady: Returns the time of a monotonic clock, in seconds.
    """

    def __init__(
        self, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._steady = steady
        # The service's time, and the steady time at which it was received.
        self._service: tuple[float, float] | None = None
        self._is_said = False

    def record(self, service_time: float) -> None:
        """Record the time that the service's own clock reads now.

        Args:
            service_time: Seconds since the epoch. A repeated value is ignored.
        """
        if self._service is None or service_time != self._service[0]:
            self._service = service_time, self._steady()

    def read(self) -> float:
        """Return the current time, in seconds since the epoch.

        This is the clock's time. But if the service's time is known, and the clock is ahead of it
        by more than `_AHEAD` seconds, it is the service's time.
        """
        return self.at_delivery(None)

    def at_delivery(self, newest_event: float | None) -> float:
        """Return the time of a delivery, in seconds since the epoch.

        This is the clock's time, unless the clock is too far ahead:

        - If the service's time is known, the clock may be ahead of it by `_AHEAD` seconds. If it is
          further ahead, the service's time is returned.
        - Otherwise, the clock may be ahead of *newest_event* by `_AHEAD` plus `KEPT` seconds,
          because the event may be `KEPT` seconds old. If it is further ahead, *newest_event* is
          returned.

        When the clock is too far ahead, a warning is logged; it is repeated only if the clock was
        right in between.

        Args:
            newest_event: Time of the newest event delivered, in seconds since the epoch; None if
                unknown.
        """
        now, service = self._clock(), None
        if self._service is not None:
            said, heard_at = self._service
            service = latest = said + self._steady() - heard_at
        elif newest_event is not None and newest_event >= _FIRST_EVENT:
            service, latest = newest_event, newest_event + KEPT
        if service is None or now <= latest + _AHEAD:
            self._is_said = self._is_said and service is None
            return now
        if not self._is_said:
            _log.warning(
                "this machine's clock reads %s UTC, but %s: correct the clock (until then, batches "
                "get the time of the service or of their newest event)",
                _text(now),
                f"the service's clock reads {_text(service)}"
                if self._service is not None
                else f"the service would not deliver an event from {_text(service)} that late",
            )
            self._is_said = True
        return service


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
