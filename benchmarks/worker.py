"""The process of a client: reads jobs from stdin, one per line, and prints a sample for each.

python -m benchmarks.worker
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks import references
from benchmarks.runs import Job, Meter

STUCK = 180.0  # seconds after which a process prints its stacks and exits


def way(name: str) -> Callable[[Job, Meter], None]:
    """Return the function that receives events in the way *name*."""
    if name in references.WAYS:
        return references.WAYS[name]
    from benchmarks import subscribers  # late, so that references do not load this package

    return subscribers.WAYS[name]


def main() -> None:
    """Do the jobs from standard input until it ends."""
    for line in sys.stdin:
        job = Job.from_json(json.loads(line))
        receive = way(job.run.way)
        meter = Meter(job.run)
        gc.collect()
        faulthandler.dump_traceback_later(STUCK, exit=True)
        receive(job, meter)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(asdict(meter.sample())), flush=True)


if __name__ == "__main__":
    main()
