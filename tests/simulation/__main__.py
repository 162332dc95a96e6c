"""Simulate seeds: ``python -m tests.simulation --seed N --days D``, or fresh ones for some time."""

from __future__ import annotations

import argparse
import os
import random
import sys


def main() -> int:
    """Run from the command line; return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[random.randrange(2**32)])
    parser.add_argument("--days", type=float, default=1.0, help="simulated days, without the rest")
    parser.add_argument("--year", action="store_true", help="the pace of a year, not of a storm")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run that fails")
    parser.add_argument("--minutes", type=float, help="run fresh seeds on all cores for so long")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation.campaign import hunt, in_processes, smaller
    from tests.simulation.run import Case, report, run

    if options.minutes is not None:
        return hunt(options.minutes)
    cases = [Case(seed, options.days, options.year) for seed in options.seed]
    failed = False
    for outcome in in_processes(run, cases, 1):
        failed = failed or outcome.failure is not None
        if outcome.failure is not None and options.shrink:
            outcome = smaller(outcome)
        print(report(outcome), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
