"""Runs ``sfpubsub ingest`` and ends it with SIGKILL at a chosen moment of one of its writes.

``python -m tests.faults.crash_victim MOMENT WHO NTH DELAY ingest …``: the hooks are put into the
package here, in this process, and nothing of them is in what is shipped.

Moments: ``receive``: events are received, nothing is written. ``write``: *DELAY* seconds into the
write. ``publish``: rows are written, and nothing of them can be seen. ``ack``: they can be seen,
and nothing is acked. ``receipt``: the service has answered the commit, and nobody has read that.

Who: ``driver``: this process; ``jvm``: Spark's JVM; ``both``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sfpubsub.cli.main
from sfpubsub.spark.ingest import writer
from sfpubsub.spark.raw import parquet
from sfpubsub.spark.runtime.process import Process
from sfpubsub.transports import wire

MOMENTS = ("receive", "write", "publish", "ack", "receipt")
WHO = ("driver", "jvm", "both")

# Seconds between two looks for a file of a write under way, which the commit follows in some 50 ms.
_GLANCE = 0.001


class Killer:
    """Counts the times that the moment came, and kills at the chosen one."""

    def __init__(self, who: str, nth: int) -> None:
        self._who = who
        self._left = nth
        self._jvm = 0
        self._lock = threading.Lock()

    def remember(self, jvm: Process) -> None:
        self._jvm = jvm.pid

    def comes(self) -> bool:
        """Whether this is the time."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def kill(self) -> None:
        print(f"killing {self._who}", file=sys.stderr, flush=True)
        if self._who != "driver":
            os.kill(self._jvm, signal.SIGKILL)
        if self._who != "jvm":
            os.kill(os.getpid(), signal.SIGKILL)

    def later(self, wait: Callable[[], None]) -> None:
        """Kill when *wait* returns, in a thread."""

        def run() -> None:
            wait()
            self.kill()

        threading.Thread(target=run, daemon=True).start()


def _before(owner: Any, name: str, act: Callable[..., None]) -> None:
    function = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        act(*arguments, **options)
        return function(*arguments, **options)

    setattr(owner, name, call)


def _after(owner: Any, name: str, act: Callable[..., None]) -> None:
    function = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        act(*arguments, **options)
        return result

    setattr(owner, name, call)


def complete_files(table: Path) -> set[Path]:
    """Return the files of rows that are written to their end; commits may know them or not."""
    found = set()
    for path in table.rglob("ingest_date=*/*.parquet"):
        data = path.read_bytes()
        if len(data) > 12 and data.endswith(b"PAR1"):
            found.add(path)
    return found


def _table_of(table_format: str) -> tuple[type, str]:
    """Return the class that writes, and the name of the step that makes the files."""
    if table_format == "delta":
        return importlib.import_module("sfpubsub.spark.raw.delta").DeltaTable, "_write"
    if table_format == "iceberg":
        return importlib.import_module("sfpubsub.spark.raw.iceberg").IcebergTable, "_append"
    return parquet.ParquetTable, "_stage"


def install(moment: str, killer: Killer, delay: float, table_format: str) -> None:
    """Put the hook of *moment* in its place."""
    _after(writer.EventWriter, "__init__", lambda self, *a, **k: killer.remember(self._jvm))
    table, written = _table_of(table_format)

    def now(*_arguments: Any, **_options: Any) -> None:
        if killer.comes():
            killer.kill()

    def in_a_while(*_arguments: Any, empty: bool = False, **_options: Any) -> None:
        if not empty and killer.comes():
            killer.later(lambda: time.sleep(delay))

    def when_a_file_is_complete(self: Any, *_arguments: Any, empty: bool) -> None:
        if empty or not killer.comes():
            return
        if self.place.local is None:  # nothing tells when its files are complete
            killer.later(lambda: time.sleep(delay))
            return
        before = complete_files(self.place.local)

        def wait() -> None:
            while not complete_files(self.place.local) - before:
                time.sleep(_GLANCE)

        killer.later(wait)

    if moment == "receive":
        _before(writer.EventWriter, "write_parts", now)
    elif moment == "write":
        _before(table, written, in_a_while)
    elif moment == "ack":
        _after(table, "append", now)
    elif moment == "receipt":
        _before(wire, "_commit_answer", now)
    elif table_format == "delta":  # write and commit are one call of Spark's
        _before(table, "_write", when_a_file_is_complete)
    elif table_format == "iceberg":

        def unless_empty(self: Any, staged: int, state: Any, operations: Any) -> None:
            if state.rows:
                now()

        _before(table, "_publish", unless_empty)
    else:
        _before(parquet.os, "rename", now)


if __name__ == "__main__":
    moment, who, nth, delay, *command = sys.argv[1:]
    table_format = command[command.index("--format") + 1]
    install(moment, Killer(who, int(nth)), float(delay), table_format)
    sys.argv = ["sfpubsub", *command]
    sfpubsub.cli.main.main()
