"""Store the dedupe keys of recent events: the newest in memory, older ones on local disk.

These keys, each with a mark (dedupe.py), are the *window*. They form an LSM tree: those in memory
are eventually written to a sorted file, a *run* (key_run.py). Runs of about the same size are
merged, and a run is deleted when all its keys have expired. Merging is done in small steps, one
with each added batch, so that no batch has to wait for it.

The directory is a cache of the table and can be deleted while no process uses it. A manifest lists
the complete runs, and identifies the newest row whose key they contain. After a start, the keys of
later rows are read from the table again, and so are all keys if the files are damaged or do not
match the table. This module uses only keys, marks and times, which are passed in: no Spark, no
tables, no clock. Invariant, except while keys are being loaded: the key of every row written since
`KeyWindow.oldest` is found, and a key that was never added or loaded is not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfpubsub.spark.ingest.key_merge import Merge, runs_to_merge
from sfpubsub.spark.ingest.key_run import (
    HOUR,
    DamagedRunError,
    KeyQuery,
    KeyRun,
    Numbers,
    RunEntry,
    sorted_records,
)
from sfpubsub.spark.ingest.run_directory import RunDirectory
from sfpubsub.types.events import KEY_BYTES

_log = logging.getLogger("sfpubsub.spark")

# Default length of the window, in seconds. The service retains an event for 72 h and can redeliver
# it until then; one more hour covers clock differences and events in flight at the end.
DEFAULT_WINDOW = 73 * 3600.0

# Seconds by which clocks may differ. After old keys were dropped, an event must be this much newer
# than the dropped ones to be classified by the window alone.
_CLOCKS = 3600.0

# Maximum number of keys in the window. At 1.1 bytes of memory and 24 bytes of disk each, they take
# less than 500 MB and 9 GB. This is enough for 1,140 events per second over 73 h.
DEFAULT_WINDOW_KEYS = 300_000_000

# Keys in memory before they are written as a run: 25 MB in a dictionary, the fastest structure.
_RECENT_KEYS = 1 << 17

# Keys per run while a table is loaded: limits the memory for it to about 20 MB.
_LOADED_KEYS = 1 << 17

# Runs are not merged if their keys span more than 1/_SPREAD of the window: merged keys expire
# together, so at most an eighth more keys are kept than necessary.
_SPREAD = 8

# Records merged for each added key: two more than the number of times that a key is merged.
_MERGED_A_KEY = 10

# Maximum number of records merged at a time: limits the memory for that to about 10 MB.
_MERGED_AT_ONCE = 1 << 16


class Known(NamedTuple):
    """What a `KeyWindow` stores for a key."""

    mark: int
    sure: bool
    """Whether the key's row is certainly in the table. Rows of keys that an earlier process wrote
    may have been deleted since.
    """


@dataclass(frozen=True)
class Covered:
    """Identifies the newest row whose key is in the sorted runs on disk.

    If the table does not contain this row, the runs do not match the table and must not be used.
    """

    seq: int
    """The row's ``ingest_seq``."""
    key: str
    """The row's dedupe key, in hexadecimal."""
    hour: int
    """When the row was written, in whole hours since the epoch."""


class KeyWindow:
    """The dedupe keys of the last *length* seconds. Not thread-safe.

    To fill it from the table, call `begin`, then `load` for the rows after `covered`, then
    `loaded`.

    Args:
        table: Name of the table; a directory that was used for another table is emptied.
        directory: Directory for sorted runs of keys; created when needed. Only one process can use
            it: if it is in use or not usable, a temporary directory is used instead.
        length: Minimum time for which a key is kept, in seconds.
        max_keys: Maximum number of keys. If there are more, the oldest are dropped, and `oldest`
            returns a later time.

    Raises:
        ValueError: *length* or *max_keys* is not positive.
    """

    def __init__(
        self,
        table: str,
        directory: Path,
        length: float = DEFAULT_WINDOW,
        max_keys: int = DEFAULT_WINDOW_KEYS,
    ) -> None:
        if length <= 0:
            raise ValueError(f"a dedupe window must be longer than 0 s, not {length}")
        if max_keys < 1:
            raise ValueError(f"a dedupe window must hold at least 1 key, not {max_keys}")
        self.length = length
        self._max_keys = max_keys
        self._max_recent = min(_RECENT_KEYS, max(1, max_keys // _SPREAD))
        self._table = table
        self._place = RunDirectory(directory)
        self._recent: dict[bytes, int] = {}
        self._runs: list[KeyRun] = []  # oldest first
        self._merge: Merge | None = None
        self._covered: Covered | None = None
        self._floor = 0.0  # keys of rows written before this time may be missing
        self._loading: list[Numbers] = []
        self._loaded_runs = 0  # number of newest runs that are not covered yet
        self._read_manifest()

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._runs))

    @property
    def covered(self) -> Covered | None:
        """The newest row whose key is in the sorted runs on disk; None if unknown."""
        return self._covered

    @property
    def needs_cover(self) -> bool:
        """Whether `loaded` needs the table's last row.

        It does if it stores the loaded keys on disk, or `load` has already stored some there.
        """
        return bool(self._loaded_runs) or self._loading_count >= self._max_recent

    def oldest(self, now: float) -> float:
        """Return the start of the window's time span, in seconds since the epoch.

        The window contains the key of every row that was written since then.
        """
        return max(now - self.length, self._floor)

    def begin(self) -> None:
        """Prepare for `load`: drop the keys of rows after `covered`, or all keys if it is None.

        Raises:
            WriteError: The files could not be deleted.
        """
        if self._covered is None:
            self.clear()
            return
        self._forget_recent()
        if self._loaded_runs:
            uncovered = self._runs[-self._loaded_runs :]
            del self._runs[-self._loaded_runs :]
            self._loaded_runs = 0
            self._place.remove(uncovered)

    def clear(self) -> None:
        """Delete all keys, including those on disk.

        Raises:
            WriteError: The files could not be deleted.
        """
        self._forget_recent()
        self._covered, self._floor = None, 0.0
        self._runs, self._loaded_runs = [], 0
        self._place.empty()

    def _forget_recent(self) -> None:
        self._recent.clear()
        self._loading.clear()
        self._drop_merge()

    def load(self, keys: bytes, now: float) -> None:
        """Add keys of rows that are read from the table. Their marks contain only the hour.

        Args:
            keys: The keys, concatenated.
            now: Time in seconds since the epoch: when the rows were written, or at most
                `LONGEST_PARTITION` seconds later.

        Raises:
            ValueError: The length of *keys* is not a multiple of the key length.
            WriteError: The disk is full or failed.
        """
        if len(keys) % KEY_BYTES:
            raise ValueError(f"{len(keys)} bytes cannot be divided into keys of {KEY_BYTES} bytes")
        halves = np.frombuffer(keys, "<u8").reshape(-1, 2)
        for first in range(0, len(halves), _LOADED_KEYS):
            some = halves[first : first + _LOADED_KEYS]
            records = np.empty((len(some), 3), np.uint64)
            records[:, :2] = some
            records[:, 2] = hour_of(now)
            self._loading.append(records)
            if self._loading_count >= _LOADED_KEYS:
                self._spill_loaded()
                self._work(_LOADED_KEYS * _MERGED_A_KEY)
                self._drop_surplus()

    def loaded(self, last: Covered | None, since: float) -> None:
        """Finish loading: all rows from the time *since* to the row *last* have been loaded.

        Args:
            last: The last row of the table; None if unknown, in which case the next process loads
                all keys again. Ignored unless `needs_cover` is true.
            since: Time in seconds since the epoch; rows written before it were not loaded.

        Raises:
            WriteError: The disk is full or failed.
        """
        self._floor = max(self._floor, since)
        if not self.needs_cover:
            for records in self._loading:
                joined, marks = records[:, :2].tobytes(), records[:, 2].tolist()
                self._recent.update(zip(_cut(joined), marks, strict=True))
            self._loading.clear()
            return
        self._spill_loaded()
        self._loaded_runs = 0
        self._covered = last
        self._commit([])

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Known]:
        """Return a dict that maps those *keys* that are in the window to their entries.

        Raises:
            ValueError: One of *keys* does not have `KEY_BYTES` bytes.
        """
        sought = KeyQuery(keys)
        recent = self._recent
        found = {key: Known(recent[key], True) for key in keys if key in recent}
        for run in reversed(self._runs):
            places, marks = run.find(sought)
            for place, mark in zip(places.tolist(), marks.tolist(), strict=True):
                found.setdefault(keys[place], Known(mark, run.is_sure))
        return found

    def add(self, keys: Sequence[bytes], marks: Sequence[int], now: float, last_seq: int) -> None:
        """Add new keys of rows that were written to the table at *now*.

        Args:
            keys: In the order of their rows, which are the last rows of the table.
            marks: The mark of each key, containing the hour of *now*.
            now: Time of the write, in seconds since the epoch; must not decrease between calls.
            last_seq: ``ingest_seq`` of the last row.

        Raises:
            WriteError: The disk is full or failed. The keys are in the window anyway.
        """
        self._recent.update(zip(keys, marks, strict=True))
        if keys and len(self._recent) >= self._max_recent:
            self._spill(_records_of(self._recent))
            self._recent.clear()
            self._covered = Covered(last_seq, keys[-1].hex(), hour_of(now))
            self._commit([])
        self._work(len(keys) * _MERGED_A_KEY)
        self._drop_surplus()

    def expire(self, now: float) -> None:
        """Delete the runs (sorted files of keys) whose keys are all older than the window.

        Raises:
            WriteError: The manifest could not be written.
        """
        limit = now - self.length
        gone = 0
        while gone < len(self._runs) and self._runs[gone].entry.end <= limit:
            gone += 1
        if gone:
            self._floor = max(self._floor, self._runs[gone - 1].entry.end)
            self._drop_oldest(gone)

    def close(self) -> None:
        """Release the directory for other processes. The window must not be used afterwards."""
        self._drop_merge()
        self._recent, self._runs = {}, []
        self._place.close()

    @property
    def _loading_count(self) -> int:
        return sum(map(len, self._loading))

    def _drop_surplus(self) -> None:
        """Drop the oldest runs (sorted files of keys) if the window has too many keys."""
        count, gone = len(self), 0
        while count > self._max_keys and gone < len(self._runs):
            count -= len(self._runs[gone])
            gone += 1
        if gone:
            self._floor = max(self._floor, self._runs[gone - 1].entry.end + _CLOCKS)
            _log.warning(
                "the dedupe window has more than %d keys (window_keys): events from before %s UTC "
                "are looked up in the table from now on",
                self._max_keys,
                datetime.fromtimestamp(self._floor, UTC).strftime("%Y-%m-%d %H:%M"),
            )
            self._drop_oldest(gone)

    def _drop_oldest(self, count: int) -> None:
        dropped = self._runs[:count]
        if self._merge is not None and any(run in dropped for run in self._merge.inputs):
            self._drop_merge()
        del self._runs[:count]
        self._loaded_runs = min(self._loaded_runs, len(self._runs))
        self._commit(dropped)

    def _spill_loaded(self) -> None:
        if self._loading:
            self._spill(np.concatenate(self._loading))
            self._loaded_runs += 1
            self._loading.clear()

    def _spill(self, records: Numbers) -> None:
        try:
            writer = self._place.new_run(len(records))
            writer.write(sorted_records(records))
            self._runs.append(writer.finish())
        except OSError as error:
            raise self._place.failure(error) from error

    def _commit(self, dropped: Sequence[KeyRun]) -> None:
        """Durably write a manifest with the current runs, then delete the files of *dropped*."""
        if self._covered is not None and not self._loaded_runs:
            runs = [asdict(run.entry) for run in self._runs]
            record = {"table": self._table, "covered": asdict(self._covered), "runs": runs}
            self._place.write_manifest(record | {"floor": self._floor})
        self._place.remove(dropped)

    def _read_manifest(self) -> None:
        found = self._place.read_manifest()
        if found is None:
            return
        if found.get("table") != self._table:
            self._place.empty()
            return
        try:
            covered, floor = Covered(**found["covered"]), float(found["floor"])
            runs = [self._place.open_run(RunEntry(**entry)) for entry in found["runs"]]
        except (DamagedRunError, KeyError, TypeError, ValueError) as error:
            _log.warning(
                "the dedupe keys cached in %s cannot be used (%s), so they are read from the table",
                self._place.path,
                error,
            )
            self._place.empty()
            return
        self._covered, self._floor, self._runs = covered, floor, runs

    # Merging.

    def _work(self, budget: int) -> None:
        """Merge about *budget* records, or fewer if no more runs need merging."""
        try:
            while budget > 0:
                if self._merge is None:
                    # While a table is loaded, covered runs stay as listed in the manifest.
                    first = -self._loaded_runs if self._loaded_runs else 0
                    inputs = runs_to_merge(
                        self._runs[first:],
                        most=max(self._max_keys // _SPREAD, 2),
                        longest=max(self.length / _SPREAD, HOUR),
                    )
                    if not inputs:
                        return
                    output = self._place.new_run(sum(map(len, inputs)))
                    self._merge = Merge(inputs, output)
                budget -= self._merge.step(min(budget, _MERGED_AT_ONCE))
                if self._merge.is_done:
                    self._finish_merge(self._merge)
        except OSError as error:
            self._drop_merge()  # the file may contain an incomplete piece
            raise self._place.failure(error) from error

    def _finish_merge(self, merge: Merge) -> None:
        self._merge = None
        run = merge.output.finish()
        run.is_sure = all(old.is_sure for old in merge.inputs)
        first = self._runs.index(merge.inputs[0])
        self._runs[first : first + len(merge.inputs)] = [run]
        if self._loaded_runs:
            self._loaded_runs -= len(merge.inputs) - 1
        self._commit(merge.inputs)

    def _drop_merge(self) -> None:
        if self._merge is not None:
            self._merge.output.abandon()
            self._merge = None


def hour_of(time: float) -> int:
    """Convert seconds since the epoch to whole hours since the epoch."""
    return int(time // HOUR)


def _cut(joined: bytes) -> list[bytes]:
    return [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]


def _records_of(keys: dict[bytes, int]) -> Numbers:
    records = np.empty((len(keys), 3), np.uint64)
    records[:, :2] = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
    records[:, 2] = np.fromiter(keys.values(), np.uint64, len(keys))
    return records
