"""The dedupe keys of the last hours: the newest in memory, the others in sorted runs on local disk.

An LSM tree: when there are enough keys in memory they become a run (key_run.py), runs of about the
same size become one, and a run whose keys have all expired is deleted. Merging is done in small
pieces, with each batch that is added, so that no batch waits for it.

The directory is a cache of the table, and can be deleted at any time: a manifest says which runs
are whole and up to which row they cover the table. Whatever is not in the manifest, is damaged, or
does not fit the table is read from the table again. Knows keys, marks and times; not Spark, no
tables, and no clock but the one that is passed in. Invariant: a key that was added less than the
window's length ago is found, unless there are too many (`KeyWindow.oldest`), and no other key ever
is that was not added.
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
    KeyRun,
    Numbers,
    RunEntry,
    Sought,
    sorted_records,
)
from sfpubsub.spark.ingest.run_directory import RunDirectory
from sfpubsub.types.events import KEY_BYTES

_log = logging.getLogger("sfpubsub.spark")

# Seconds. The service keeps an event for 72 h and can deliver it again for as long; one hour more
# covers clocks that differ and an event that was on its way at the end.
DEFAULT_WINDOW = 73 * 3600.0

# Seconds by which clocks may differ: so much later an event must have happened for its key to be
# among those that are left when the oldest were dropped.
_CLOCKS = 3600.0

# Keys of the window, in memory and on disk. At 1.1 bytes of memory and 24 of disk each, they take
# less than 500 MB and 9 GB, for 1,140 events a second over 73 h.
DEFAULT_WINDOW_KEYS = 300_000_000

# Keys in memory that become a run: 25 MB as a dictionary, which is the quickest there is.
_RECENT_KEYS = 1 << 17

# Keys that become a run at once when a table is read in: bounds the memory for it to some 20 MB.
_LOADED_KEYS = 1 << 17

# Runs are not merged whose keys are spread over more than this part of the window: they expire
# together, and so late that an eighth more keys are held than must be.
_SPREAD = 8

# Records that are merged for each key that is added: two more than a key is merged times.
_MERGED_A_KEY = 10

# Records that are merged at once: bounds the memory for it to some 10 MB.
_MERGED_AT_ONCE = 1 << 16


class Known(NamedTuple):
    """What is known of a key that is in the window."""

    mark: int
    sure: bool
    """Whether its row is in the table. Of a run of an earlier process it is not sure: rows may have
    been deleted since."""


@dataclass(frozen=True)
class Covered:
    """How far the runs cover the table."""

    seq: int
    """``ingest_seq`` of the last row whose key is in them."""
    key: str
    """That row's key, hexadecimal: the table is another one if it has not this row."""
    hour: int
    """The hour in which it was written, counted from 1970."""


class KeyWindow:
    """The dedupe keys of the last *length* seconds. Not thread-safe.

    It is filled from the table: `begin`, then `load` what `covered` does not cover, then `loaded`.

    Args:
        table: What the table is called: a directory that was used for another one is emptied.
        directory: Where runs are kept; made when it is first needed. For one process at a time: if
            another has it, or it cannot be used, a temporary one takes its place.
        length: Seconds that a key is kept for, at least.
        max_keys: Keys that are kept at most. With more the oldest are dropped, and `oldest` says
            since when all are there.

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
            raise ValueError(f"a dedupe window is longer than 0 s, not {length}")
        if max_keys < 1:
            raise ValueError(f"a dedupe window holds 1 key or more, not {max_keys}")
        self.length = length
        self._max_keys = max_keys
        self._max_recent = min(_RECENT_KEYS, max(1, max_keys // _SPREAD))
        self._table = table
        self._place = RunDirectory(directory)
        self._recent: dict[bytes, int] = {}
        self._runs: list[KeyRun] = []  # the oldest first
        self._merge: Merge | None = None
        self._covered: Covered | None = None
        self._floor = 0.0  # of rows written before, keys may be missing
        self._loading: list[Numbers] = []
        self._loaded_runs = 0  # the last of the runs, which nothing covers yet
        self._read_manifest()

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._runs))

    @property
    def covered(self) -> Covered | None:
        """How far the runs cover the table; None if they do not."""
        return self._covered

    @property
    def needs_cover(self) -> bool:
        """Whether what was loaded becomes a run, so that `loaded` should know the last row."""
        return bool(self._loaded_runs) or self._loading_count >= self._max_recent

    def oldest(self, now: float) -> float:
        """Return the time, in seconds since 1970 UTC, since which every key is in the window."""
        return max(now - self.length, self._floor)

    def begin(self) -> None:
        """Forget what `covered` does not cover.

        Raises:
            WriteError: The disk fails.
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
        """Forget every key, on disk too.

        Raises:
            WriteError: The disk fails.
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
        """Add keys of rows that are in the table, while it is read in. Their marks are not known.

        Args:
            keys: Whole keys, one after the other.
            now: Seconds since 1970 UTC, when the rows were written, or a little later.

        Raises:
            ValueError: *keys* is not a whole number of keys.
            WriteError: The disk is full, or fails.
        """
        if len(keys) % KEY_BYTES:
            raise ValueError(f"a dedupe key has {KEY_BYTES} bytes")
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
        """End a `load`: everything up to the row *last* is in the window.

        Args:
            last: None if the row is not known; then the next process reads the table in again.
            since: What was written before was not loaded; seconds since 1970 UTC.

        Raises:
            WriteError: The disk is full, or fails.
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
        """Return what is known of those of *keys* that are in the window.

        Raises:
            ValueError: One of them is not a key.
        """
        sought = Sought(keys)
        recent = self._recent
        found = {key: Known(recent[key], True) for key in keys if key in recent}
        for run in reversed(self._runs):
            places, marks = run.find(sought)
            for place, mark in zip(places.tolist(), marks.tolist(), strict=True):
                found.setdefault(keys[place], Known(mark, run.is_sure))
        return found

    def add(self, keys: Sequence[bytes], marks: Sequence[int], now: float, last_seq: int) -> None:
        """Add keys that are not in the window, of rows that are in the table since *now*.

        Args:
            keys: In the order of their rows, which are the table's last.
            marks: One for each key, with the hour of *now*.
            now: Seconds since 1970 UTC; never less than before.
            last_seq: ``ingest_seq`` of the last row.

        Raises:
            WriteError: The disk is full, or fails. The keys are in the window all the same.
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
        """Delete the runs whose keys are all older than the window.

        Raises:
            WriteError: The disk fails.
        """
        limit = now - self.length
        gone = 0
        while gone < len(self._runs) and self._runs[gone].entry.end <= limit:
            gone += 1
        if gone:
            self._floor = max(self._floor, self._runs[gone - 1].entry.end)
            self._drop_oldest(gone)

    def close(self) -> None:
        """Let another process have the directory. Nothing can be looked up any more."""
        self._drop_merge()
        self._recent, self._runs = {}, []
        self._place.close()

    @property
    def _loading_count(self) -> int:
        return sum(map(len, self._loading))

    def _drop_surplus(self) -> None:
        """Drop the oldest runs, if there are more keys than there may be."""
        count, gone = len(self), 0
        while count > self._max_keys and gone < len(self._runs):
            count -= len(self._runs[gone])
            gone += 1
        if gone:
            self._floor = max(self._floor, self._runs[gone - 1].entry.end + _CLOCKS)
            _log.warning(
                "the dedupe window has more than %d keys (window_keys): events that happened "
                "before %s UTC are looked up in the table from now on",
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
        """Make the runs durable as they are now, then delete those that are no longer needed."""
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
                "the dedupe keys kept in %s cannot be used, and are read from the table: %s",
                self._place.path,
                error,
            )
            self._place.empty()
            return
        self._covered, self._floor, self._runs = covered, floor, runs

    # Merging.

    def _work(self, budget: int) -> None:
        """Merge as many records as that, if there is something to merge."""
        try:
            while budget > 0:
                if self._merge is None:
                    # While a table is read in, what is covered stays as the manifest has it.
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
            self._drop_merge()  # a part of a piece may be in the file
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
    """Return the hour of a time in seconds since 1970 UTC, counted from then."""
    return int(time // HOUR)


def _cut(joined: bytes) -> list[bytes]:
    return [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]


def _records_of(keys: dict[bytes, int]) -> Numbers:
    records = np.empty((len(keys), 3), np.uint64)
    records[:, :2] = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
    records[:, 2] = np.fromiter(keys.values(), np.uint64, len(keys))
    return records
