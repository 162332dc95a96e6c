"""Runs ``sfpubsub ingest`` and kills it with SIGKILL at a chosen moment of one of its writes.

``python -m tests.faults.crash_victim MOMENT WHO NTH DELAY ingest …`` installs the hooks in this
process only; they are not part of the package.

Moments:

- ``receive``: events are received, and nothing is written.
- ``write``: *DELAY* seconds into a write.
- ``publish``: rows are written, but not visible.
- ``ack``: rows are visible, but not acked.
- ``receipt``: the service has responded to the commit, but the response is not processed.

WHO is killed: ``driver`` (this process), ``jvm`` (Spark's JVM) or ``both``.
"""

from __future__ import annotations

import importlib
import json
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
from sfpubsub.spark.raw import logged, parquet
from sfpubsub.spark.runtime.process import Process
from sfpubsub.spark.runtime.session import driver_of
from sfpubsub.transports import wire

MOMENTS = ("receive", "write", "publish", "ack", "receipt")
WHO = ("driver", "jvm", "both")

# Seconds between checks for a complete file; the commit follows after about 50 ms.
_POLL_S = 0.001


class Killer:
    """Kills the chosen processes when the moment occurs for the nth time."""

    def __init__(self, who: str, nth: int) -> None:
        self._who = who
        self._left = nth
        self._jvm = 0
        self._lock = threading.Lock()

    def remember(self, jvm: Process) -> None:
        self._jvm = jvm.pid

    def is_due(self) -> bool:
        """Count one occurrence of the moment; return whether it is the one at which to kill."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def kill(self) -> None:
        print(f"killing {self._who}", file=sys.stderr, flush=True)
        if self._who != "driver":
            assert self._jvm, "the JVM is not known yet: os.kill(0) would end the process group"
            os.kill(self._jvm, signal.SIGKILL)
        if self._who != "jvm":
            os.kill(os.getpid(), signal.SIGKILL)

    def kill_after(self, wait: Callable[[], None]) -> None:
        """Start a thread that kills the processes when *wait* returns."""

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
    """Return the data files that are written completely, whether committed or not."""
    found = set()
    for path in table.rglob("ingest_date=*/*.parquet"):
        data = path.read_bytes()
        if len(data) > 12 and data.endswith(b"PAR1"):
            found.add(path)
    return found


def _table_of(table_format: str) -> tuple[type, str]:
    """Return the table class of a format, and the name of its method that writes files."""
    if table_format == "parquet":
        return parquet.ParquetTable, "_stage"
    return logged.LoggedTable, "_write"


def install(moment: str, killer: Killer, delay: float, table_format: str) -> None:
    """Install the hook for *moment* in the package."""
    # At the beginning of `EventWriter.__init__`, which may already publish a batch.
    for name in ("driver_at", "driver_of"):  # for a local table, and for one elsewhere
        _before(writer, name, lambda spark, *_: killer.remember(driver_of(spark)))
    table, written = _table_of(table_format)

    def now(*_arguments: Any, **_options: Any) -> None:
        if killer.is_due():
            killer.kill()

    def after_delay(_self: Any, rows: Any, *_arguments: Any) -> None:
        if rows is not None and killer.is_due():
            killer.kill_after(lambda: time.sleep(delay))

    def once_a_file_is_complete(self: Any, rows: Any, *_arguments: Any) -> None:
        if rows is None or not killer.is_due():
            return
        if self.place.local is None:  # in remote storage, complete files cannot be detected
            killer.kill_after(lambda: time.sleep(delay))
            return
        before = complete_files(self.place.local)

        def wait() -> None:
            while not complete_files(self.place.local) - before:
                time.sleep(_POLL_S)

        killer.kill_after(wait)

    if moment == "receive":
        _before(writer.EventWriter, "write_parts", now)
    elif moment == "write":
        _before(table, written, after_delay)
    elif moment == "ack":
        _after(table, "append", now)
    elif moment == "receipt":
        _before(wire, "_commit_answer", now)
    elif table_format == "delta":  # Spark writes and commits in one call
        _before(table, "_write", once_a_file_is_complete)
    elif table_format == "iceberg":

        def unless_empty(self: Any, staged: Any, *_arguments: Any) -> None:
            if json.loads(staged.note)["rows"]:
                now()

        _before(
            importlib.import_module("sfpubsub.spark.formats.iceberg").IcebergStore,
            "_publish",
            unless_empty,
        )
    else:
        _before(parquet.os, "rename", now)


if __name__ == "__main__":
    moment, who, nth, delay, *command = sys.argv[1:]
    table_format = command[command.index("--format") + 1]
    install(moment, Killer(who, int(nth)), float(delay), table_format)
    sys.argv = ["sfpubsub", *command]
    sfpubsub.cli.main.main()
