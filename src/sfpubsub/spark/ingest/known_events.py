"""Recognise events that a raw table already contains, and determine the time of each write."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.spark.ingest.dedupe import Marker, Verdict, judge
from sfpubsub.spark.ingest.key_window import KeyWindow
from sfpubsub.spark.ingest.service_time import ServiceTime
from sfpubsub.spark.raw.table import RawTable

# Seconds by which the time may move back after a recovery before the keys are loaded again. After
# smaller steps, keys missing from the window are looked up in the table.
_SET_BACK = 1800.0


class KnownEvents:
    """Looks up the events of a raw table: recent ones in a `KeyWindow`, others in the table.

    Call `recover` first, and again after each write with an unknown outcome. Not thread-safe,
    except for `record_time`.

    Args:
        table: The raw table.
        window: Window for the keys of recent rows.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(self, table: RawTable, window: KeyWindow, clock: Callable[[], float]) -> None:
        self._table = table
        self._window = window
        self._time = ServiceTime(clock)
        self._marker = Marker()
        self._latest = 0.0  # time of the newest write; never decreases
        self._recovered_at = 0.0

    def recover(self) -> None:
        """Reload the table's state, and read the keys of the window's time span from the table.

        Raises:
            WriteError: The table cannot be read.
        """
        self._recover(max(self._latest, self._time.read()))

    def time_of(self, rows: pa.Table, *, is_live: bool) -> float:
        """Return the time to record for a write of *rows*, in seconds since the epoch.

        The returned time never decreases, because the day of a write determines where its rows are
        looked up. If this time is well before the one at which `recover` last loaded the window,
        the clock was ahead during that call and too few keys were loaded, so the window is loaded
        again.

        Args:
            rows: Rows of a raw table.
            is_live: Whether the service has just delivered them.

        Raises:
            WriteError: The window could not be loaded again.
        """
        newest = pc.max(rows["event_time"]).cast(pa.int64()).as_py() if is_live else None
        now = self._time.at_delivery(None if newest is None else newest / 1_000_000)
        now = self._latest = max(self._latest, self._table.newest_time, now)
        if now < self._recovered_at - _SET_BACK:
            self._recover(now)
        return now

    def marks(self, rows: pa.Table, now: float) -> list[int]:
        """Return the mark of each row for a write at *now*; see `dedupe.Marker`."""
        return self._marker.marks(rows, now)

    def judge(self, rows: pa.Table, marks: list[int], now: float, *, is_live: bool) -> Verdict:
        """Classify each row as new, a duplicate or a conflict; see `dedupe.judge`.

        Raises:
            WriteError: The table cannot be read.
        """
        return judge(rows, marks, self._window, self._table.rows_with, now=now, is_live=is_live)

    def add(self, rows: pa.Table, marks: list[int], now: float) -> None:
        """Add the keys of *rows*, which were just appended to the table, to the window."""
        self._window.add(rows["dedupe_key"].to_pylist(), marks, now)

    def record_time(self, service_time: float) -> None:
        """Record the service's time, to check the local clock against it.

        Args:
            service_time: Seconds since the epoch.
        """
        self._time.record(service_time)

    def _recover(self, now: float) -> None:
        table, window = self._table, self._window
        table.recover()
        window.clear()
        self._recovered_at = now = max(now, table.newest_time)
        since = window.oldest(now)
        for written_at, keys in table.keys_since(since):
            window.load(keys, written_at)
        window.loaded(since)
