"""`sfpubsub subscribe` acks only those lines that have been read from its stdout."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sfpubsub.cli.main import run
from sfpubsub.cli.pipe import Output
from sfpubsub.emulator.org.settings import Settings

from ..client.test_managed import NAME, TOPIC, committed, orders
from ..conftest import PATIENCE, until
from .test_cli import assert_one_line_error, environment, point_at, spawn

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts unread bytes")


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator(settings=Settings(events_per_response=10))
    point_at(started, monkeypatch)
    return started


@contextlib.contextmanager
def subscribing(emulator, *options: str) -> Iterator[subprocess.Popen]:
    """Run ``subscribe`` on the managed subscription, and kill it when the block is left."""
    process = spawn(emulator, "subscribe", "--managed", NAME, *options)
    with process.stderr:
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()


def read_line(process) -> dict:
    """Read one line and not a byte more, so that no other line counts as read."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(process.stdout.fileno(), 1)
    return json.loads(line)


def wait_for_exit(process) -> tuple[int, str]:
    """Wait until *process* exits; return its exit code and its stderr."""
    code = process.wait(PATIENCE)
    return code, process.stderr.read()


def remaining_event_ids(emulator, capsys) -> list[str]:
    """Return the ids of the events that a second run of ``subscribe`` receives."""
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.3"]) == 0
    return [json.loads(line)["event_id"] for line in capsys.readouterr().out.splitlines()]


@linux
def test_closed_pipe_acks_only_the_lines_that_were_read(emulator, capsys):
    """Of ten printed lines, only one was read, so the other nine events are redelivered.

    The command exits without waiting for another event.
    """
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator) as process:
        assert read_line(process)["event_id"] == published[0]
        until(lambda: committed(emulator) is not None, "the commit of the first line")
        process.stdout.close()
        closed = time.monotonic()
        code, err = wait_for_exit(process)
        assert time.monotonic() - closed < 30  # the next keepalive would come after 120 s
    assert code == 0
    assert err.splitlines() == ["1 event, 9 more printed but not read"]
    assert remaining_event_ids(emulator, capsys) == published[1:]


def test_closed_pipe_ends_an_idle_subscription(emulator):
    """If the reader exits, as `head -1` does, the command does not wait for another event."""
    emulator.publish(TOPIC, orders(1))
    with subscribing(emulator) as process:
        read_line(process)
        last = committed
        until(lambda: last(emulator) is not None, "the commit")
        process.stdout.close()
        assert wait_for_exit(process) == (0, "1 event\n")


def test_head_ends_a_pipeline_cleanly(emulator, capsys):
    """A pipeline into `head` exits with code 0 even under pipefail.

    Events that were not acked are redelivered.
    """
    published = [result.event_id for result in emulator.publish(TOPIC, orders(300))]
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; {sys.executable} -m sfpubsub subscribe --managed {NAME} | head -1",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment(emulator)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["event_id"] == published[0]
    acked = int(done.stderr.split()[0])
    assert acked >= 1
    assert remaining_event_ids(emulator, capsys) == published[acked:]


@linux
def test_exit_waits_until_the_last_lines_are_read(emulator, capsys):
    """After --max-events, the command waits until a slow reader has read the last lines, and acks
    their events.
    """
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator, "--max-events", "5") as process:
        assert [read_line(process)["event_id"] for _ in range(2)] == published[:2]
        until(lambda: committed(emulator) is not None, "a commit")
        assert process.poll() is None
        assert [read_line(process)["event_id"] for _ in range(3)] == published[2:5]
        assert wait_for_exit(process) == (0, "5 events\n")
    assert remaining_event_ids(emulator, capsys) == published[5:]


@linux
def test_signal_does_not_wait_for_a_stalled_reader(emulator, capsys):
    """The command exits on SIGTERM even if its reader has stalled.

    The unread events are redelivered.
    """
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator) as process:
        assert read_line(process)["event_id"] == published[0]
        until(lambda: committed(emulator) is not None, "a commit")
        process.send_signal(signal.SIGTERM)
        assert wait_for_exit(process) == (0, "1 event, 9 more printed but not read\n")
    assert remaining_event_ids(emulator, capsys) == published[1:]


@linux
def test_full_pipe_acks_only_the_lines_that_were_read(emulator, capsys):
    """If the reader exits while a write waits for room in the pipe, only the lines it read are
    acked.

    The other events are redelivered.
    """
    results = emulator.publish(TOPIC, [{"Order_Number__c": "x" * 9000} for _ in range(20)])
    published = [result.event_id for result in results]
    with subscribing(emulator) as process:
        assert [read_line(process)["event_id"] for _ in range(3)] == published[:3]
        process.stdout.close()
        code, err = wait_for_exit(process)
    assert (code, "Traceback" in err) == (0, False)
    assert err.startswith("3 events, ")
    assert remaining_event_ids(emulator, capsys) == published[3:]


def test_closed_stdout_is_rejected_at_startup(emulator, monkeypatch, capsys):
    """`sfpubsub subscribe >&-` is refused: a connection could get the unused descriptor 1."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        code = run(["subscribe", "--managed", NAME])
    assert code == 1
    assert_one_line_error(capsys, "stdout")


def test_output_that_is_not_a_pipe_counts_as_read(tmp_path):
    """Bytes written to a file or to an in-memory object count as read at once, even if a write
    ends in the middle of a character.
    """
    memory = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with open(tmp_path / "lines", "w", encoding="utf-8") as file:
        for out in (memory, file):
            output = Output(out)
            data = output.encoded("ä\n")
            output.write(data[:1])
            output.write(data[1:])
            assert (output.written, output.taken(), output.is_gone()) == (3, 3, False)
    assert (tmp_path / "lines").read_text(encoding="utf-8") == "ä\n"
    assert memory.buffer.getvalue() == "ä\n".encode()


@linux
def test_acks_wait_for_bytes_of_other_writers():
    """With `2>&1`, unread bytes in the pipe may come from another writer.

    The output's own bytes count as read only once the whole pipe has been read.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as writer:
        output = Output(writer)
        output.write(b"ours\n")
        os.write(writing, b"theirs\n")
        assert reader.read(5) == b"ours\n"
        assert output.taken() <= 0
        reader.read(7)
        assert output.taken() == 5
