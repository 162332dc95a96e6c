"""Runs ``sfpubsub tables`` and kills it with SIGKILL at a chosen moment of one of its steps.

``python -m tests.faults.tables_victim MOMENT WHO NTH tables …`` installs the hooks in this process
only; they are not part of the package.

Moments, each at its nth occurrence:

- ``plan``: a step is planned, and no table contains it.
- ``append``: before rows are appended to a table; other tables may already have theirs.
- ``taken``: right after rows were appended to a table.
- ``merge``, ``within``, ``merged``: before, during or after a merge into a table.
- ``finish``: all tables contain the step, but it is not flushed.
- ``over``: the step is flushed, and the next one is not yet planned.

WHO is killed: ``driver`` (this process), ``jvm`` (Spark's JVM) or ``both``.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from typing import Any

import sfpubsub.cli.main
from sfpubsub.spark.runtime.session import driver_of
from sfpubsub.spark.tables import engine, steps
from tests.faults.crash_victim import Killer, _after, _before

MOMENTS = ("plan", "append", "taken", "finish", "over")

# Additional moments of current and history tables.
MERGE_MOMENTS = ("merge", "within", "merged")

# Range of delays within a merge, in seconds. A merge takes half a second or more; a longer delay
# after the last merge of a process might not be over before the process exits.
_WITHIN = (0.05, 0.6)


def install(moment: str, killer: Killer, table_format: str) -> None:
    """Patch the package so that *killer* can kill at each occurrence of *moment*."""
    targets = importlib.import_module(f"sfpubsub.spark.tables.{table_format}_target")
    name = table_format.capitalize()
    target, table = getattr(targets, f"{name}Target"), getattr(targets, f"{name}TargetTable")
    _after(
        engine.EventTables,
        "__init__",
        lambda self, spark, *a, **k: killer.remember(driver_of(spark)),
    )

    def now(*_arguments: Any, **_options: Any) -> None:
        if killer.is_due():
            killer.kill()

    def now_unless_steps(self: Any, *_arguments: Any, **_options: Any) -> None:
        if self.name != steps.STEPS_NAME:
            now()

    if moment == "plan":
        _after(steps.StepTable, "add", now)
    elif moment == "append":
        _before(table, "append", now_unless_steps)
    elif moment == "taken":
        _after(table, "append", now_unless_steps)
    elif moment == "merge":
        _before(table, "merge", now)
    elif moment == "merged":
        _after(table, "merge", now)
    elif moment == "within":
        delay = random.uniform(*_WITHIN)

        def after_delay(*_arguments: Any, **_options: Any) -> None:
            if killer.is_due():
                killer.kill_after(lambda: time.sleep(delay))

        _before(table, "merge", after_delay)
    elif moment == "finish":
        _before(target, "finish", now)
    else:
        _after(target, "finish", now)


if __name__ == "__main__":
    moment, who, nth, *command = sys.argv[1:]
    table_format = command[command.index("--format") + 1]
    install(moment, Killer(who, int(nth)), table_format)
    sys.argv = ["sfpubsub", *command]
    sfpubsub.cli.main.main()
