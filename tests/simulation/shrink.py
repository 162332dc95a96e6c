"""Makes a failing run small: fewer programs, fewer days, and fewer things that happen.

What each actor does, and when, depends only on the seed and on its place in that actor's list, so
the others still happen if one is left out. The threads may then take turns in another order, by
which the failure can be lost; so each smaller run is tried a few times, with other orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.run import Case, Outcome
from tests.simulation.world import DAY

MOST_TRIES = 300
"""Most runs for one failure."""

LUCK = range(4)
"""The orders in which a smaller run is tried."""


def shrink(failed: Outcome, run: Callable[[Case], Outcome]) -> Outcome:
    """Return the smallest run found that breaks the same promise.

    Args:
        failed: The run that failed.
        run: Runs a case.
    """
    best, tries = failed, 0

    def fails(case: Case) -> bool:
        nonlocal best, tries
        for luck in LUCK:
            if tries >= MOST_TRIES:
                return False
            tries += 1
            found = run(replace(case, luck=luck))
            if found.kind == failed.kind:
                best = found
                return True
        return False

    fails(replace(best.case, days=min(best.case.days, best.ended / DAY)))
    names = best.programs
    for name in names:
        if fails(replace(best.case, programs=(name,))):
            break
    else:
        for name in names:
            fails(replace(best.case, programs=tuple(n for n in best.programs if n != name)))
    size = max(1, len(best.acts) // 2)
    while True:
        at = 0
        while at < len(best.acts):
            if not fails(replace(best.case, acts=best.acts[:at] + best.acts[at + size :])):
                at += size
        if size == 1:
            return best
        size //= 2
