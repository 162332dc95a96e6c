"""Who reads our stdout, and what of it was read: the acks of `sfpubsub subscribe`."""

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
from sfpubsub.cli.output import Output
from sfpubsub.emulator.org.settings import Settings

from ..client.test_managed import NAME, TOPIC, committed, orders
from ..conftest import PATIENCE, until
from .test_cli import assert_one_line_error, environment, point_at, spawn

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is unread")


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator(settings=Settings(events_per_response=10))
    point_at(started, monkeypatch)
    return started


@contextlib.contextmanager
def subscribing(emulator, *options: str) -> Iterator[subprocess.Popen]:
    process = spawn(emulator, "subscribe", "--managed", NAME, *options)
    with process.stderr:
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()


def read_line(process) -> dict:
    """Read a line and not a byte more, as no program with a buffer does."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(process.stdout.fileno(), 1)
    return json.loads(line)


def ended(process) -> tuple[int, str]:
    code = process.wait(PATIENCE)
    return code, process.stderr.read()


def rest_of(emulator, capsys) -> list[str]:
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.3"]) == 0
    return [json.loads(line)["event_id"] for line in capsys.readouterr().out.splitlines()]


@linux
def test_a_closed_pipe_acks_what_was_read_and_nothing_else(emulator, capsys):
    """Ten lines were written, one was read: nine come again, though no event came in between."""
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator) as process:
        assert read_line(process)["event_id"] == published[0]
        until(lambda: committed(emulator) is not None, "the commit of the first line")
        process.stdout.close()
        closed = time.monotonic()
        code, err = ended(process)
        assert time.monotonic() - closed < 30  # the next keepalive comes after 120
    assert code == 0
    assert err.splitlines() == ["1 event, 9 more printed but not read"]
    assert rest_of(emulator, capsys) == published[1:]


def test_a_reader_that_leaves_an_idle_subscription_ends_it(emulator):
    """`| head -1` has what it wanted: the end does not wait for an event that may never come."""
    emulator.publish(TOPIC, orders(1))
    with subscribing(emulator) as process:
        read_line(process)
        last = committed
        until(lambda: last(emulator) is not None, "the commit")
        process.stdout.close()
        assert ended(process) == (0, "1 event\n")


def test_head_ends_a_pipeline_in_order(emulator, capsys):
    """With the real `head`: exit code 0 also under pipefail, and nothing unread is lost."""
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
    assert rest_of(emulator, capsys) == published[acked:]


@linux
def test_an_end_waits_until_the_last_lines_were_read(emulator, capsys):
    """A reader that is slower than we are gets its lines acked: none comes twice."""
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator, "--max-events", "5") as process:
        assert [read_line(process)["event_id"] for _ in range(2)] == published[:2]
        until(lambda: committed(emulator) is not None, "a commit")
        assert process.poll() is None
        assert [read_line(process)["event_id"] for _ in range(3)] == published[2:5]
        assert ended(process) == (0, "5 events\n")
    assert rest_of(emulator, capsys) == published[5:]


@linux
def test_a_signal_does_not_wait_for_a_reader_that_has_stopped(emulator, capsys):
    """The lines that it did not read within some seconds come again."""
    published = [result.event_id for result in emulator.publish(TOPIC, orders(10))]
    with subscribing(emulator) as process:
        assert read_line(process)["event_id"] == published[0]
        until(lambda: committed(emulator) is not None, "a commit")
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "1 event, 9 more printed but not read\n")
    assert rest_of(emulator, capsys) == published[1:]


@linux
def test_a_full_pipe_takes_what_fits_and_acks_what_was_read(emulator, capsys):
    """A reader that leaves while we wait for room: what it read stays acked, and nothing else."""
    results = emulator.publish(TOPIC, [{"Order_Number__c": "x" * 9000} for _ in range(20)])
    published = [result.event_id for result in results]
    with subscribing(emulator) as process:
        assert [read_line(process)["event_id"] for _ in range(3)] == published[:3]
        process.stdout.close()
        code, err = ended(process)
    assert (code, "Traceback" in err) == (0, False)
    assert err.startswith("3 events, ")
    assert rest_of(emulator, capsys) == published[3:]


def test_an_output_that_is_closed_from_the_start_is_an_error(emulator, monkeypatch, capsys):
    """`sfpubsub subscribe >&-`: no descriptor 1, which a connection might be given otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        code = run(["subscribe", "--managed", NAME])
    assert code == 1
    assert_one_line_error(capsys, "stdout")


def test_what_is_no_pipe_takes_everything_at_once(tmp_path):
    """A file and an object in memory are always read, and their reader never leaves. A piece of the
    output may end within a character.
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
def test_what_others_write_into_the_pipe_makes_us_careful():
    """`2>&1`: their bytes may be the unread ones, so ours count as unread until all are read."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as writer:
        output = Output(writer)
        output.write(b"ours\n")
        os.write(writing, b"theirs\n")
        assert reader.read(5) == b"ours\n"
        assert output.taken() <= 0
        reader.read(7)
        assert output.taken() == 5
