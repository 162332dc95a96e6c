"""A table's lease admits one writer at a time, and detects what a killed writer has left behind.

No test starts Spark: another process stands in for the JVM.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import lease as leases
from sfpubsub.spark.formats.lease import Lease
from sfpubsub.spark.runtime.process import Process, check_jvm, running_jvm

HOLDER = """
import sys
from pathlib import Path
from sfpubsub.spark.formats.lease import Lease
lease = Lease.acquire(Path(sys.argv[1]), int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen]:
    """Start a process that stands in for a JVM until it is killed."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def hold(table: Path, jvm_pid: int) -> subprocess.Popen:
    """Start another process that holds the lease of a table, and return it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(table), str(jvm_pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    return holder


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_lease_that_is_held_raises_an_error_at_once(tmp_path: Path, jvm):
    """If another process holds the lease, the error names it and is raised without waiting."""
    holder = hold(tmp_path, jvm.pid)
    try:
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid}"):
            Lease.acquire(tmp_path, os.getpid(), patience=3600.0)
    finally:
        kill(holder)


def test_acquire_waits_for_the_jvm_of_a_killed_writer(tmp_path: Path, jvm, monkeypatch):
    """The JVM of a killed writer may still publish rows, so the next writer waits for its exit."""
    kill(hold(tmp_path, jvm.pid))
    waits = []

    def end_the_jvm(seconds: float) -> None:
        assert jvm.poll() is None
        waits.append(seconds)
        if len(waits) == 3:
            jvm.kill()
            jvm.wait()

    monkeypatch.setattr(leases.time, "sleep", end_the_jvm)
    Lease.acquire(tmp_path, os.getpid(), patience=3600.0).release()
    assert len(waits) == 3


def test_acquire_fails_if_the_old_jvm_does_not_exit(tmp_path: Path, jvm):
    """If the old JVM does not exit in time, the error names its pid."""
    kill(hold(tmp_path, jvm.pid))
    with pytest.raises(ConfigurationError, match=rf"JVM \(pid {jvm.pid}\)"):
        Lease.acquire(tmp_path, os.getpid(), patience=0.0)
    jvm.kill()
    jvm.wait()
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_zombie_does_not_count_as_alive(tmp_path: Path, jvm):
    """The next writer does not wait for a killed JVM that is still a zombie."""
    kill(hold(tmp_path, jvm.pid))
    process = Process.of(jvm.pid)
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)  # dead, and left as a zombie
    assert process is not None
    assert not process.alive()
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_reused_pid_does_not_count_as_the_old_jvm(tmp_path: Path, jvm):
    """Another process that reuses the old JVM's pid is recognized by its start time."""
    record = {"python": None, "jvm": {"pid": jvm.pid, "started": "long ago"}}
    (tmp_path / "_lease").write_text(json.dumps(record))
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_released_lease_is_available_at_once(tmp_path: Path, jvm):
    """After `release`, a JVM that is still running does not delay the next writer.

    A notebook keeps its JVM running, for example.
    """
    Lease.acquire(tmp_path, jvm.pid).release()
    lease = Lease.acquire(tmp_path, os.getpid(), patience=0.0)
    lease.release()
    lease.release()


def test_a_lost_lease_of_the_same_jvm_can_be_acquired_again(tmp_path: Path, jvm):
    """A new writer in the same JVM as the old one need not wait for that JVM to exit."""
    lost = Lease.acquire(tmp_path, jvm.pid)
    os.close(lost._descriptor)
    Lease.acquire(tmp_path, jvm.pid, patience=0.0).release()


def test_a_truncated_lease_file_is_ignored(tmp_path: Path):
    """A truncated lease file is ignored: only a power failure leaves one, and that also ends any
    writer.
    """
    (tmp_path / "_lease").write_bytes(b'{"python": {"pid": 1')
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch):
    """Without locks, two writers could not detect each other, so no lease is granted."""

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ConfigurationError, match="without locks"):
        Lease.acquire(tmp_path, os.getpid())


def test_a_dead_jvm_is_detected(tmp_path: Path, jvm):
    """A check and a new lease say the same if the JVM has exited: which one notices first is
    chance.
    """
    process = running_jvm(jvm.pid)
    check_jvm(process)
    jvm.kill()
    jvm.wait()
    ended = rf"^Spark's Java process has ended.*start again \(pid {jvm.pid}\)$"
    with pytest.raises(WriteError, match=ended):
        check_jvm(process)
    with pytest.raises(WriteError, match=ended):
        Lease.acquire(tmp_path, jvm.pid)


def test_processes_are_found_without_proc(jvm, monkeypatch):
    """Without /proc, as on macOS, `ps` tells whether a process is alive."""
    monkeypatch.setattr(leases.os.path, "exists", lambda path: False)
    process = Process.of(jvm.pid)
    assert process is not None
    assert process.alive()
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive()
