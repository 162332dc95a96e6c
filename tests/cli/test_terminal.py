"""Tests that what a server sent does not control the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from sfpubsub.cli.terminal import Terminal, shown

from ..auth.servers import Reply, https_host
from ..client.test_managed import TOPIC
from .test_cli import environment

HOSTILE = "\x1b]0;title\x07 \x9b31m \u202etxt.exe\u2066 \r\x1b[2J"
"""Sets the title and colours, reorders text, goes to the start of the line, clears the screen."""


def on_terminal(*arguments: str, **variables: str) -> str:
    """Run a command whose stdout and stderr are one terminal; return what it was sent."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sfpubsub", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", **variables},
        )
        os.close(theirs)
        sent = b""
        try:
            while part := os.read(ours, 4096):
                sent += part
        except OSError:  # the process has closed its side
            pass
        process.wait(60)
    finally:
        os.close(ours)
    # The terminal's driver ends lines this way; the commands clear their status line.
    return sent.decode().replace("\r\n", "\n").replace("\r\x1b[K", "")


def is_harmless(text: str) -> bool:
    """Return whether a text has no character that a terminal obeys, except new lines."""
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize("text", [HOSTILE, *"\x00\x08\x0b\x1b\x7f\x85\x9b\u061c\u200e\u202e\u2069"])
def test_escapes_mean_the_same_in_json(text):
    """Every character that a terminal obeys becomes an escape, which in JSON means the same."""
    line = json.dumps({"text": text}, ensure_ascii=False)
    assert is_harmless(shown(text))
    assert json.loads(shown(line)) == {"text": text}


@pytest.mark.parametrize(
    "text", ["plain\n", "a\tb", "Łódź 東京 🎉", "\r\x1b[Kstatus", "\x1b[1mx\x1b[0m"]
)
def test_own_output_is_unchanged(text):
    """Ordinary text, a status line that is updated in place, and bold text are written as they
    are.
    """
    out = io.StringIO()
    assert Terminal(out).write(text) == len(text)
    assert out.getvalue() == text


def test_a_message_of_a_server_is_shown_with_escapes():
    """The message in an error of a server, shown as the reason of a failure, has escapes."""
    with https_host(lambda _request: Reply(400, {"error": HOSTILE})) as host:
        sent = on_terminal("emulator", "faults", "--url", host.url, SFPUBSUB_EMULATOR_TOKEN="x")
    assert "error: " in sent
    assert "\\u001b]0;title\\u0007" in sent
    assert is_harmless(sent), sent


def test_events_are_shown_with_escapes(run_emulator):
    """The values of events have escapes on a terminal, as the same JSON; a pipe gets them as they
    are.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, [{"Order_Number__c": HOSTILE}])
    command = ["subscribe", "--topic", TOPIC, "--replay", "earliest", "--max-events", "1"]
    sent = on_terminal(*command, **environment(emulator))
    assert is_harmless(sent), sent
    line = next(line for line in sent.splitlines() if line.startswith("{"))
    assert json.loads(line)["payload"]["Order_Number__c"] == HOSTILE
    piped = subprocess.run(
        [sys.executable, "-m", "sfpubsub", *command],
        env={**os.environ, **environment(emulator)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert "\u202e" in piped.stdout.decode()
