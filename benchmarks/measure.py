"""Measures cases: rounds of interleaved runs, with a separate process for each way."""

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
    """A version of this package to measure: a checkout, with or without the accelerator."""

    name: str
    tree: Path = ROOT
    """Root directory of the checkout."""
    native: str = ""
    """Value of ``SFPUBSUB_NATIVE``: 0 disables the accelerator. Empty to leave it unset."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables for processes of this variant."""
        path = {"PYTHONPATH": packages(self.tree)}  # takes precedence over installed packages
        return path | ({"SFPUBSUB_NATIVE": self.native} if self.native else {})


REFERENCE = Variant("reference")


def variants(against: Path | None) -> list[Variant]:
    """Return the variants to measure.

    Args:
        against: Another checkout to compare with this one; both use the accelerator if it is
            installed. None to measure this checkout, with and without the accelerator.
    """
    has_native = importlib.util.find_spec("sfpubsub_native") is not None
    if against is not None:
        return [Variant("here"), Variant("against", against.resolve())]
    if has_native:
        return [Variant("pure", native="0"), Variant("native", native="1")]
    return [Variant("pure")]


@dataclass(frozen=True)
class Measured:
    """The result of one run in one round."""

    sample: Sample
    requests: int
    """Requests that the server received per 1,000 events."""


Samples = dict[tuple[str, Run], list[Measured]]
"""Results by variant name and run, one per round; the paced runs of `paced` are included."""


class Processes:
    """The clients' processes, one for each way and variant; they end with the exit stack."""

    def __init__(self, stack: ExitStack, server: Server, package: Path | None) -> None:
        self._stack = stack
        self._server = server
        self._package = package
        self._peers: dict[tuple[str, str], Peer] = {}

    def measure(self, variant: Variant, run: Run) -> Measured:
        """Do a run, and return its result."""
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
    """Yield an object that starts processes when needed; end them with the block.

    Args:
        server: The server that the clients connect to.
        package: Directory of the npm package; None if it is not installed.
    """
    with ExitStack() as stack:
        yield Processes(stack, server, package)


def measure(case: Case, clients: Processes, ours: list[Variant], rounds: int) -> Samples:
    """Measure all runs of a case in turn; the order of the variants alternates.

    Args:
        case: The case, with only the runs that are possible on this machine.
        clients: Does the runs.
        ours: The variants of this package.
        rounds: Number of rounds, unless the case specifies it.
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


# Ways without a latency: they gather events, or it is unknown when a line is read.
UNPACED = ("arrow", "cli")


def paced(run: Run) -> Run:
    """Return the run at a low, fixed rate that measures the latency of *run*."""
    return replace(run, rate=PACE[run.size], events=PACED[run.size] * run.size)
