"""Log records as JSON lines on stderr, and the suppression of repeated warnings."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys

import click
import pytest

from sfpubsub.cli.logs import LINES, WITHIN, JsonFormatter, JsonStderr, Limit
from sfpubsub.cli.main import run
from sfpubsub.errors import StreamUnavailableError

from ..client.test_managed import NAME, TOPIC, orders
from .test_cli import point_at


def record(message: str, *args: object, at: float = 0.0, level: int = logging.WARNING):
    """Return a log record of *message* that was created *at* seconds after the epoch."""
    made = logging.LogRecord("sfpubsub.client", level, "file", 1, message, args, None)
    made.created = at
    return made


def test_log_line_is_an_object_with_its_rpc_id():
    """The rpc id is taken from an error among the log call's arguments, or else from the message.

    If neither contains one, the key `rpc_id` is omitted.
    """
    error = StreamUnavailableError("it is down", rpc_id="abc-1")
    line = json.loads(JsonFormatter().format(record("trying again: %s", error)))
    assert line == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "warning",
        "logger": "sfpubsub.client",
        "message": "trying again: it is down",
        "rpc_id": "abc-1",
    }
    line = json.loads(JsonFormatter().format(record("refused (UNAVAILABLE, rpc id d-2)\nü")))
    assert (line["rpc_id"], line["message"][-2:]) == ("d-2", "\nü")
    assert "rpc_id" not in json.loads(JsonFormatter().format(record("nothing")))


def test_repeated_warnings_are_limited_and_counted():
    """Of the warnings that differ only in numbers and rpc ids, only a few per minute are logged.

    Other warnings and lower levels are not limited. The next minute's first warning of the same
    kind says how many were suppressed.
    """
    limit, passed = Limit(), []
    for number in range(20):
        told = limit.limited(record("again in %.1f s, rpc id %s", number, f"r{number}x", at=number))
        passed += [told] if told else []
    assert [told.getMessage() for told in passed] == [
        f"again in {number:.1f} s, rpc id r{number}x" for number in range(LINES)
    ]
    assert limit.limited(record("another", at=19.0))
    assert all(limit.limited(record("x", level=logging.INFO)) for _ in range(20))
    told = limit.limited(record("again in %.1f s, rpc id %s", 9, "r", at=WITHIN))
    assert told.getMessage() == "again in 9.0 s, rpc id r (15 similar messages suppressed)"
    assert limit.limited(record("again in %.1f s, rpc id %s", 9, "r", at=WITHIN + 1))


def test_plain_messages_become_json_lines():
    """Each line of plain text becomes a JSON object, however it is split into writes.

    Lines that are JSON already stay as they are.
    """
    out = io.StringIO()
    wrapped = JsonStderr(out)
    for text in ("wait", "ing: down, rpc id x-1\n\nerror: gone\n", '{"level": "info"}\n', "rest"):
        wrapped.write(text)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("message") for line in lines] == [
        "waiting: down, rpc id x-1",
        "error: gone",
        None,
    ]
    assert [line["level"] for line in lines] == ["info", "error", "info"]
    assert lines[0]["rpc_id"] == "x-1"


def test_all_of_stderr_is_json(run_emulator, monkeypatch, capsys):
    """With --log-format json, successful and failed runs and the usage error of a command print
    nothing but JSON to stderr.
    """
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # restored later: a run replaces it
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    emulator.publish(TOPIC, orders(2))
    start = ["--log-format", "json", "-v"]
    assert run([*start, "subscribe", "--managed", NAME, "--max-events", "2"]) == 0
    assert run([*start, "topic", "/event/Nope__e"]) != 0
    assert run([*start, "subscribe", "--max-events", "many"]) == 2
    click.echo("two\nlines", err=True)
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.err.splitlines()]
    assert {"2 events", "two", "lines"} <= {line["message"] for line in lines}
    assert {line["logger"] for line in lines} >= {"sfpubsub.cli", "sfpubsub.transport"}
    failed, misused = [line for line in lines if line["level"] == "error"]
    assert failed["rpc_id"] in failed["message"]
    assert "sfpubsub subscribe --help" in misused["message"]
    assert len(printed.out.splitlines()) == 2, "stdout is as it was"


@pytest.mark.parametrize(
    "command", [["managed"], ["channel", "create", "All"], ["nonsense"]], ids=" ".join
)
def test_a_wrong_command_is_one_json_record(command, monkeypatch, capsys):
    """With --log-format json, an error of click is one record, however many lines its text has,
    and even if there is no such command.
    """
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # restored later: a run replaces it
    assert run(["--log-format", "json", *command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "error"


BESIDE = """
import os, subprocess, sys
from sfpubsub.cli.main import run
run(["--log-format", "json", "help", "connection"])
os.write(2, b"from a library in C\\n{braces}\\n")
subprocess.run(["sh", "-c", "echo from a child >&2; sleep 60 >/dev/null & echo $!"], check=True)
print("from Python", file=sys.stderr)
os.write(2, b"the last words")
"""


def test_what_other_programs_write_to_stderr_is_json():
    """With --log-format json, lines that a child process or a library writes past Python are JSON.

    A child that is still running, as Spark's JVM may be, delays the exit by no more than a second,
    and nothing that was written before the exit is lost.
    """
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, timeout=50, check=True
    )
    os.kill(int(done.stdout.splitlines()[-1]), signal.SIGKILL)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {(line["logger"], line["message"]) for line in lines} == {
        ("stderr", "from a library in C"),
        ("stderr", "{braces}"),
        ("stderr", "from a child"),
        ("stderr", "the last words"),
        ("sfpubsub.cli", "from Python"),
    }
