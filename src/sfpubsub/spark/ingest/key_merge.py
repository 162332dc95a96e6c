"""Choose which sorted runs of dedupe keys to merge, and merge them incrementally.

A run is a file of keys (key_run.py). A lookup searches every run, so there should be few runs. A
merge rewrites all its records, so each record should rarely be merged. key_window.py manages the
runs and passes them to this module.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfpubsub.spark.ingest.key_run import HEADS, KeyRun, RunWriter, sorted_records

# Number of similarly sized runs to merge into one. With four, a key is rewritten once for each
# power of four in the window, and a lookup among 300 million keys searches about 15 runs.
_FAN = 4


def runs_to_merge(runs: Sequence[KeyRun], *, most: int, longest: float) -> list[KeyRun]:
    """Return adjacent runs to merge, preferring the smallest; empty if no merge is needed.

    Args:
        runs: All runs, oldest first.
        most: Maximum number of keys in the merged run.
        longest: Maximum time span of the keys in the merged run, in seconds.
    """
    for size in sorted(set(map(_size_class, runs))):
        for side_by_side in _split(runs, size):
            found = _mergeable(side_by_side, most, longest)
            if found:
                return found
    return []


def _split(runs: Sequence[KeyRun], size: int) -> list[list[KeyRun]]:
    """Split *runs* at each run whose `_size_class` exceeds *size*, and leave out these runs."""
    parts: list[list[KeyRun]] = [[]]
    for run in runs:
        if _size_class(run) <= size:
            parts[-1].append(run)
        else:
            parts.append([])
    return parts


def _mergeable(runs: list[KeyRun], most: int, longest: float) -> list[KeyRun]:
    """Return the first group of *runs* that is worth merging; empty if no group is.

    A group has four runs, or fewer if one more would make the result too large or its time span too
    long. No run in it is more than twice as large as the others together; otherwise, merging would
    rewrite a large run for the sake of small ones.
    """
    while len(runs) > 1:
        some = [runs.pop(0)]
        while runs and len(some) < _FAN:
            total = sum(map(len, some)) + len(runs[0])
            if total > most or runs[0].entry.end - some[0].entry.start > longest:
                break
            some.append(runs.pop(0))
        is_full = len(some) == _FAN or (len(some) > 1 and runs)
        if is_full and 3 * max(map(len, some)) <= 2 * sum(map(len, some)):
            return some
    return []


def _size_class(run: KeyRun) -> int:
    """Return the size class of a run: the logarithm of its length to base `_FAN`, rounded down."""
    return (len(run).bit_length() - 1) // (_FAN.bit_length() - 1)


class Merge:
    """Merges several `KeyRun` files into one. Each step merges the next part of the key range."""

    def __init__(self, inputs: list[KeyRun], output: RunWriter) -> None:
        self.inputs = inputs
        self.output = output
        self._places = [0] * len(inputs)
        self._head = 0

    @property
    def is_done(self) -> bool:
        return self._head == HEADS

    def step(self, count: int) -> int:
        """Merge about *count* more records, and return their number, or 1 if there were none.

        The next part of the key range may contain no records, but the result must be positive even
        then, because the caller subtracts it from a budget.

        Raises:
            OSError: The file could not be written.
        """
        width = max(1, HEADS * count // sum(map(len, self.inputs)))
        self._head = min(HEADS, self._head + width)
        ends = [run.place(self._head) for run in self.inputs]
        pieces = [
            run.between(start, end)
            for run, start, end in zip(self.inputs, self._places, ends, strict=True)
        ]
        self._places = ends
        records = sorted_records(np.concatenate(pieces))
        self.output.write(records)
        return max(1, len(records))
