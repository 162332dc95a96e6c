"""One writer a table, told apart from what is left of the one before.

No Spark: any process plays the JVM.
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
from sfpubsub.spark.raw import lease as leases
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.runtime.process import Process

HOLDER = """
import sys
from pathlib import Path
from sfpubsub.spark.raw.lease import Lease
lease = Lease.acquire(Path(sys.argv[1]), int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen]:
    """A process that ends when it is told to."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def hold(table: Path, jvm_pid: int) -> subprocess.Popen:
    """Another process that has the lease."""
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


def test_a_living_writer_is_named_and_refused_at_once(tmp_path: Path, jvm):
    """The error says which process to end; nothing is waited for."""
    holder = hold(tmp_path, jvm.pid)
    try:
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid}"):
            Lease.acquire(tmp_path, os.getpid(), patience=3600.0)
    finally:
        kill(holder)


def test_the_jvm_of_a_killed_writer_is_waited_for(tmp_path: Path, jvm, monkeypatch):
    """It may still publish what the table's keys do not have yet."""
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


def test_a_jvm_that_does_not_end_is_named(tmp_path: Path, jvm):
    """Waiting is bounded: the error says which process to end."""
    kill(hold(tmp_path, jvm.pid))
    with pytest.raises(ConfigurationError, match=rf"JVM \(pid {jvm.pid}\)"):
        Lease.acquire(tmp_path, os.getpid(), patience=0.0)
    jvm.kill()
    jvm.wait()
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_zombie_does_not_count_as_alive(tmp_path: Path, jvm):
    """A JVM that was killed and not yet collected by its parent writes nothing."""
    kill(hold(tmp_path, jvm.pid))
    process = Process.of(jvm.pid)
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)  # dead, and left as a zombie
    assert process is not None
    assert not process.alive()
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_pid_that_was_given_out_again_is_nobodys(tmp_path: Path, jvm):
    """A stranger with the old JVM's pid is told apart by its start time."""
    record = {"python": None, "jvm": {"pid": jvm.pid, "started": "long ago"}}
    (tmp_path / "_lease").write_text(json.dumps(record))
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_clean_end_leaves_nothing_to_wait_for(tmp_path: Path, jvm):
    """After `release` a living JVM, as in a notebook, does not hold up the next writer."""
    Lease.acquire(tmp_path, jvm.pid).release()
    lease = Lease.acquire(tmp_path, os.getpid(), patience=0.0)
    lease.release()
    lease.release()


def test_a_writer_lost_in_the_same_process_is_replaced(tmp_path: Path, jvm):
    """Its JVM is the new one's as well, so there is nobody to wait for."""
    lost = Lease.acquire(tmp_path, jvm.pid)
    os.close(lost._descriptor)
    Lease.acquire(tmp_path, jvm.pid, patience=0.0).release()


def test_a_torn_record_is_no_obstacle(tmp_path: Path):
    """Only the loss of power tears it, which no process survives."""
    (tmp_path / "_lease").write_bytes(b'{"python": {"pid": 1')
    Lease.acquire(tmp_path, os.getpid(), patience=0.0).release()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch):
    """Two writers there could not see each other."""

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ConfigurationError, match="without locks"):
        Lease.acquire(tmp_path, os.getpid())


def test_a_dead_jvm_is_noticed(tmp_path: Path, jvm):
    """Both when the lease is taken and later."""
    lease = Lease.acquire(tmp_path, jvm.pid)
    lease.check()
    jvm.kill()
    jvm.wait()
    with pytest.raises(WriteError, match=f"pid {jvm.pid}"):
        lease.check()
    lease.release()
    with pytest.raises(WriteError, match="has exited"):
        Lease.acquire(tmp_path, jvm.pid)


def test_without_proc_the_process_table_answers(jvm, monkeypatch):
    """macOS has no /proc; its ps tells the same."""
    monkeypatch.setattr(leases.os.path, "exists", lambda path: False)
    process = Process.of(jvm.pid)
    assert process is not None
    assert process.alive()
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive()
