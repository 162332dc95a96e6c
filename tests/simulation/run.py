"""One run: a seed, some simulated days, and what came of it."""

from __future__ import annotations

import gc
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.actors import REST, STORM, YEAR, Act, Actors
from tests.simulation.kernel import Kernel, Stuck
from tests.simulation.oracle import Broken
from tests.simulation.process import Program
from tests.simulation.publishers import Publisher
from tests.simulation.streamers import Streamer
from tests.simulation.subscribers import Subscriber
from tests.simulation.world import DAY, HOUR, World, simulated

MOST_CALLS = 60
"""Most calls of one process within a minute: above what its backoffs and renewals allow."""

COLLECT_S = 6 * HOUR
"""How often garbage is collected, in simulated seconds."""


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        seed: Determines everything, together with *luck*.
        days: Simulated days, without the rest that follows them.
        is_year: Whether things happen as often as in a usual year, rather than in a storm.
        programs: Names of the programs that run; None for all.
        acts: What the actors may do; None for everything.
        luck: Determines what acts do not: which thread is next, and how long a message takes.
    """

    seed: int
    days: float
    is_year: bool = False
    programs: tuple[str, ...] | None = None
    acts: tuple[Act, ...] | None = None
    luck: int = 0


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        case: What was run.
        failure: What was broken, in one line; None if nothing was.
        ended: When the run ended, in simulated seconds since the start.
        programs: Names of the programs that ran.
        acts: What the actors did.
        story: What happened, in time order.
        reached: How often each rare state was reached.
        excuses: How often each exception of the guarantees page was used.
        digest: Of everything that was told: equal for equal runs.
        seconds: Processor time that the run took.
    """

    case: Case
    failure: str | None = None
    ended: float = 0.0
    programs: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    story: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    excuses: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    duplicates: int = 0
    calls: int = 0
    digest: str = ""
    seconds: float = 0.0

    @property
    def kind(self) -> str | None:
        """The failure without its numbers: runs of one kind break the same promise."""
        return None if self.failure is None else re.sub(r"[0-9.]+", "#", self.failure)


KINDS = (
    ("Managed_A", "managed", True),
    ("Managed_B", "managed", False),
    ("Managed_C", "latest", True),
    ("Stored", "stored", False),
    ("Plain", "plain", False),
)
"""The subscribers: name, kind, and whether the client may read the record."""

PUBLISHERS = ("Sender",)

STREAMERS = {"Cometd_Stored": True, "Cometd_New": False}
"""The programs that read over CometD, and whether each stores its positions."""


def run(case: Case) -> Outcome:
    """Simulate some days, and then a rest in which everything must be caught up."""
    outcome = Outcome(case)
    began = time.process_time()
    logging.getLogger("sfpubsub").setLevel(logging.CRITICAL)
    # Garbage is collected at times that the run determines: an object's end may have effects.
    gc.collect()
    gc.disable()
    with simulated(case.seed, case.luck) as world:
        kernel = world.kernel
        found: list[Program] = []
        try:
            _set_up(world, found, case)
            acting = Actors(world, found, YEAR if case.is_year else STORM, case.acts)
            _until(world, found, case.days * DAY)
            acting.stop()
            end = kernel.now + REST
            _until(world, found, end, lambda: not any(each.behind for each in found))
            _check_caught_up(found)
        except (Broken, Stuck) as error:
            outcome.failure = str(error)
            world.tell(f"FAILED: {error}")
        finally:
            for each in found:
                if each.machine is not None:
                    kernel.kill(each.machine)
            kernel.kill(world.service)
            gc.enable()
        outcome.ended = kernel.now
        outcome.programs = tuple(each.name for each in found)
        outcome.acts = tuple(world.acts)
        outcome.story = list(world.story)
        outcome.reached = world.reached
        for code, count in world.network.refusals.items():
            outcome.reached[f"refused: {code}"] += count
        for each in found:
            outcome.excuses += each.excuses
            outcome.delivered += each.delivered
            outcome.duplicates += each.duplicates
        outcome.calls = sum(world.network.counts.values())
    outcome.seconds = time.process_time() - began
    text = "\n".join([*outcome.story, repr(sorted(outcome.reached.items()))])
    outcome.digest = hashlib.sha256(f"{text}{outcome.delivered}".encode()).hexdigest()[:16]
    return outcome


def report(outcome: Outcome) -> str:
    """Return what came of a run as text: if it failed, first the end of its story."""
    lines = outcome.story[-80:] if outcome.failure is not None else []
    lines.append(
        f"seed {outcome.case.seed}, {outcome.case.days:g} days in {outcome.seconds:.1f} s: "
        f"{outcome.failure or 'nothing broken'}; {outcome.delivered} events delivered, "
        f"{outcome.duplicates} of them again, {outcome.calls} calls; digest {outcome.digest}"
    )
    counts = sorted((outcome.reached + outcome.excuses).items())
    return "\n".join([*lines, *(f"{count:8d}  {name}" for name, count in counts)])


def _set_up(world: World, found: list[Program], case: Case) -> None:
    names = case.programs

    def create() -> None:
        for name, kind, records in KINDS:
            if names is not None and name not in names:
                continue
            if kind in ("managed", "latest"):
                preset = "LATEST" if kind == "latest" else "EARLIEST"
                world.org.managed.create(
                    name,
                    "/event/Order_Event__e",
                    default_replay=preset,
                    error_recovery_replay=preset,
                )
            found.append(Subscriber(world, name, kind, records=records))
        found.extend(
            Publisher(world, name, is_calm=case.is_year)
            for name in PUBLISHERS
            if names is None or name in names
        )
        found.extend(
            Streamer(world, name, stored=stored)
            for name, stored in STREAMERS.items()
            if names is None or name in names
        )
        for each in found:
            each.start()

    task = world.kernel.spawn(world.service, "set up", create)
    world.kernel.run(lambda: not task.alive)
    _check_failures(world.kernel)


def _until(
    world: World,
    programs: list[Program],
    end: float,
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Run until a time, or until *done* holds, and check the invariants every minute."""
    kernel = world.kernel
    while kernel.now < end and not done():
        then = min(end, kernel.now + 60.0)
        if kernel.now // COLLECT_S != then // COLLECT_S:
            gc.collect()
        kernel.at(then, lambda: None)
        kernel.run(lambda then=then: kernel.now >= then or bool(kernel.failures))
        _check_failures(kernel)
        for each in programs:
            each.check()
        for name, times in world.network.opened.items():
            if len(times) == times.maxlen and times[-1] - times[-MOST_CALLS] < 60.0:
                raise Broken(f"{name} made {MOST_CALLS} calls within a minute")


def _check_caught_up(programs: list[Program]) -> None:
    for each in programs:
        if behind := each.behind:
            raise Broken(
                f"{each.name} is not caught up {REST:g} s after everything works again: {behind}"
            )


def _check_failures(kernel: Kernel) -> None:
    for name, error in kernel.failures:
        if isinstance(error, Broken):
            raise error
        raise Broken(f"{name} failed with {type(error).__name__}: {error}") from error
