"""Recognise events that a raw table already contains, and determine the time of each write."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.spark.ingest.dedupe import Marker, Verdict, judge
from sfpubsub.spark.ingest.key_run import HOUR
from sfpubsub.spark.ingest.key_window import Covered, KeyWindow, hour_of
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
        window: Window with the keys of recent rows. The caller closes it.
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
        """Reload the table's state, and read the keys that are missing from the window's files.

        The window (`KeyWindow`) keeps the newest keys in memory, and older ones in sorted files on
        local disk, its *runs*. The runs contain the keys of rows up to `KeyWindow.covered`, so only
        those of newer rows are read from the table. If the runs do not match the table, all keys of
        the window are read again.

        Raises:
            WriteError: The table cannot be read, or the window's files cannot be written.
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
            self._window.clear()
            self._recover(now)
        return now

    def marks(self, rows: pa.Table, now: float) -> list[int]:
        """Return the mark of each row for a write at *now*; see `dedupe.Marker`."""
        return self._marker.marks(rows, now)

    def judge(self, rows: pa.Table, marks: list[int], now: float, *, is_live: bool) -> Verdict:
        """Drop expired keys, then classify each row as new, a duplicate or a conflict.

        See `dedupe.judge`.

        Raises:
            WriteError: The table cannot be read, or the window's files cannot be written.
        """
        self._window.expire(now)
        return judge(rows, marks, self._window, self._table.rows_with, now=now, is_live=is_live)

    def add(self, rows: pa.Table, marks: list[int], now: float) -> None:
        """Add the keys of *rows*, which were just appended to the table, to the window."""
        keys = rows["dedupe_key"].to_pylist()
        self._window.add(keys, marks, now, self._table.next_seq - 1)

    def record_time(self, service_time: float) -> None:
        """Record the service's time, to check the local clock against it.

        Args:
            service_time: Seconds since the epoch.
        """
        self._time.record(service_time)

    def _recover(self, now: float) -> None:
        table, window = self._table, self._window
        table.recover()
        window.begin()
        covered = window.covered
        if covered is not None:
            key = table.key_of(covered.seq, covered.hour * HOUR)
            if key is None or key.hex() != covered.key:  # the table was restored or recreated
                window.clear()
                covered = None
        self._recovered_at = now = max(now, table.newest_time)
        since, written_at = window.oldest(now), 0.0
        for written_at, keys in table.keys_since(since, -1 if covered is None else covered.seq):
            window.load(keys, written_at)
        last = None
        if written_at and window.needs_cover:
            key = table.key_of(table.next_seq - 1, table.newest_time)
            if key is not None:
                last = Covered(table.next_seq - 1, key.hex(), hour_of(table.newest_time))
        window.loaded(last, since)
