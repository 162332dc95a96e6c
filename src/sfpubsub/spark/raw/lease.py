"""One writer a table: a locked file that names the two processes that may write.

The Python process holds an ``flock``, which ends with the process however it ends. The JVM that it
started cannot hold it, and lives up to 3 s longer when Python is killed; so the file names both,
and the next writer waits for the old JVM's end before it reads what the table holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.runtime.process import Process

LEASE_NAME = "_lease"

# Seconds that a new writer waits for the processes of the one before it. An orphaned JVM was seen
# to live for 1.3 to 3 s; five times that is a JVM that will not end by itself.
PATIENCE = 15.0

# Seconds between checks of a process that is not our child: there is nothing to wait on.
_POLL = 0.05

# Bytes of the file. Written in one call and never made shorter, so that a reader finds the old
# record or the new one.
_RECORD_SIZE = 512


class Lease:
    """The right to write to one table. Use `acquire`. Not thread-safe."""

    def __init__(self, descriptor: int, jvm: Process) -> None:
        self._descriptor: int | None = descriptor
        self._jvm = jvm

    @classmethod
    def acquire(cls, table: Path, jvm_pid: int, *, patience: float = PATIENCE) -> Lease:
        """Wait for the processes of the last writer to end, and take its place.

        Args:
            table: The table's directory.
            jvm_pid: The JVM that will write for this process.
            patience: Seconds to wait for them.

        Raises:
            ConfigurationError: Another writer lives, or the JVM of a dead one does not end, or the
                file system has no locks.
            WriteError: *jvm_pid* has ended.
        """
        jvm = Process.of(jvm_pid)
        own = Process.of(os.getpid())
        if jvm is None or own is None:
            raise WriteError(f"spark's JVM (pid {jvm_pid}) has ended")
        deadline = time.monotonic() + patience
        descriptor = os.open(table / LEASE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        with ExitStack() as unless_done:
            unless_done.callback(os.close, descriptor)
            _lock(descriptor, table, deadline)
            _await_jvm(descriptor, table, deadline, own=jvm)
            _record(descriptor, python=own, jvm=jvm)
            unless_done.pop_all()
        return cls(descriptor, jvm)

    def check(self) -> None:
        """Make sure that the JVM lives.

        Raises:
            WriteError: It has ended.
        """
        if not self._jvm.alive():
            raise WriteError(f"spark's JVM (pid {self._jvm.pid}) has ended")

    def release(self) -> None:
        """Let the next writer in at once. Only when no write is under way."""
        if self._descriptor is not None:
            _record(self._descriptor, python=None, jvm=None)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int, table: Path, deadline: float) -> None:
    while not _try_lock(descriptor, table):
        holder = _read(descriptor, "python")
        # A dead holder's lock goes a moment after it, with the last of its memory.
        if (holder is not None and holder.alive()) or time.monotonic() >= deadline:
            who = f"pid {holder.pid}" if holder else "a process that cannot be seen from here"
            raise ConfigurationError(
                f"{table} is being written by another process ({who}): end it first, or write to "
                f"another path"
            )
        time.sleep(_POLL)


def _try_lock(descriptor: int, table: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{table} is on a file system without locks ({error.strerror}): two writers could not "
            f"be distinguished there; use a local one"
        ) from error
    return True


def _await_jvm(descriptor: int, table: Path, deadline: float, *, own: Process) -> None:
    old = _read(descriptor, "jvm")
    while old is not None and old != own and old.alive():
        if time.monotonic() >= deadline:
            raise ConfigurationError(
                f"{table} may still be written by the Spark JVM (pid {old.pid}) of a writer that "
                f"was killed: end that process first"
            )
        time.sleep(_POLL)


def _read(descriptor: int, role: str) -> Process | None:
    text = os.pread(descriptor, _RECORD_SIZE, 0).decode("utf-8", "replace")
    try:
        found = json.loads(text)[role]
        return None if found is None else Process(int(found["pid"]), str(found["started"]))
    except (ValueError, KeyError, TypeError):
        # New, or torn by the loss of power, which no process survived.
        return None


def _record(descriptor: int, *, python: Process | None, jvm: Process | None) -> None:
    record = {
        "python": asdict(python) if python else None,
        "jvm": asdict(jvm) if jvm else None,
    }
    os.pwrite(descriptor, json.dumps(record).ljust(_RECORD_SIZE).encode(), 0)
