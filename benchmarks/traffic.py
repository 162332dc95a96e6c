"""Measures traffic cases one after the other, and prints the results."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import npm, report
from benchmarks.cases import PLAIN, REFERENCES, Case
from benchmarks.figures import Row, Verdict, rows, verdicts
from benchmarks.measure import Variant, measure, processes, variants
from benchmarks.server import Server, serving

# Load per core above which other processes make speeds unreliable; the client and the server of a
# run cause a load of about one.
BUSY = 2.0


@dataclass
class Outcome:
    """The results of all measured cases."""

    about: dict[str, Any]
    """The environment, such as versions and load; see `machine`."""
    warnings: list[str] = field(default_factory=list)
    cases: dict[str, list[Row]] = field(default_factory=dict)
    targets: list[Verdict] = field(default_factory=list)

    def to_json(self) -> str:
        """Return all results as JSON text."""
        document = {
            "about": self.about,
            "warnings": self.warnings,
            "cases": {name: [row.as_dict() for row in found] for name, found in self.cases.items()},
            "targets": [{**asdict(each), "is_reached": each.is_reached} for each in self.targets],
        }
        return json.dumps(document, indent=1) + "\n"


def of_ways(cases: Sequence[Case], ways: Sequence[str]) -> list[Case]:
    """Return the cases with only the given ways, the references and `PLAIN`."""
    kept = {*REFERENCES, PLAIN, *ways}
    return [
        replace(case, runs=tuple(run for run in case.runs if run.way in kept)) for case in cases
    ]


def measure_all(
    cases: Sequence[Case], *, rounds: int, against: Path | None, may_fetch: bool
) -> Outcome:
    """Measure all cases, print their tables, and return the results.

    Args:
        cases: The cases, in the order in which they are measured.
        rounds: Number of rounds of each case that does not specify it.
        against: Another checkout to compare with this one; None for no comparison.
        may_fetch: Whether to build the Go server and install the npm client if they are missing.
    """
    package, no_package = npm.installed(may_install=may_fetch)
    round_trips = sorted({run.round_trip for case in cases for run in case.runs})
    with serving(round_trips, may_build=may_fetch) as server:
        outcome = Outcome(machine())
        if server.warning:
            outcome.warnings.append(f"the slower Python server was used: {server.warning}")
        if package is None and any(run.way == "npm" for case in cases for run in case.runs):
            outcome.warnings.append(f"the npm client was not measured: {no_package}")
        for case in cases:
            measure_case(case, server, package, variants(against), rounds, outcome)
    outcome.about["load"].append(load())
    is_busy = max(outcome.about["load"]) > BUSY * (os.cpu_count() or 1)
    if is_busy:
        outcome.warnings.append("the machine was busy: use the CPU times instead of the speeds")
    if outcome.targets:
        print(f"\n{report.of_targets(outcome.targets, is_busy=is_busy)}")
    for warning in outcome.warnings:
        print(f"\nWARNING: {warning}")
    print(f"\n{', '.join(f'{name} {value}' for name, value in outcome.about.items())}")
    return outcome


def measure_case(
    case: Case,
    server: Server,
    package: Path | None,
    ours: list[Variant],
    rounds: int,
    outcome: Outcome,
) -> None:
    """Measure a case, print its table, and add the results to *outcome*."""
    runs = tuple(run for run in case.runs if package or run.way != "npm")
    with processes(server, package) as clients:
        found = rows(measure(replace(case, runs=runs), clients, ours, rounds))
    print(f"\n{case.name}: {case.about} (rounds: {case.rounds or rounds})\n")
    print(report.of_case(found), flush=True)
    outcome.cases[case.name] = found
    outcome.targets += verdicts(case.name, found)


def machine() -> dict[str, Any]:
    """Return the time, versions, number of cores and load, on which the figures depend."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "fastavro": version("fastavro"),
        "cores": os.cpu_count(),
        "load": [load()],
    }


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 1)
