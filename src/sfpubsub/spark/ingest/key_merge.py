"""Which sorted runs should be one, and how they become one, piece by piece.

A look-up asks every run, so there should be few; a merge writes every record again, so each should
be merged seldom. Knows runs only: what becomes of them is key_window.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfpubsub.spark.ingest.key_run import HEADS, KeyRun, RunWriter, sorted_records

# Runs of about the same size that become one. A key is then written once for each power of four in
# the window, and a look-up asks about 15 runs when there are 300 million keys.
_FAN = 4


def runs_to_merge(runs: Sequence[KeyRun], *, most: int, longest: float) -> list[KeyRun]:
    """Return runs side by side that should be one, the smallest first; none if all is well.

    Args:
        runs: The oldest first.
        most: Keys of a run, at most.
        longest: Seconds between the first and the last key of a run, at most.
    """
    for size in sorted(set(map(_size_class, runs))):
        for side_by_side in _split(runs, size):
            found = _mergeable(side_by_side, most, longest)
            if found:
                return found
    return []


def _split(runs: Sequence[KeyRun], size: int) -> list[list[KeyRun]]:
    """Return what is left side by side without the runs that are larger than *size*."""
    parts: list[list[KeyRun]] = [[]]
    for run in runs:
        if _size_class(run) <= size:
            parts[-1].append(run)
        else:
            parts.append([])
    return parts


def _mergeable(runs: list[KeyRun], most: int, longest: float) -> list[KeyRun]:
    """Return the first of *runs* that make a run of use, or none.

    They are four, or fewer if one more would make it too long in time or too large. None is much
    larger than all the others, or it would be written again for each of them.
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
    """Return a number that is the same for runs of about the same size."""
    return (len(run).bit_length() - 1) // (_FAN.bit_length() - 1)


class Merge:
    """Runs that become one, piece by piece of the range of keys."""

    def __init__(self, inputs: list[KeyRun], output: RunWriter) -> None:
        self.inputs = inputs
        self.output = output
        self._places = [0] * len(inputs)
        self._head = 0

    @property
    def is_done(self) -> bool:
        return self._head == HEADS

    def step(self, count: int) -> int:
        """Merge about *count* records more, and return how many it were, at least 1."""
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
