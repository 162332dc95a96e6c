"""Tests of how runs are judged, and of how a failing one is made small; they simulate nothing."""

from __future__ import annotations

import time
from collections import Counter

from tests.simulation.campaign import LEAST_AN_HOUR, Scorecard
from tests.simulation.run import Case, Outcome
from tests.simulation.shrink import shrink
from tests.simulation.states import SOMETIMES
from tests.simulation.world import DAY

NEEDED = (("admin", 3), ("kills", 7))
ACTS = tuple((name, number) for number in range(20) for name in ("admin", "kills", "publish"))


def broken(case: Case) -> Outcome:
    """Return what came of a case: event 5 is skipped in B after two things have happened, on the
    second day; without them, another promise is broken.
    """
    acts = ACTS if case.acts is None else case.acts
    names = ("A", "B", "C") if case.programs is None else case.programs
    found = Outcome(case, ended=case.days * DAY, programs=names, acts=acts)
    if "B" in names and set(NEEDED) <= set(acts) and case.days >= 1.5:
        found.failure = f"B: event {len(acts)} was skipped"
        found.ended = 1.5 * DAY
    elif "A" in names:
        found.failure = "A: not caught up"
    return found


def test_a_failing_run_is_shrunk():
    """A failing run loses each program, day and happening without which the same promise is
    broken too; a run that breaks another one is not taken for it.
    """
    small = shrink(broken(Case(1, 10.0)), broken)
    assert small.acts == NEEDED
    assert small.programs == ("B",)
    assert small.case.days == 1.5
    assert small.failure == "B: event 2 was skipped"


def test_a_rare_state_must_be_reached_ten_times_an_hour():
    """A hunt that never reaches a rare state fails, however short it is; one of an hour also fails
    if it reaches one fewer than ten times.
    """
    card = Scorecard(counts=Counter(SOMETIMES))
    assert card.missed() == []
    card.began = time.monotonic() - 3600
    assert card.missed() == list(SOMETIMES)
    card.counts = Counter(dict.fromkeys(SOMETIMES, LEAST_AN_HOUR))
    assert card.missed() == []
    del card.counts[SOMETIMES[3]]
    card.began = time.monotonic()
    assert card.missed() == [SOMETIMES[3]]
