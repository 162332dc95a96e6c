"""A client's process: answers each line of input, which has a job, with its sample.

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

STUCK = 180.0  # seconds for a run; after that its process says where it stands, and ends


def way(name: str) -> Callable[[Job, Meter], None]:
    """Return what receives in a way."""
    if name in references.WAYS:
        return references.WAYS[name]
    from benchmarks import subscribers  # late: a reference's memory is not that of this package

    return subscribers.WAYS[name]


def main() -> None:
    """Do as told until standard input ends."""
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
