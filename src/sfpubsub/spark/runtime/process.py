"""Identify processes on this machine by pid and start time, so that a reused pid does not match."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sfpubsub.errors import WriteError


@dataclass(frozen=True)
class Process:
    """A process on this machine, distinct from any later process that reuses its pid."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the running process *pid*; None if no process or only a zombie has this pid."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    def alive(self) -> bool:
        """Return whether the process is still running. A zombie does not count as running."""
        return _started(self.pid) == self.started


def jvm_ended(detail: str) -> str:
    """Return what an error says whenever Spark's JVM is gone, whoever notices it first."""
    return f"Spark's Java process has ended, killed or out of memory: start again ({detail})"


def running_jvm(pid: int) -> Process:
    """Return the process of the JVM *pid*.

    Raises:
        WriteError: It has exited.
    """
    process = Process.of(pid)
    if process is None:
        raise WriteError(jvm_ended(f"pid {pid}"))
    return process


def check_jvm(jvm: Process) -> None:
    """Check that a JVM is still alive. This is cheap, because it does not call the JVM.

    Raises:
        WriteError: It has exited.
    """
    if not jvm.alive():
        raise WriteError(jvm_ended(f"pid {jvm.pid}"))


def _started(pid: int) -> str | None:
    if os.path.exists("/proc/self/stat"):
        return _started_linux(pid)
    done = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    )
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if state and not state.startswith("Z") else None


def _started_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before the last parenthesis may contain anything; state is field 3, start time field
    # 22.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"
