"""A run: a sorted local file of dedupe keys, with a filter in memory.

A record consists of three 64-bit numbers: the two halves of a key, and its mark (dedupe.py), which
includes the hour of the write. Records are sorted by key. Keys are hashes and evenly distributed,
so a key's first bits predict its position in the file. Invariant: `KeyRun.find` finds exactly the
keys that were written; the filter only avoids disk reads, and its hits are compared with the file.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sfpubsub.durable import sync
from sfpubsub.types.events import KEY_BYTES

Numbers: TypeAlias = npt.NDArray[np.uint64]

_COLUMNS = 3
RECORD_BYTES = 8 * _COLUMNS

# Filter bits per key. The filter consists of one-word blocks, and a key sets five bits of its
# block. About 3 in 100 new keys cause a needless file lookup. With two more bits per key, 300
# million keys and a merge of an eighth of them would not fit into half a gigabyte.
_FILTER_BITS = 8
_BITS_SET = 5

# Records per index entry of 4 bytes: half a bit per key.
_BUCKET = 64

# Maximum number of keys compared with the file at a time: limits the memory to about 10 MB.
_COMPARED = 1 << 12

# Records read at a time when a run is opened: 6 MB.
_CHUNK = 1 << 18

# Low bits of a mark: the hour, counted from 1970, in which its row was written.
HOUR_BITS = 20
_HOUR_MASK = np.uint64((1 << HOUR_BITS) - 1)

# One hour, in seconds.
HOUR = 3600.0

# Exclusive upper bound of the first half of a key.
HEADS = 1 << 64

_TOP = np.uint64(32)
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)
_RANDOM = getattr(mmap, "MADV_RANDOM", None)


class DamagedRunError(Exception):
    """Raised if the file of a run is missing or damaged. Always caught within this package."""


def sorted_records(records: Numbers) -> Numbers:
    """Return the records sorted by key."""
    ordered: Numbers = records[np.argsort(records[:, 0])]
    heads = ordered[:, 0]
    if (heads[1:] == heads[:-1]).any():  # equal keys, or keys with the same first half
        ordered = records[np.lexsort((records[:, 1], records[:, 0]))]
    return ordered


class KeyQuery:
    """Keys to look up, with precomputed values that every run needs."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY_BYTES:
            raise ValueError(
                f"a dedupe key must have {KEY_BYTES} bytes, but {len(keys)} keys have "
                f"{len(joined)} in total"
            )
        halves = np.frombuffer(joined, "<u8").reshape(-1, 2)
        self.heads: Numbers = np.ascontiguousarray(halves[:, 0])
        self.tails: Numbers = np.ascontiguousarray(halves[:, 1])
        self.tops: Numbers = self.heads >> _TOP
        self.bits = _filter_bits(self.tails)


@dataclass(frozen=True)
class RunEntry:
    """The entry for a run in the manifest (run_directory.py), used to validate the run's file."""

    name: str
    count: int
    crc: int
    """CRC-32 of the file."""
    first_hour: int
    """Earliest hour in which a row of the run was written, in hours since the epoch."""
    last_hour: int

    @property
    def start(self) -> float:
        """Start of the hour when the run's oldest row was written, in seconds since the epoch."""
        return self.first_hour * HOUR

    @property
    def end(self) -> float:
        """End of the hour when the run's newest row was written, in seconds since the epoch."""
        return (self.last_hour + 1) * HOUR


class _Index:
    """Filter and index of a run, built while the run is written or read in key order."""

    def __init__(self, expected: int) -> None:
        self._blocks = np.uint64(max(1, expected * _FILTER_BITS // 64))
        self._buckets = np.uint64(max(1, expected // _BUCKET))
        self._filter = np.zeros(int(self._blocks), np.uint64)
        self._starts = np.zeros(int(self._buckets) + 1, np.uint32)

    def add(self, records: Numbers) -> None:
        """Add records whose keys come after those of all records added before."""
        tops = records[:, 0] >> _TOP
        blocks = _scaled(tops, self._blocks)
        begins = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1]))
        bits = np.bitwise_or.reduceat(_filter_bits(records[:, 1]), begins)
        self._filter[blocks[begins]] |= bits
        buckets = _scaled(tops, self._buckets)
        first = int(buckets[0])
        counts = np.bincount(buckets - first).astype(np.uint32)
        self._starts[first + 1 : first + 1 + len(counts)] += counts

    @property
    def nbytes(self) -> int:
        return self._filter.nbytes + self._starts.nbytes

    def close(self) -> None:
        """Complete the index after the last record. Lookups are possible only afterwards."""
        np.cumsum(self._starts, out=self._starts)

    def may_hold(self, sought: KeyQuery) -> npt.NDArray[np.intp]:
        """Return the indexes in *sought* of keys that the run may contain."""
        words = self._filter[_scaled(sought.tops, self._blocks)]
        return np.flatnonzero((words & sought.bits) == sought.bits)

    def spans(self, tops: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return, for each key, the start index and exclusive end index of the records to search.

        Args:
            tops: The first 32 bits of each key.
        """
        buckets = _scaled(tops, self._buckets)
        starts = self._starts
        return starts[buckets].astype(np.int64), starts[buckets + 1].astype(np.int64)


class KeyRun:
    """A run (a sorted file of dedupe keys) that is open for lookups. Not thread-safe.

    Create it with `RunWriter.finish` or `open`.
    """

    def __init__(self, path: Path, entry: RunEntry, index: _Index, *, is_sure: bool) -> None:
        self.path = path
        self.entry = entry
        self.is_sure = is_sure
        """Whether this process added or loaded all keys of the run."""
        self._index = index
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if _RANDOM is not None:
            self._map.madvise(_RANDOM)
        self._records: Numbers = np.frombuffer(self._map, "<u8").reshape(-1, _COLUMNS)
        self._heads: Numbers = self._records[:, 0]

    @classmethod
    def open(cls, directory: Path, entry: RunEntry) -> KeyRun:
        """Open a run, reading it completely to validate it and to build its filter.

        Raises:
            DamagedRunError: The file is missing or damaged.
        """
        path = directory / entry.name
        index, crc, left = _Index(entry.count), 0, entry.count
        try:
            with path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != entry.count * RECORD_BYTES:
                    raise DamagedRunError(
                        f"the length of {path} differs from that in its manifest entry"
                    )
                while left:
                    data = file.read(min(left, _CHUNK) * RECORD_BYTES)
                    if not data or len(data) % RECORD_BYTES:
                        raise DamagedRunError(f"{path} is truncated")
                    crc = zlib.crc32(data, crc)
                    index.add(np.frombuffer(data, "<u8").reshape(-1, _COLUMNS))
                    left -= len(data) // RECORD_BYTES
        # ValueError and IndexError: the keys are not sorted.
        except (OSError, ValueError, IndexError) as error:
            raise DamagedRunError(f"{path} cannot be read: {error}") from error
        if crc != entry.crc:
            raise DamagedRunError(f"the checksum of {path} differs from that in its manifest entry")
        index.close()
        return cls(path, entry, index, is_sure=False)

    def __len__(self) -> int:
        return self.entry.count

    @property
    def index_bytes(self) -> int:
        """Memory used by the run's filter and index, in bytes."""
        return self._index.nbytes

    def find(self, sought: KeyQuery) -> tuple[npt.NDArray[np.intp], Numbers]:
        """Return the indexes in *sought* of the keys that the run contains, and the keys' marks."""
        candidates = self._index.may_hold(sought)
        found = [
            self._compare(sought, candidates[first : first + _COMPARED])
            for first in range(0, len(candidates), _COMPARED)
        ]
        if not found:
            return candidates, np.empty(0, np.uint64)
        self.release()
        places, marks = zip(*found, strict=True)
        return np.concatenate(places), np.concatenate(marks)

    def _compare(
        self, sought: KeyQuery, candidates: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], Numbers]:
        """Return those *candidates* (indexes in *sought*) that are in the file, and their marks."""
        starts, ends = self._index.spans(sought.tops[candidates])
        # Compare all records that may match a key, and a few more. This is one read, whereas a
        # binary search would take seven steps that cost as much as one read each.
        width = max(1, int((ends - starts).max()))
        near = np.minimum(starts, len(self) - width)[:, None] + np.arange(width)
        rows, columns = np.nonzero(self._heads[near] == sought.heads[candidates][:, None])
        records = self._records[near[rows, columns]]
        same = records[:, 1] == sought.tails[candidates[rows]]
        return candidates[rows[same]], records[same, 2]

    def place(self, head: int) -> int:
        """Return the index of the first record whose key's first half is at least *head*.

        If there is no such record, return the number of records.

        Args:
            head: First half of a key as a number. `HEADS` is greater than the first half of any
                key.
        """
        if head >= HEADS:
            return len(self)
        (low,), (high,) = self._index.spans(np.array([head >> 32], np.uint64))
        heads = self._records[low:high, 0]
        return int(low) + int(np.searchsorted(heads, np.uint64(head)))

    def between(self, start: int, end: int) -> Numbers:
        """Return a copy of the records from index *start* (inclusive) to *end* (exclusive)."""
        copied = self._records[start:end].copy()
        self.release()
        return copied

    def release(self) -> None:
        """Drop the file's pages from this process's memory; the system's page cache keeps them."""
        if _DONT_NEED is not None:
            self._map.madvise(_DONT_NEED)


class RunWriter:
    """Writes one run incrementally, in key order.

    Args:
        path: A file that does not exist yet.
        expected: Upper limit for the number of records.
    """

    def __init__(self, path: Path, expected: int) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._index = _Index(expected)
        self._count = 0
        self._crc = 0
        self._first_hour = int(_HOUR_MASK)
        self._last_hour = 0

    def write(self, records: Numbers) -> None:
        """Write sorted records that come after all those already written.

        Raises:
            OSError: The file could not be written.
        """
        if not len(records):
            return
        data = memoryview(records.astype("<u8", copy=False).tobytes())
        self._crc = zlib.crc32(data, self._crc)
        while data:
            data = data[self._file.write(data) :]
        self._index.add(records)
        self._count += len(records)
        hours = records[:, 2] & _HOUR_MASK
        self._first_hour = min(self._first_hour, int(hours.min()))
        self._last_hour = max(self._last_hour, int(hours.max()))

    def finish(self) -> KeyRun:
        """Make the file durable, and open it as a run. At least one record must have been written.

        Raises:
            OSError: The file could not be written.
        """
        self._file.close()
        sync(self.path)
        self._index.close()
        entry = RunEntry(self.path.name, self._count, self._crc, self._first_hour, self._last_hour)
        return KeyRun(self.path, entry, self._index, is_sure=True)

    def abandon(self) -> None:
        """Stop writing, and delete the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _scaled(tops: Numbers, size: np.uint64) -> npt.NDArray[np.int64]:
    """Scale the first 32 bits of keys to numbers below *size*, preserving their order."""
    return ((tops * size) >> _TOP).view(np.int64)


def _filter_bits(tails: Numbers) -> Numbers:
    bits = np.zeros(len(tails), np.uint64)
    for number in range(_BITS_SET):
        bits |= np.uint64(1) << ((tails >> np.uint64(6 * number)) & np.uint64(63))
    return bits
