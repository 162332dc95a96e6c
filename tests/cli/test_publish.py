"""``sfpubsub publish``: its input lines, its printed results and its exit codes."""

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
from ..conftest import PATIENCE, until, wait_for_exit
from .test_cli import environment, point_at


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


@pytest.fixture
def file(tmp_path):
    """Return a function that writes its arguments to a file of events, one JSON line each, and
    returns the command-line arguments to publish them.
    """
    path = tmp_path / "events.jsonl"

    def write(*lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["publish", TOPIC, "--file", str(path), "--created-by", USER]

    return write


def printed(capsys) -> list[dict]:
    """Return the results that were printed to stdout."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("options", [[], ["--stream"], ["--stream", "--rate", "100000/s"]])
def test_line_can_set_the_event_id(options, emulator, connect, file, capsys):
    """The key `_event` of an input line sets the event's id and headers; it is not a field.

    Results are printed in the order of the lines.
    """
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
def test_line_with_invalid_event_metadata_is_rejected(about, says, emulator, file, capsys):
    """The error names the line and says what is wrong with it.

    The line before it is published, and its result is printed.
    """
    assert run(file({}, {"_event": about})) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "line 2 of" in said.err
    assert says in said.err
    assert emulator.bus.tip() == 1


def test_file_that_is_not_utf8_is_named(emulator, tmp_path, capsys):
    """The error names the file and roughly the line; the line before it was published."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 10_000 + b"\xff\n")
    assert run(["publish", TOPIC, "--file", str(path), "--created-by", USER]) == 1
    assert "events.jsonl is not valid UTF-8 at line 2 or later" in capsys.readouterr().err
    assert emulator.bus.tip() == 1


def test_failed_event_gives_exit_code_1_and_its_reason(emulator, file, capsys):
    """The result line of the failed event has the reason, and the other two events succeed."""
    emulator.faults.add(Fault("refuse_event", text="no such record"))
    assert run(file(*[{}] * 3)) == 1
    said = capsys.readouterr()
    errors = [json.loads(line)["error"] for line in said.out.splitlines()]
    assert errors == ["no such record", None, None]
    assert "1 event failed; see the printed results" in said.err
    assert "\r" not in said.err  # no terminal, no progress


def test_lost_responses_are_not_failures(emulator, connect, file, capsys):
    """Events whose response was lost are resent under the same id, and each has exactly one result
    line.
    """
    emulator.faults.add(Fault("lose_answer", times=2))
    assert run([*file(*[{}] * 500), "--stream"]) == 0
    ids = [line["event_id"] for line in printed(capsys)]
    assert sorted({name for name, _ in on_the_bus(emulator, connect)}) == sorted(ids)
    emulator.faults.assert_consumed()


@pytest.mark.parametrize("rate", ["0", "-1", "many", "nan", "inf"])
def test_rate_must_be_a_positive_number(rate):
    """A --rate that is not a finite number above 0 is a usage error."""
    assert run(["publish", TOPIC, f"--rate={rate}"]) == 2


def start_publish(emulator, *options, before=()) -> subprocess.Popen[str]:
    """Start `sfpubsub publish` in a separate process that reads events from a pipe."""
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


def test_ctrl_c_stops_reading_and_loses_no_result(emulator, connect):
    """Events read before Ctrl-C are published and their results printed.

    The exit code is 130.
    """
    process = start_publish(emulator)
    process.stdin.write('{"_event": {"id": "a"}}\n{"_event": {"id": "b"}}\n')
    process.stdin.flush()
    # Results are printed although no further line has arrived.
    printed = [json.loads(process.stdout.readline())["event_id"] for _ in range(2)]
    assert printed == ["a", "b"]
    process.send_signal(signal.SIGINT)
    output, errors = wait_for_exit(process)
    assert process.returncode == 130, errors
    assert output == ""
    assert [name for name, _ in on_the_bus(emulator, connect)] == ["a", "b"]


def test_second_ctrl_c_ends_at_once_and_reports_missing_results(emulator):
    """A second Ctrl-C does not wait for the service.

    Each event without a result still gets its line.
    """
    emulator.faults.add(Fault("refuse_event", times=1_000_000))
    process = start_publish(emulator, before=["--verbose"])
    process.stdin.write('{"_event": {"id": "a"}}\n')
    process.stdin.flush()
    until(lambda: emulator.faults.report()[0]["happened"] > 0, "the first attempt")
    process.send_signal(signal.SIGINT)
    # Two signals at the same moment would arrive as one, so wait until the first was handled.
    assert any("a second Ctrl-C stops waiting" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    output, errors = wait_for_exit(process)
    assert process.returncode == 130, errors
    line = json.loads(output)
    assert line["event_id"] == "a"
    assert "may have been published" in line["error"]


def test_ctrl_c_ignores_the_rate(emulator, connect):
    """Events read before Ctrl-C are published at once, however low the rate is."""
    process = start_publish(emulator, "--rate", "0.001/s")
    process.stdin.write('{"_event": {"id": "a"}}\n{"_event": {"id": "b"}}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["event_id"] == "a"
    process.send_signal(signal.SIGINT)
    output, errors = wait_for_exit(process)
    assert process.returncode == 130, errors
    assert json.loads(output)["event_id"] == "b"
    assert [name for name, _ in on_the_bus(emulator, connect)] == ["a", "b"]


def test_unprinted_results_hold_back_publishing():
    """Publishing blocks while too many results wait to be printed.

    Once printing fails, publishing is no longer blocked.
    """
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
    assert len(put) == MAX_UNPRINTED + 1  # plus the one that the printer has taken
    for receipt in receipts:
        receipt.set_result(PublishResult(None, "a"))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_pace_keeps_the_average_rate():
    """The first event is sent at once, and events that are behind schedule follow without a
    pause.
    """
    now = [10.0]
    pace = Pace(2.0, lambda: now[0])
    assert pace.next() == 0.0
    assert pace.next() == 0.5
    now[0] = 11.5
    assert [pace.next(), pace.next(), pace.next()] == [0.0, 0.0, 0.5]


def test_progress_overwrites_its_line_on_a_terminal():
    """A refresh that comes too soon writes nothing, and the line with the final counts stays."""

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
