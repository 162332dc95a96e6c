"""``sfpubsub publish``: what a line may say, what is printed, and what the exit code tells."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from sfpubsub.cli.main import run
from sfpubsub.cli.publish import MAX_UNPRINTED, Pace, Printer
from sfpubsub.cli.publish_progress import PublishProgress
from sfpubsub.testing import Fault
from sfpubsub.types import PublishCounts, PublishResult

from ..client.test_managed import TOPIC
from ..client.test_publisher import USER, on_the_bus
from ..conftest import PATIENCE, ended, until
from .test_cli import environment, point_at


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "events.jsonl"

    def write(*lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["publish", TOPIC, "--file", str(path), "--created-by", USER]

    return write


def printed(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("options", [[], ["--stream"], ["--stream", "--rate", "100000/s"]])
def test_a_line_may_set_the_events_id(options, emulator, connect, file, capsys):
    """_event is about the event and no field; results come in the order of the lines."""
    lines = [{"_event": {"id": f"e{n}", "headers": {"a": "b"}}, "City__c": "x"} for n in range(300)]
    assert run([*file(*lines), *options]) == 0
    assert [line["event_id"] for line in printed(capsys)] == [f"e{n}" for n in range(300)]
    assert sorted(name for name, _ in on_the_bus(emulator, connect)) == sorted(
        f"e{n}" for n in range(300)
    )


@pytest.mark.parametrize(
    ("about", "says"),
    [
        (7, "_event must be an object"),
        ({"name": "x"}, "_event must be an object"),
        ({"headers": 7}, "headers must be an object"),
        ({"headers": {"a": 7}}, "header 'a'"),
        ({"id": "x" * 37}, "1 to 36 characters"),
    ],
)
def test_a_line_that_says_nonsense_of_the_event_is_refused(about, says, emulator, file, capsys):
    """The line is named, and what stands before it was published and printed."""
    assert run(file({}, {"_event": about})) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "line 2 of" in said.err
    assert says in said.err
    assert emulator.bus.tip() == 1


def test_a_file_that_is_not_utf_8_is_named(emulator, tmp_path, capsys):
    """With about the line; what was read before is published."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 10_000 + b"\xff\n")
    assert run(["publish", TOPIC, "--file", str(path), "--created-by", USER]) == 1
    assert "events.jsonl is not valid UTF-8 at line 2 or later" in capsys.readouterr().err
    assert emulator.bus.tip() == 1


def test_any_failed_event_is_exit_code_1_and_has_its_line(emulator, file, capsys):
    """The others are published; the failed one says why."""
    emulator.faults.add(Fault("refuse_event", text="no such record"))
    assert run(file(*[{}] * 3)) == 1
    said = capsys.readouterr()
    errors = [json.loads(line)["error"] for line in said.out.splitlines()]
    assert errors == ["no such record", None, None]
    assert "1 event failed; see the printed results" in said.err
    assert "\r" not in said.err  # no terminal, no progress


def test_lost_answers_are_no_failures(emulator, connect, file, capsys):
    """What is not answered is sent again under its id: a line of results an event."""
    emulator.faults.add(Fault("lose_answer", times=2))
    assert run([*file(*[{}] * 500), "--stream"]) == 0
    ids = [line["event_id"] for line in printed(capsys)]
    assert sorted({name for name, _ in on_the_bus(emulator, connect)}) == sorted(ids)
    emulator.faults.assert_consumed()


@pytest.mark.parametrize("rate", ["0", "-1", "many", "nan", "inf"])
def test_a_rate_is_a_number_above_0(rate):
    """A slip is a usage error."""
    assert run(["publish", TOPIC, f"--rate={rate}"]) == 2


def publishing(emulator, *options, before=()) -> subprocess.Popen[str]:
    """The command in a process of its own, reading a pipe."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sfpubsub",
            *before,
            "publish",
            TOPIC,
            "--created-by",
            USER,
            *options,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment(emulator)},
    )


def test_ctrl_c_ends_the_reading_and_loses_no_result(emulator, connect):
    """What was read is published and printed; the exit code says that it was interrupted."""
    process = publishing(emulator)
    process.stdin.write('{"_event": {"id": "a"}}\n{"_event": {"id": "b"}}\n')
    process.stdin.flush()
    # Printed though no further line has come.
    printed = [json.loads(process.stdout.readline())["event_id"] for _ in range(2)]
    assert printed == ["a", "b"]
    process.send_signal(signal.SIGINT)
    output, errors = ended(process)
    assert process.returncode == 130, errors
    assert output == ""
    assert [name for name, _ in on_the_bus(emulator, connect)] == ["a", "b"]


def test_a_second_ctrl_c_ends_at_once_and_says_what_has_no_result(emulator):
    """Nobody has to wait for a service that takes nothing; each event has its line all the same."""
    emulator.faults.add(Fault("refuse_event", times=1_000_000))
    process = publishing(emulator, before=["--verbose"])
    process.stdin.write('{"_event": {"id": "a"}}\n')
    process.stdin.flush()
    until(lambda: emulator.faults.report()[0]["happened"] > 0, "the first attempt")
    process.send_signal(signal.SIGINT)
    # Two signals at the same moment are one.
    assert any("a second Ctrl-C stops waiting" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    output, errors = ended(process)
    assert process.returncode == 130, errors
    line = json.loads(output)
    assert line["event_id"] == "a"
    assert "may have been published" in line["error"]


def test_ctrl_c_waits_for_no_rate(emulator, connect):
    """What was read goes out at once, however slow the rate is."""
    process = publishing(emulator, "--rate", "0.001/s")
    process.stdin.write('{"_event": {"id": "a"}}\n{"_event": {"id": "b"}}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["event_id"] == "a"
    process.send_signal(signal.SIGINT)
    output, errors = ended(process)
    assert process.returncode == 130, errors
    assert json.loads(output)["event_id"] == "b"
    assert [name for name, _ in on_the_bus(emulator, connect)] == ["a", "b"]


def test_a_reader_who_pauses_stops_the_publishing():
    """Results that nobody reads wait in bounded number; when reading fails, nothing waits."""
    receipts: list[Future[PublishResult]] = [Future() for _ in range(MAX_UNPRINTED + 10)]
    put = []

    class Silent:
        def refresh(self) -> None:
            raise BrokenPipeError

        def end(self) -> None:
            return

    def send() -> None:
        with contextlib.suppress(BrokenPipeError), Printer(Silent()) as printer:
            for receipt in receipts:
                printer.put(receipt)
                put.append(receipt)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: len(put) > MAX_UNPRINTED, "a full queue")
    assert len(put) == MAX_UNPRINTED + 1  # and one in the printer's hand
    for receipt in receipts:
        receipt.set_result(PublishResult(None, "a"))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_pace_keeps_the_rate_on_the_whole():
    """An event that was late is made up for; the first one goes at once."""
    now = [10.0]
    pace = Pace(2.0, lambda: now[0])
    assert pace.next() == 0.0
    assert pace.next() == 0.5
    now[0] = 11.5
    assert [pace.next(), pace.next(), pace.next()] == [0.0, 0.0, 0.5]


def test_progress_writes_over_its_line_on_a_terminal():
    """People see where it stands; the last line stays."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Counting:
        counts = PublishCounts(accepted=12345, failed=1, pending=7, sent_again=3)

    now, out = [0.0], Terminal()
    progress = PublishProgress(out, Counting(), lambda: now[0])
    now[0] = 10.0
    progress.refresh()
    progress.refresh()  # too soon
    Counting.counts = PublishCounts(accepted=12352)
    progress.end()
    assert out.getvalue() == (
        "\r\x1b[K12,345 published, 1,234/s, 7 without a result, 1 failed, 3 sent again"
        "\r\x1b[K12,352 published, 1,235/s\n"
    )
