"""The command of all benchmarks.

    python -m benchmarks [CASE…]          cases of traffic, beside their references; all by default
    python -m benchmarks BENCHMARK [...]  a benchmark of another thing, with options of its own
    python -m benchmarks --list           what there is

See docs/how-to/benchmarks.md for what is measured, and how to read it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

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
    from benchmarks import traffic
    from benchmarks.cases import CASES, OURS, SHORT

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Other benchmarks, first word alone: " + ", ".join(OTHERS),
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=OURS, help="only these of ours, and dicts")
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
