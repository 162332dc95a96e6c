"""The lease that limits a table to one writer: a locked file that names the writer's two processes.

The Python process holds an ``flock``, which the kernel releases when the process exits, even if it
is killed. The JVM cannot hold the lock, and lives up to 3 s longer if Python is killed. So the file
names both processes, and the next writer waits for the old JVM to exit before it reads the table.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.process import Process, running_jvm

LEASE_NAME = "_lease"

# Seconds that a new writer waits for the previous writer's processes. An orphaned JVM was observed
# to live for 1.3 to 3 s; after five times that, it will not exit on its own.
PATIENCE = 15.0

# Seconds between checks of a process. It is not a child of this process, so it has to be polled.
_POLL = 0.05

# Size of the file in bytes. It is written in one call and never truncated, so that a reader sees
# either the old or the new record.
_RECORD_SIZE = 512


class Lease:
    """The right to write to one table. Create it with `acquire`. Not thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, table: Path, jvm_pid: int, *, patience: float = PATIENCE) -> Lease:
        """Wait for the previous writer's processes to exit, then acquire the lease.

        Args:
            table: The table's directory.
            jvm_pid: Process id of the JVM that will write for this process.
            patience: Seconds to wait for the previous writer's processes to exit.

        Raises:
            ConfigurationError: Another writer holds the lease, the JVM of a killed writer did not
                exit in time, or the file system does not support locks.
            WriteError: The JVM *jvm_pid* has exited.
        """
        jvm = running_jvm(jvm_pid)
        own = Process.of(os.getpid())
        deadline = time.monotonic() + patience
        descriptor = os.open(table / LEASE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        with ExitStack() as unless_done:
            unless_done.callback(os.close, descriptor)
            _lock(descriptor, table, deadline)
            _await_jvm(descriptor, table, deadline, own=jvm)
            _record(descriptor, python=own, jvm=jvm)
            unless_done.pop_all()
        return cls(descriptor)

    def release(self) -> None:
        """Release the lease immediately. Call it only if no write is in progress."""
        if self._descriptor is not None:
            _record(self._descriptor, python=None, jvm=None)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int, table: Path, deadline: float) -> None:
    while not _try_lock(descriptor, table):
        holder = _read(descriptor, "python")
        # The lock of a dead process is released a moment later, when its memory is freed.
        if (holder is not None and holder.alive()) or time.monotonic() >= deadline:
            who = f"pid {holder.pid}" if holder else "a process that is not visible from here"
            raise ConfigurationError(
                f"{table} is being written by another process ({who}): stop it first, or write to "
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
            f"{table} is on a file system without locks ({error.strerror}): concurrent writers "
            f"cannot be detected there; use a local file system"
        ) from error
    return True


def _await_jvm(descriptor: int, table: Path, deadline: float, *, own: Process) -> None:
    old = _read(descriptor, "jvm")
    while old is not None and old != own and old.alive():
        if time.monotonic() >= deadline:
            raise ConfigurationError(
                f"a writer of {table} was killed, but its Spark JVM (pid {old.pid}) is still "
                f"running and may be writing: stop that process first"
            )
        time.sleep(_POLL)


def _read(descriptor: int, role: str) -> Process | None:
    text = os.pread(descriptor, _RECORD_SIZE, 0).decode("utf-8", "replace")
    try:
        found = json.loads(text)[role]
        return None if found is None else Process(int(found["pid"]), str(found["started"]))
    except (ValueError, KeyError, TypeError):
        # The file is new, or was damaged by a power loss, after which no old process is running.
        return None


def _record(descriptor: int, *, python: Process | None, jvm: Process | None) -> None:
    record = {
        "python": asdict(python) if python else None,
        "jvm": asdict(jvm) if jvm else None,
    }
    os.pwrite(descriptor, json.dumps(record).ljust(_RECORD_SIZE).encode(), 0)
