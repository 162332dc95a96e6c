"""Runs ``sfpubsub tables`` and ends it with SIGKILL at a chosen moment of one of its steps.

``python -m tests.faults.tables_victim MOMENT WHO NTH tables …``: the hooks are put into the package
here, in this process, and nothing of them is in what is shipped.

Moments: ``plan``: the nth step is planned, and no table has it. ``append``: the nth time that a
table is about to take rows; others may have them, or are taking theirs. ``taken``: right behind
that. ``merge``, ``merged``, ``within``: the nth time that rows of a table are about to be replaced,
have been, or are being replaced for some tenths of a second. ``finish``: all tables have the nth
step, and it is not flushed, or not published. ``over``: it is, and the next one is not planned.

Who: ``driver``: this process; ``jvm``: Spark's JVM; ``both``.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from typing import Any

import sfpubsub.cli.main
from sfpubsub.spark.runtime.session import jvm_of
from sfpubsub.spark.tables import engine, steps
from tests.faults.crash_victim import Killer, _after, _before

MOMENTS = ("plan", "append", "taken", "finish", "over")

# Of current and history tables beside.
MERGE_MOMENTS = ("merge", "within", "merged")

# Seconds into a merge, which takes some two.
_WITHIN = (0.1, 2.0)


def install(moment: str, killer: Killer, table_format: str) -> None:
    """Put the hook of *moment* in its place."""
    targets = importlib.import_module(f"sfpubsub.spark.tables.{table_format}_target")
    name = table_format.capitalize()
    target, table = getattr(targets, f"{name}Target"), getattr(targets, f"{name}TargetTable")
    log = steps.StepFile if table_format == "parquet" else steps.StepTable
    _after(
        engine.EventTables,
        "__init__",
        lambda self, spark, *a, **k: killer.remember(jvm_of(spark)),
    )

    def now(*_arguments: Any, **_options: Any) -> None:
        if killer.comes():
            killer.kill()

    def now_of_rows(self: Any, *_arguments: Any, **_options: Any) -> None:
        if self.name != steps.STEPS_NAME:
            now()

    if moment == "plan":
        _after(log, "add", now)
    elif moment == "append":
        _before(table, "append", now_of_rows)
    elif moment == "taken":
        _after(table, "append", now_of_rows)
    elif moment == "merge":
        _before(table, "merge", now)
    elif moment == "merged":
        _after(table, "merge", now)
    elif moment == "within":
        delay = random.uniform(*_WITHIN)

        def soon(*_arguments: Any, **_options: Any) -> None:
            if killer.comes():
                killer.later(lambda: time.sleep(delay))

        _before(table, "merge", soon)
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
