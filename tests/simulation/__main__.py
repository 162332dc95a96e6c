"""Simulate seeds: ``python -m tests.simulation --seed N --days D``.

Each seed is run in a process of its own, because a run leaves traces in the library's caches.
"""

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
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation.actors import STORM, YEAR
    from tests.simulation.run import report, run

    failed = False
    for seed in options.seed:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            outcome = run(seed, options.days, YEAR if options.year else STORM)
            print(report(outcome), flush=True)
            os._exit(outcome.failure is not None)
        failed = os.waitpid(child, 0)[1] != 0 or failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
