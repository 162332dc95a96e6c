"""Keep the dedupe keys of recently written events in memory.

These keys, each with a mark (dedupe.py), are the *window*. The newest are in a dictionary. When it
is full, they move to a *block*, a sorted array: to the newest one while that is small and recent,
otherwise to a new one. A block is dropped as a whole, when all its keys have expired, or because it
is the oldest and there are more keys than allowed. So nothing larger than a block is ever copied.

What an event says of its own time plays no role: a key expires by the time of its row's write. This
module uses only keys, marks and times, which are passed in: no Spark, no tables, no clock.
Invariant, except while keys are being loaded: the key of every row written after
`KeyWindow.oldest` is found, and a key that was never added or loaded is not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sfpubsub.spark.ingest.settings import DEFAULT_WINDOW_KEYS
from sfpubsub.types.events import KEY_BYTES

_log = logging.getLogger("sfpubsub.spark")

# Default length of the window, in seconds. The service retains an event for 72 h and can redeliver
# it until then; one more hour covers clock differences and events in flight at the end.
DEFAULT_WINDOW = 73 * 3600.0

# One hour, in seconds.
HOUR = 3600.0

# Low bits of a mark: the hour, counted from 1970, in which its row was written.
HOUR_BITS = 20
_HOUR_MASK = np.uint64((1 << HOUR_BITS) - 1)

# A block spans at most this part of the window's length and, except for one filling of the
# dictionary, of its keys. More blocks would slow down look-ups, and fewer would keep more expired
# keys.
_BLOCKS = 8

# Maximum number of keys in the dictionary, where a key takes 190 bytes: 25 MB.
_RECENT_KEYS = 1 << 17

Numbers: TypeAlias = npt.NDArray[np.uint64]


class KeyWindow:
    """The dedupe keys of the last *length* seconds. Not thread-safe.

    To fill it from the table, call `clear`, then `load` for all rows since `oldest`, then `loaded`.

    Args:
        length: Minimum time for which a key is kept, in seconds.
        max_keys: Maximum number of keys. If there are more, the oldest are dropped, and `oldest`
            returns a later time.

    Raises:
        ValueError: *length* or *max_keys* is not positive.
    """

    def __init__(self, length: float = DEFAULT_WINDOW, max_keys: int = DEFAULT_WINDOW_KEYS) -> None:
        if length <= 0:
            raise ValueError(f"a dedupe window must be longer than 0 s, not {length}")
        if max_keys < 1:
            raise ValueError(f"a dedupe window must hold at least 1 key, not {max_keys}")
        self.length = length
        self._max_keys = max_keys
        self._max_block = max(1, max_keys // _BLOCKS)
        self._recent: dict[bytes, int] = {}
        self._blocks: list[_Block] = []  # oldest first
        self._loading = bytearray()  # keys that were written at the time _loading_at
        self._loading_at = 0.0
        self._floor = 0.0  # keys of rows written before this time may be missing

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._blocks))

    def oldest(self, now: float) -> float:
        """Return the start of the window's time span, in seconds since the epoch.

        The window contains the key of every row that was written after that time.
        """
        # All dropped keys were written before now, although the end of their hour or day may not
        # have been reached yet.
        return max(now - self.length, min(self._floor, now))

    def clear(self) -> None:
        """Drop all keys."""
        self._recent.clear()
        self._blocks.clear()
        self._loading = bytearray()
        self._floor = 0.0

    def load(self, keys: bytes, written_at: float) -> None:
        """Add keys of rows that are read from the table. Their marks contain only the hour.

        Args:
            keys: The keys, concatenated.
            written_at: Time in seconds since the epoch: when the rows were written, or at most
                `LONGEST_PARTITION` seconds later. Must not decrease between calls.

        Raises:
            ValueError: The length of *keys* is not a multiple of the key length.
        """
        if len(keys) % KEY_BYTES:
            raise ValueError(f"{len(keys)} bytes cannot be divided into keys of {KEY_BYTES} bytes")
        if written_at != self._loading_at or len(self._loading) >= self._max_block * KEY_BYTES:
            self._settle_loaded()
        self._loading += keys
        self._loading_at = written_at

    def loaded(self, since: float) -> None:
        """Finish loading: all rows from the time *since* have been loaded.

        Args:
            since: Time in seconds since the epoch; rows written before it were not loaded.
        """
        self._settle_loaded()
        self._floor = max(self._floor, since)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return a dict that maps those *keys* that are in the window to their marks.

        Raises:
            ValueError: One of *keys* does not have `KEY_BYTES` bytes.
        """
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY_BYTES:
            raise ValueError(
                f"a dedupe key must have {KEY_BYTES} bytes, but {len(keys)} keys have "
                f"{len(joined)} in total"
            )
        recent = self._recent
        found = {key: recent[key] for key in keys if key in recent}
        sought = _records(joined, 0)
        order = np.argsort(sought[0])  # look-ups in order read neighbouring memory
        sought = sought[:, order]
        for block in self._blocks:
            hits, marks = block.find(sought)
            for index, mark in zip(order[hits].tolist(), marks.tolist(), strict=True):
                found.setdefault(keys[index], mark)
        return found

    def add(self, keys: Sequence[bytes], marks: Sequence[int], now: float) -> None:
        """Add new keys of rows that were written to the table at *now*, and drop expired ones.

        Args:
            keys: The keys.
            marks: The mark of each key, containing the hour of *now*.
            now: Time of the write, in seconds since the epoch; must not decrease between calls.
        """
        recent = self._recent
        recent.update(zip(keys, marks, strict=True))
        if len(recent) >= min(_RECENT_KEYS, self._max_block):
            values = np.fromiter(recent.values(), np.uint64, len(recent))
            self._settle(_Block(_records(b"".join(recent), values)))
            recent.clear()
        while self._blocks and self._blocks[0].end <= now - self.length:
            self._floor = max(self._floor, self._blocks.pop(0).end)
        self._drop_surplus()

    def _settle_loaded(self) -> None:
        if self._loading:
            self._settle(_Block(_records(self._loading, hour_of(self._loading_at))))
            self._loading = bytearray()
            self._drop_surplus()

    def _settle(self, block: _Block) -> None:
        """Add keys of rows that were written after those in the blocks."""
        if self._blocks:
            last = self._blocks[-1]
            if len(last) < self._max_block and block.end - last.start <= self.length / _BLOCKS:
                block = self._blocks.pop().joined(block)
        self._blocks.append(block)

    def _drop_surplus(self) -> None:
        """Drop the oldest blocks while the window has too many keys."""
        floor = self._floor
        while self._blocks and len(self) > self._max_keys:
            self._floor = max(self._floor, self._blocks.pop(0).end)
        if self._floor == floor:
            return
        _log.warning(
            "there are more than %d dedupe keys (window_keys), so those written before %s UTC are "
            "no longer in memory: events that may be as old are looked up in the table, which is "
            "slower; allow more keys, of 24 bytes each",
            self._max_keys,
            datetime.fromtimestamp(self._floor, UTC).strftime("%Y-%m-%d %H:%M"),
        )


class _Block:
    """Keys with their marks, sorted by the first half of the key. Immutable.

    Args:
        records: Keys as returned by `_records`, in any order.
    """

    def __init__(self, records: Numbers) -> None:
        order = np.argsort(records[0], kind="stable")  # linear for two sorted parts
        self._records: Numbers = records[:, order]
        hours = records[2] & _HOUR_MASK
        self.start = float(hours.min()) * HOUR
        """Start of the hour when the oldest row was written, in seconds since the epoch."""
        self.end = (float(hours.max()) + 1) * HOUR
        """End of the hour when the newest row was written, in seconds since the epoch."""

    def __len__(self) -> int:
        return len(self._records[0])

    def joined(self, other: _Block) -> _Block:
        """Return a block with the keys of both."""
        return _Block(np.concatenate([self._records, other._records], axis=1))

    def find(self, sought: Numbers) -> tuple[npt.NDArray[np.intp], Numbers]:
        """Return the indexes in *sought* of the keys in this block, and their marks.

        Args:
            sought: Keys as returned by `_records`, preferably sorted.
        """
        first, second, marks = self._records
        asked, places = np.arange(sought.shape[1]), np.searchsorted(first, sought[0])
        found = [(asked[:0], marks[:0])]
        while len(asked):
            inside = places < len(self)
            asked, places = asked[inside], places[inside]
            near = first[places] == sought[0, asked]
            asked, places = asked[near], places[near]
            same = second[places] == sought[1, asked]
            found.append((asked[same], marks[places[same]]))
            # Keys with the same first half, which should not occur, are next to each other.
            asked, places = asked[~same], places[~same] + 1
        hits, known = zip(*found, strict=True)
        return np.concatenate(hits), np.concatenate(known)


def hour_of(time: float) -> int:
    """Convert seconds since the epoch to whole hours since the epoch."""
    return int(time // HOUR)


def _records(joined: bytes | bytearray, marks: Numbers | int) -> Numbers:
    """Return keys as three rows of numbers: the first halves, the second halves, and the marks."""
    halves = np.frombuffer(joined, "<u8").reshape(-1, 2)
    records = np.empty((3, len(halves)), np.uint64)
    records[:2] = halves.T
    records[2] = marks
    return records
