"""Decide what the mirror's thread does next: apply events, merge pieces of a read, or begin a read.

The thread does one thing at a time, and all kinds of work can arrive without end. So they take
turns: after `EVENTS_IN_A_ROW` steps with events, waiting pieces are merged. Reads run one at a time
in another thread; in a *round*, each object gets at most one read of queued records and one sweep.
Invariant: no waiting work is passed over for ever, whatever else arrives.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sfpubsub.spark.mirror.planning import Wanted

# Steps with events before waiting pieces are merged. A step takes a second or two, whatever the
# number of its events; a merge takes a few seconds, so the two get about the same time.
EVENTS_IN_A_ROW = 2

Turn = Literal["events", "merge"] | Wanted


class Turns:
    """Gives each kind of work its turn. Not thread-safe."""

    def __init__(self) -> None:
        self._events = 0  # steps with events since the last merge
        self._served: set[tuple[str, bool]] = set()  # in this round: objects, and whether by sweep

    def next(self, *, events: bool, merge: bool, reads: Sequence[Wanted]) -> Turn | None:
        """Return what to do next; None if there is nothing to do.

        A read comes first, because to begin it takes no time.

        Args:
            events: Whether the raw table may contain new rows.
            merge: Whether pieces of a read are waiting to be merged.
            reads: The reads that can begin now, at most one of queued records and one sweep for
                each object. Within a round, they begin in this order.
        """
        if reads:
            return self._in_turn(reads)
        if merge and (not events or self._events >= EVENTS_IN_A_ROW):
            self._events = 0
            return "merge"
        if events:
            self._events += 1
            return "events"
        return None

    def _in_turn(self, reads: Sequence[Wanted]) -> Wanted:
        left = [each for each in reads if _lane(each) not in self._served]
        if not left:  # the round is over
            self._served.clear()
            left = list(reads)
        self._served.add(_lane(left[0]))
        return left[0]


def _lane(read: Wanted) -> tuple[str, bool]:
    return read.entity, read.kind == "sweep"
