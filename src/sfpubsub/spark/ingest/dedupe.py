"""Which events are new: a window of dedupe keys in compact memory, or in the table itself.

Knows keys and times; not Spark, not files, and no clock but the one that is passed in. Invariant: a
key that was added less than the window's length ago is found, and no other key ever is.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sfpubsub.types.events import KEY_BYTES

_log = logging.getLogger("sfpubsub.spark")

# Seconds. The service keeps an event for 72 h and can deliver it again for as long; one hour more
# covers clocks that differ and an event that was on its way at the end.
DEFAULT_WINDOW = 73 * 3600.0

# Keys that are held in memory; beyond, the table is asked. About 700 MB, twice what Spark's own JVM
# takes, for 76 events a second over 73 h. A look-up in a table of so many keys takes seconds for
# each batch, a look-up in memory milliseconds.
DEFAULT_WINDOW_KEYS = 20_000_000

# Seconds. Keys expire together that were added within the same hour; the window holds at most this
# much more than it must.
_GENERATION = 3600.0

# Places of an empty window: 256 KiB, enough for the first 32,768 keys.
_FIRST_PLACES = 1 << 16

# Keys for each place, at most; there are twice as many places when it is reached. A key takes 22
# bytes, and 8 to 16 for its places. At 1 it would take 8 less, and the chains would be longer.
_LOAD = 0.5

# Keys are hashes, so any four bytes of one spread evenly over the places.
_HEADS = KEY_BYTES // 4

# The last sequence number that four bytes can hold; numbering starts over before it.
_LAST_NUMBER = (1 << 32) - 1

# Keys that are linked at once: bounds the arrays made on the way to some 5 MB.
_CHUNK = 1 << 16


class Window(Protocol):
    """What is known of the keys of the last *length* seconds. Not thread-safe."""

    @property
    def length(self) -> float:
        """Seconds that a key is kept for, at least."""
        ...

    def clear(self) -> None:
        """Forget every key."""
        ...

    def add(self, keys: bytes, now: float) -> None:
        """Add whole keys, one after the other, that are not in the window."""
        ...

    def expire(self, now: float) -> None:
        """Forget the keys whose time is over. Precedes every look-up."""
        ...

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of *keys* that are in the window."""
        ...


@dataclass
class _Generation:
    """Keys that expire together."""

    opened: float
    newest: float
    count: int = 0


class KeyWindow:
    """The keys of the last *length* seconds, in memory. Not thread-safe.

    A hash table in three flat arrays, since a Python object for each key would take five times the
    memory. The keys lie one after the other in order of arrival, so the oldest ones are the
    beginning and expire by cutting it off. A key's number is its place in that order, counted from
    1 and never used again; keys whose hashes fall on the same place are a chain of numbers from the
    newest to the oldest, which ends with a number that has expired. All keys of a batch go through
    these arrays together. Measured with 10 million keys: 28 bytes a key, 1.5 s to read them in; a
    batch of 10,000 costs 3 ms and one of 100,000 30 ms, look-up and adding together.

    Args:
        length: Seconds that a key is kept for; up to one hour longer.

    Raises:
        ValueError: *length* is not positive.
    """

    def __init__(self, length: float = DEFAULT_WINDOW) -> None:
        if length <= 0:
            raise ValueError(f"a dedupe window is longer than 0 s, not {length}")
        self.length = length
        self.clear()

    def clear(self) -> None:
        """Forget every key."""
        self._keys = bytearray()
        self._expired = 0  # the number of the last key that was forgotten
        self._older = array("I")  # of each linked key: the number of the one before on its place
        self._places = array("I", bytes(4 * _FIRST_PLACES))  # the number of the newest key there
        self._generations: deque[_Generation] = deque()

    def __len__(self) -> int:
        return len(self._keys) // KEY_BYTES

    def __contains__(self, key: bytes) -> bool:
        return bool(self.known([key]))

    def add(self, keys: bytes, now: float) -> None:
        """Add keys that are not in the window.

        Args:
            keys: Whole keys, one after the other.
            now: Seconds since 1970 UTC.

        Raises:
            ValueError: *keys* is not a whole number of keys.
        """
        if len(keys) % KEY_BYTES:
            raise ValueError(f"a dedupe key has {KEY_BYTES} bytes")
        self._keys += keys  # linked by the next look-up: a table read in is then linked once
        self._generation(now).count += len(keys) // KEY_BYTES

    def expire(self, now: float) -> None:
        """Forget the keys whose time is over."""
        while self._generations and self._generations[0].newest < now - self.length:
            count = self._generations.popleft().count
            del self._keys[: count * KEY_BYTES]
            del self._older[:count]  # fewer, if some were never looked for: those have no place
            self._expired += count

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of *keys* that are in the window.

        Raises:
            ValueError: One of them is no key.
        """
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY_BYTES:
            raise ValueError(f"a dedupe key has {KEY_BYTES} bytes")
        self._link()
        # Views of the arrays end with this call: an array with a view cannot grow.
        stored, older = _halves(self._keys), np.frombuffer(self._older, np.uint32)
        sought = _halves(joined)
        numbers = np.frombuffer(self._places, np.uint32)[self._places_of(joined)]
        found = []
        chained = np.flatnonzero(numbers > self._expired)
        while chained.size:  # one turn for each link of the longest chain
            index = numbers[chained] - np.uint32(self._expired + 1)
            same = (stored[index] == sought[chained]).all(axis=1)
            found += chained[same].tolist()
            numbers[chained] = older[index]
            chained = chained[~same & (numbers[chained] > self._expired)]
        return {keys[index] for index in found}

    def _link(self) -> None:
        """Give the keys that were added since the last time their numbers and places."""
        if len(self) > _LOAD * len(self._places) or self._expired + len(self) > _LAST_NUMBER:
            self._link_anew()
        else:
            self._link_from(len(self._older))

    def _link_anew(self) -> None:
        size = len(self._places)
        while len(self) > _LOAD * size:
            size *= 2
        self._expired = 0
        self._older = array("I")
        self._places = array("I", [0]) * size
        self._link_from(0)

    def _link_from(self, start: int) -> None:
        newest = np.frombuffer(self._places, np.uint32)
        for first in range(start, len(self), _CHUNK):
            chunk = self._keys[first * KEY_BYTES : (first + _CHUNK) * KEY_BYTES]
            places = self._places_of(chunk)
            # By place, and on each in order of arrival: every key follows the one before it there,
            # the first one follows what was the newest, and the last one is the newest now.
            order = np.argsort(places, kind="stable")
            sorted_places = places[order]
            numbers = (order + (self._expired + first + 1)).astype(np.uint32)
            begins = np.append(True, sorted_places[1:] != sorted_places[:-1])
            ends = np.append(begins[1:], True)
            before = np.append(np.uint32(0), numbers[:-1])
            before[begins] = newest[sorted_places[begins]]
            newest[sorted_places[ends]] = numbers[ends]
            older = np.empty_like(before)
            older[order] = before
            self._older.frombytes(older.tobytes())

    def _places_of(self, keys: bytes | bytearray) -> npt.NDArray[np.uint32]:
        heads = np.frombuffer(keys, np.uint32)[::_HEADS]
        places: npt.NDArray[np.uint32] = heads & np.uint32(len(self._places) - 1)
        return places

    def _generation(self, now: float) -> _Generation:
        if not self._generations or now >= self._generations[-1].opened + _GENERATION:
            self._generations.append(_Generation(opened=now, newest=now))
        newest = self._generations[-1]
        newest.newest = max(newest.newest, now)  # a clock that was set back must not shorten it
        return newest


def _halves(keys: bytes | bytearray) -> npt.NDArray[np.uint64]:
    return np.frombuffer(keys, np.uint64).reshape(-1, 2)


class BoundedWindow:
    """A `KeyWindow` while the keys fit, then the table itself. Not thread-safe.

    When there are too many keys they are all dropped, and each batch is looked up in the rows that
    the window covers. It stays so until `clear`: what is to be read in then may be less. Every key
    that was added is in the table by then, so nothing is forgotten.

    Args:
        length: Seconds that a key is kept for.
        max_keys: Keys that may be held in memory, at most 40 bytes each.
        stored: Takes keys and a time in seconds since 1970 UTC, and returns those of the keys that
            rows written since then hold, and perhaps some that older ones hold.

    Raises:
        ValueError: *length* or *max_keys* is not positive.
    """

    def __init__(
        self,
        length: float,
        max_keys: int,
        stored: Callable[[Collection[bytes], float], set[bytes]],
    ) -> None:
        if max_keys < 1:
            raise ValueError(f"a dedupe window holds 1 key or more, not {max_keys}")
        self._memory = KeyWindow(length)
        self._max_keys = max_keys
        self._stored = stored
        self._now = 0.0
        self._in_table = False

    @property
    def length(self) -> float:
        """See `Window`."""
        return self._memory.length

    @property
    def in_table(self) -> bool:
        """Whether there are too many keys for memory, so that the table is asked."""
        return self._in_table

    def __len__(self) -> int:
        return len(self._memory)

    def clear(self) -> None:
        """Forget every key, and hold them in memory again."""
        self._memory.clear()
        self._in_table = False

    def add(self, keys: bytes, now: float) -> None:
        """See `Window`. The rows with these keys are in the table.

        Raises:
            ValueError: *keys* is not a whole number of keys.
        """
        if self._in_table:
            return
        self._memory.add(keys, now)
        if len(self._memory) > self._max_keys:
            _log.warning(
                "the dedupe window has more than %d keys (window_keys): until the next start each "
                "batch is looked up in the table, which is slower",
                self._max_keys,
            )
            self._memory.clear()
            self._in_table = True

    def expire(self, now: float) -> None:
        """See `Window`."""
        self._now = now
        self._memory.expire(now)

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """See `Window`.

        Raises:
            ValueError: One of *keys* is no key.
            WriteError: The table cannot be read.
        """
        if self._in_table:
            return self._stored(set(keys), self._now - self.length) if keys else set()
        return self._memory.known(keys)


def drop_repeats(keys: Sequence[bytes], window: Window) -> list[int]:
    """Return the indices of the keys that are neither in the window nor earlier in *keys*."""
    seen = window.known(keys)
    if not seen and len(set(keys)) == len(keys):
        return list(range(len(keys)))  # the usual batch
    kept = []
    for index, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            kept.append(index)
    return kept


def drop_stored(
    keys: Sequence[bytes],
    times: Iterable[int | None],
    *,
    oldest: float,
    stored: Callable[[Collection[bytes]], set[bytes]],
) -> list[int]:
    """Return the indices of the keys that the table does not hold from before the window.

    An event whose own time lies in the window was received in it, if it was received before. One
    whose time is older, or unknown, may have been received at any time, so the table is asked.

    Args:
        keys: Keys that are not in the window.
        times: When each event happened, in microseconds since 1970 UTC; None if unknown.
        oldest: Beginning of the window, in seconds since 1970 UTC.
        stored: Returns those of the given keys that the table holds.
    """
    suspects = [
        key
        for key, time in zip(keys, times, strict=True)
        if time is None or time < oldest * 1_000_000
    ]
    if not suspects:
        return list(range(len(keys)))
    known = stored(suspects)
    return [index for index, key in enumerate(keys) if key not in known]
