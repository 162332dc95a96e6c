"""Many runs, each in a process of its own, and the scorecard of all of them."""

from __future__ import annotations

import os
import pickle
import random
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from tests.simulation.run import Case, Outcome, report, run
from tests.simulation.shrink import shrink
from tests.simulation.states import SOMETIMES

LEAST_AN_HOUR = 10
"""How often each rare state must be reached within an hour; in any run, once."""

T = TypeVar("T")


def fresh() -> Iterator[Case]:
    """Yield cases with seeds that nobody has seen: mostly stormy days, and some longer ones.

    Only a case of several days has outages that are longer than events are retained.
    """
    while True:
        seed = random.SystemRandom().randrange(2**32)
        if seed % 10 == 0:
            yield Case(seed, 6.0)
        elif seed % 10 == 5:
            yield Case(seed, 20.0, is_year=True)
        else:
            yield Case(seed, 1.0)


def in_processes(work: Callable[[Case], T], cases: Iterable[Case], jobs: int) -> Iterator[T]:
    """Yield what *work* returns for each case, in the order in which they end.

    Each runs in a process of its own, because a run leaves traces in the library's caches.

    Raises:
        RuntimeError: A process has died.
    """
    running: dict[int, tuple[Case, IO[bytes]]] = {}
    rest = iter(cases)
    while True:
        while len(running) < jobs and (case := next(rest, None)) is not None:
            file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when its process has ended
            pid = os.fork()
            if pid == 0:
                _child(work, case, file)
            running[pid] = case, file
        if not running:
            return
        pid, status = os.wait()
        case, file = running.pop(pid)
        with file:
            if status != 0:
                raise RuntimeError(f"the process of {case} died: {status}")
            file.seek(0)
            yield pickle.load(file)


def _child(work: Callable[[Case], Any], case: Case, file: IO[bytes]) -> None:
    code = 1
    try:
        pickle.dump(work(case), file)
        file.flush()
        code = 0
    finally:
        os._exit(code)


def command(case: Case) -> str:
    """Return the command line that repeats a case."""
    words = ["python", "-m", "tests.simulation", f"--seed={case.seed}", f"--days={case.days:g}"]
    return shlex.join([*words, *(["--year"] if case.is_year else [])])


@dataclass
class Scorecard:
    """What many runs came to."""

    began: float = field(default_factory=time.monotonic)
    seeds: int = 0
    days: float = 0.0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a run."""
        self.seeds += 1
        self.days += outcome.case.days
        self.seconds += outcome.seconds
        self.counts += outcome.reached + outcome.excuses
        if outcome.failure is not None:
            self.failed.append(outcome)

    def missed(self) -> list[str]:
        """Return the rare states that were not reached often enough."""
        hours = (time.monotonic() - self.began) / 3600
        least = max(1, round(LEAST_AN_HOUR * min(1.0, hours)))
        return [name for name in SOMETIMES if self.counts[name] < least]

    def __str__(self) -> str:
        minutes = max(self.seconds, 1e-9) / 60
        lines = [f"{count:8d}  {name}" for name, count in sorted(self.counts.items())]
        lines.append(
            f"{self.seeds} seeds, {self.days:g} simulated days in {minutes:.1f} minutes of"
            f" processor time: {self.days / minutes:.0f} days a minute;"
            f" {len(SOMETIMES) - len(self.missed())} of {len(SOMETIMES)} rare states;"
            f" {len(self.failed)} seeds failed"
        )
        lines += [f"  {command(each.case)}: {each.failure}" for each in self.failed]
        if missed := self.missed():
            lines.append(f"not reached often enough: {', '.join(missed)}")
        return "\n".join(lines)


def hunt(minutes: float) -> int:
    """Run fresh seeds on all cores for some minutes; return the exit code.

    The code is 1 if a promise was broken, or a rare state was not reached often enough. The first
    failure of each kind is shrunk.
    """
    card = Scorecard()
    end = card.began + 60 * minutes

    def cases() -> Iterator[Case]:
        for case in fresh():
            if time.monotonic() > end:
                return
            yield case

    for outcome in in_processes(run, cases(), os.cpu_count() or 1):
        card.add(outcome)
        if outcome.failure is not None:
            print(f"{command(outcome.case)}: {outcome.failure}", flush=True)
    kinds = {each.kind: each for each in reversed(card.failed)}
    for each in kinds.values():
        print(report(smaller(each)), flush=True)
    print(card)
    return int(bool(card.failed or card.missed()))


def smaller(failed: Outcome) -> Outcome:
    """Return a run that breaks the same promise with less happening in it."""
    return shrink(failed, lambda case: next(in_processes(run, [case], 1)))
