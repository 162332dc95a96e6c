"""The command that runs the benchmarks.

    python -m benchmarks [CASE…]          traffic cases, with reference clients; all by default
    python -m benchmarks BENCHMARK [...]  another benchmark, with its own options
    python -m benchmarks --list           list all cases and benchmarks

docs/how-to/benchmarks.md explains what is measured and how to read the results.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.processes import module

OTHERS = {
    "arrow": "events to Arrow record batches, compared with fastavro and from_pylist",
    "bitmaps": "cost of decoding the field lists of a change event",
    "current": "a step into a current table, by the number of its records (Spark, Delta)",
    "decode": "payloads to dicts, compared with fastavro; dicts to JSON",
    "dedupe": "deduplication, with few known keys and with many (Spark)",
    "delivery": "how many events the service delivers per handled event",
    "emulator": "throughput, memory and start time of the emulator",
    "import": "time of import sfpubsub, compared with import grpc",
    "ingest": "from the service to a raw table, compared with the writer alone (Spark)",
    "mirror": "a mirror: its first bulk read, and a step of changes (Spark, Delta)",
    "source": "the streaming source, compared with the same source fed from memory (Spark)",
    "sources": "twenty sources with small batches: one commit for all, or one for each (Spark)",
    "streaming": "the Streaming API client, compared with a bare long-polling loop",
    "typed": "typed tables: many event types, and compared with the driver alone (Spark)",
}
MODULES = {"import": "import_time"}


def main(words: list[str]) -> None:
    """Run the benchmark or the traffic cases that the command-line arguments *words* select."""
    if words and words[0] in OTHERS:
        name = MODULES.get(words[0], words[0])
        os.execv(sys.executable, module(name, *words[1:]))
    from benchmarks import traffic
    from benchmarks.cases import CASES, OURS, SHORT

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Other benchmarks, each with its own options: " + ", ".join(OTHERS),
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--list", action="store_true", help="list all cases and benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=OURS, help="only these ways and dicts")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with CHECKOUT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--short", action="store_true", help="run for a few seconds only")
    options = parser.parse_args(words)
    if options.list:
        for name, about in {**{case.name: case.about for case in CASES.values()}, **OTHERS}.items():
            print(f"{name:14} {about}")
        return
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}: see --list")
    chosen = [SHORT] if options.short else [CASES[name] for name in options.cases or CASES]
    outcome = traffic.measure_all(
        traffic.of_ways(chosen, options.ways) if options.ways else chosen,
        rounds=options.rounds,
        against=options.against,
        may_fetch=not options.short,
    )
    if options.json:
        options.json.write_text(outcome.to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
