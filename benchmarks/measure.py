"""Measures cases: rounds of runs in turns, each way in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import npm
from benchmarks.cases import PACE, PACED, REFERENCES, Case
from benchmarks.processes import ROOT, Peer, module, packages, peer
from benchmarks.runs import Job, Run, Sample
from benchmarks.server import Server


@dataclass(frozen=True)
class Variant:
    """Which of this package's code receives."""

    name: str
    tree: Path = ROOT
    """The checkout."""
    native: str = ""
    """``SFPUBSUB_NATIVE``: 0 switches the accelerator off. Empty where there is none."""

    def environment(self) -> dict[str, str]:
        """Return what its processes have in their environment."""
        path = {"PYTHONPATH": packages(self.tree)}  # goes before what is installed
        return path | ({"SFPUBSUB_NATIVE": self.native} if self.native else {})


REFERENCE = Variant("reference")


def variants(against: Path | None) -> list[Variant]:
    """Return what is to be measured.

    Args:
        against: Another checkout, whose code takes turns with this one's; both with the accelerator
            where it is installed. Without it: this one's, with and without the accelerator.
    """
    has_native = importlib.util.find_spec("sfpubsub_native") is not None
    if against is not None:
        return [Variant("here"), Variant("against", against.resolve())]
    if has_native:
        return [Variant("pure", native="0"), Variant("native", native="1")]
    return [Variant("pure")]


@dataclass(frozen=True)
class Measured:
    """What one run of a round came to."""

    sample: Sample
    requests: int
    """That the server got, for 1,000 events."""


Samples = dict[tuple[str, Run], list[Measured]]
"""By name of the variant and run: one a round. A paced run stands beside the one it is made of."""


class Processes:
    """The clients' processes, one for each way and variant, which live as long as this."""

    def __init__(self, stack: ExitStack, server: Server, package: Path | None) -> None:
        self._stack = stack
        self._server = server
        self._package = package
        self._peers: dict[tuple[str, str], Peer] = {}

    def measure(self, variant: Variant, run: Run) -> Measured:
        """Do a run."""
        job = Job(run, self._server.target(run.round_trip), self._server.ca_file)
        before = self._server.counts()
        if run.way == "npm":
            assert self._package is not None
            sample = npm.receive(self._package, job)
        else:
            sample = Sample(**self._peer(variant, run.way).ask(job.to_json()))
        after = self._server.counts()
        sent = max(1, after.events - before.events)
        return Measured(sample, round((after.requests - before.requests) * 1000 / sent))

    def _peer(self, variant: Variant, way: str) -> Peer:
        found = self._peers.get((variant.name, way))
        if found is None:
            running = peer(module("worker"), environment=variant.environment())
            found = self._peers[variant.name, way] = self._stack.enter_context(running)
        return found


@contextmanager
def processes(server: Server, package: Path | None) -> Iterator[Processes]:
    """Start processes when they are needed, and end them.

    Args:
        server: What they receive from.
        package: The directory of the npm package; None where there is none.
    """
    with ExitStack() as stack:
        yield Processes(stack, server, package)


def measure(case: Case, clients: Processes, ours: list[Variant], rounds: int) -> Samples:
    """Measure all runs of a case in turns; who of the variants is first alternates.

    Args:
        case: With the runs that can be done here.
        clients: What does them.
        ours: The variants of this package.
        rounds: How many, where the case does not say it itself.
    """
    samples: Samples = defaultdict(list)
    whole = case.rounds or rounds
    for number in range(whole):
        for place, run in enumerate(case.runs):
            whose = [REFERENCE] if run.way in REFERENCES else list(ours)
            if (number + place) % 2:
                whose.reverse()
            for variant in whose:
                samples[variant.name, run].append(clients.measure(variant, run))
                if case.is_paced and run.way not in UNPACED:
                    slow = paced(run)
                    samples[variant.name, slow].append(clients.measure(variant, slow))
        print(f"{case.name}: round {number + 1} of {whole}", file=sys.stderr, flush=True)
    return samples


# They gather events, or nobody sees when a line is read.
UNPACED = ("arrow", "cli")


def paced(run: Run) -> Run:
    """Return the run that shows how long the events of another take."""
    return replace(run, rate=PACE[run.size], events=PACED[run.size] * run.size)
