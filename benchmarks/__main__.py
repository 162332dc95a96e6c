"""The command of all benchmarks.

    python -m benchmarks [CASE…]          cases of traffic, beside their references; all by default
    python -m benchmarks BENCHMARK [...]  a benchmark of another thing, with options of its own
    python -m benchmarks --list           what there is

See docs/benchmarks.md for what is measured, and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processes import module

OTHERS = {
    "arrow": "events to Arrow record batches, beside fastavro and from_pylist",
    "bitmaps": "what naming the fields of a change event costs",
    "current": "a step into a current table, by the records in it (Spark, Delta)",
    "decode": "payloads to dicts, beside fastavro; dicts to JSON",
    "dedupe": "telling which events are new, with few keys and with many (Spark)",
    "delivery": "how many events the service delivers for each one handled",
    "emulator": "what the emulator carries",
    "import": "import sfpubsub beside import grpc",
    "ingest": "from the service to a raw table, beside the writer alone (Spark)",
    "mirror": "a first read in bulk, and a step of changes over it (Spark, Delta)",
    "source": "the streaming source beside the same source fed from memory (Spark)",
    "sources": "twenty sources with small batches: one commit for all, or one each (Spark)",
    "streaming": "the client of the Streaming API beside a bare long-polling loop",
    "typed": "typed tables: many event types, and against the driver alone (Spark)",
}
MODULES = {"import": "import_time"}


def main(words: list[str]) -> None:
    """Run what the words say."""
    if words and words[0] in OTHERS:
        name = MODULES.get(words[0], words[0])
        os.execv(sys.executable, module(name, *words[1:]))
    from benchmarks.cases import CASES

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Other benchmarks, first word alone: " + ", ".join(OTHERS),
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", help="only these of ours; references stay")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another one, in turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works")
    options = parser.parse_args(words)
    if options.list:
        for name, about in {**{case.name: case.about for case in CASES.values()}, **OTHERS}.items():
            print(f"{name:14} {about}")
        return
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}: see --list")
    measure_all(options)


def measure_all(options: argparse.Namespace) -> None:
    """Measure cases of traffic, and print."""
    from benchmarks import npm, report
    from benchmarks.cases import CASES, REFERENCES, SHORT
    from benchmarks.figures import rows, verdicts
    from benchmarks.measure import measure, processes, variants
    from benchmarks.server import serving

    chosen = [SHORT] if options.short else [CASES[name] for name in options.cases or CASES]
    if options.ways:
        ways = {*REFERENCES, "dicts", *options.ways}  # others are compared with dicts
        chosen = [
            replace(case, runs=tuple(run for run in case.runs if run.way in ways))
            for case in chosen
        ]
    package, no_package = npm.installed(may_install=not options.short)
    round_trips = sorted({run.round_trip for case in chosen for run in case.runs})
    all_rows: dict[str, Any] = {}
    reached = []
    with serving(round_trips, may_build=not options.short) as server:
        about = machine()
        warnings: list[str] = []
        if server.warning:
            warnings.append(f"the server is the slow one in Python: {server.warning}")
        if package is None and any(run.way == "npm" for case in chosen for run in case.runs):
            warnings.append(f"no npm client: {no_package}")
        for case in chosen:
            runs = tuple(run for run in case.runs if package or run.way != "npm")
            with processes(server, package) as clients:
                samples = measure(
                    replace(case, runs=runs), clients, variants(options.against), options.rounds
                )
            found = rows(samples)
            rounds = case.rounds or options.rounds
            print(f"\n{case.name}: {case.about} (rounds: {rounds})\n\n{report.of_case(found)}")
            reached += verdicts(case.name, found)
            all_rows[case.name] = [row.as_dict() for row in found]
    if reached:
        print(f"\n{report.of_targets(reached)}")
    for warning in warnings:
        print(f"\nWARNING: {warning}")
    about["load"].append(load())
    print(f"\n{', '.join(f'{name} {value}' for name, value in about.items())}")
    if options.json:
        targets = [{**asdict(each), "is_reached": each.is_reached} for each in reached]
        document = {"about": about, "warnings": warnings, "cases": all_rows, "targets": targets}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return what figures depend on."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "fastavro": version("fastavro"),
        "cores": os.cpu_count(),
        "load": [load()],
    }


def load() -> float:
    """Return how many processes of this machine want to run."""
    return round(os.getloadavg()[0], 1)


if __name__ == "__main__":
    main(sys.argv[1:])
