"""Programs that run a handler in a separate process and are stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ..cli.test_cli import environment
from ..conftest import PATIENCE, until, wait_for_exit
from .test_managed import NAME, TOPIC, committed, orders

# Logs the start and the end of each event with one write each, so that a kill tears no line.
SYNC = f"""
import logging, os, signal, sys, time
from sfpubsub import PubSubClient

logging.basicConfig(level="INFO")
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
pause = float(sys.argv[2])

def handle(event):
    number = event.value["Order_Number__c"]
    os.write(log, f"begun {{number}}\\n".encode())
    time.sleep(pause)
    os.write(log, f"done {{number}}\\n".encode())

with PubSubClient.from_env() as client:
    subscription = client.subscribe_managed("{NAME}")
    signal.signal(signal.SIGTERM, lambda *_: subscription.stop())
    print(subscription.run(handle, workers=4, key=None).handled)
"""

ASYNC = f"""
import asyncio, logging, os, signal, sys
from sfpubsub import AsyncPubSubClient

logging.basicConfig(level="INFO")
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
pause = float(sys.argv[2])

async def handle(event):
    number = event.value["Order_Number__c"]
    os.write(log, f"begun {{number}}\\n".encode())
    await asyncio.sleep(pause)
    os.write(log, f"done {{number}}\\n".encode())

async def main():
    async with AsyncPubSubClient.from_env() as client:
        subscription = client.subscribe_managed("{NAME}")
        signal.signal(signal.SIGTERM, lambda *_: subscription.stop())
        print((await subscription.run(handle, workers=4, key=None)).handled)

asyncio.run(main())
"""

PROGRAMS = [pytest.param(SYNC, id="sync"), pytest.param(ASYNC, id="asyncio")]


class Program:
    """A program in a separate process, with the log that its handler writes."""

    def __init__(self, code: str, emulator, log: Path, pause: float) -> None:
        self._log = log
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", code, str(log), str(pause)],
            env={**os.environ, **environment(emulator)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors = ""

    def logged(self, what: str) -> list[int]:
        """Return the numbers of the events that were logged with *what*, "begun" or "done"."""
        text = self._log.read_text() if self._log.exists() else ""
        return [int(line.split()[1]) for line in text.splitlines() if line.startswith(what)]

    def wait_for_error(self, text: str) -> None:
        """Read the program's standard error up to a line that contains *text*."""
        assert self.process.stderr is not None
        limit = threading.Timer(PATIENCE, self.process.send_signal, [signal.SIGABRT])
        limit.start()
        try:
            for line in self.process.stderr:
                self.errors += line
                if text in line:
                    return
        finally:
            limit.cancel()
        pytest.fail(f"it ended without {text!r}: {self.errors}")

    def wait_until_idle(self) -> None:
        """Wait until the main thread sleeps, and has done so for 20 looks."""
        status = Path(f"/proc/{self.process.pid}/status")
        seen: list[str] = []

        def is_idle() -> bool:
            text = status.read_text()
            lines = [line for line in text.splitlines() if "ctxt_switches" in line]
            seen.append(f"{lines}" if "State:\tS" in text else f"busy {len(seen)}")
            return len(set(seen[-20:])) == 1 and len(seen) >= 20

        until(is_idle, "an idle main thread")

    def wait_for_exit(self) -> str:
        """Wait until the program exits, and return its stdout."""
        output, errors = wait_for_exit(self.process)
        self.errors += errors
        return output


@pytest.mark.parametrize("code", PROGRAMS)
def test_killed_process_loses_no_event(run_emulator, tmp_path, code):
    """Whenever the program is killed, it has handled every event that it committed.

    After the last restart, every event has been handled, some possibly twice.
    """
    emulator = run_emulator()
    results = [result.replay_id for result in emulator.publish(TOPIC, orders(120))]
    log = tmp_path / "log"
    for goal in (30, 80):
        program = Program(code, emulator, log, 0.01)
        until(lambda: len(set(program.logged("done"))) >= goal, f"{goal} events")  # noqa: B023
        program.process.kill()
        program.wait_for_exit()
        position = committed(emulator)
        passed = results.index(position) + 1 if position else 0
        assert set(program.logged("done")) >= set(range(passed)), "committed but not handled"
    last = Program(code, emulator, log, 0.01)
    until(lambda: len(set(last.logged("done"))) == 120, "all events")
    last.process.send_signal(signal.SIGTERM)
    last.wait_for_exit()
    assert set(last.logged("done")) == set(range(120))
    assert committed(emulator) == results[-1]


@pytest.mark.parametrize("code", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_program_finishes_and_commits_what_it_began(
    run_emulator, tmp_path, code, number
):
    """After SIGTERM or SIGINT, exactly the events that were begun are finished and committed."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(60))
    program = Program(code, emulator, tmp_path / "log", 0.3)
    until(lambda: len(program.logged("begun")) >= 8, "handlers")
    program.process.send_signal(number)
    printed = program.wait_for_exit()
    begun, done = program.logged("begun"), program.logged("done")
    assert sorted(begun) == sorted(done) == list(range(len(done)))
    assert len(done) < 60
    assert committed(emulator) == results[len(done) - 1].replay_id
    if number == signal.SIGTERM:
        assert (program.process.returncode, printed) == (0, f"{len(done)}\n"), program.errors
    else:
        assert "KeyboardInterrupt" in program.errors
        assert program.process.returncode == -signal.SIGINT


@pytest.mark.parametrize("code", PROGRAMS)
def test_second_ctrl_c_exits_at_once(run_emulator, tmp_path, code):
    """A second Ctrl-C exits at once, even if handlers hang; their events are not committed.

    After the first one, the program sleeps until a handler finishes.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(10))
    program = Program(code, emulator, tmp_path / "log", 3600)
    until(lambda: len(program.logged("begun")) == 4, "handlers")
    program.process.send_signal(signal.SIGINT)
    program.wait_for_error("waiting for running handlers")
    # With asyncio, the second one raises KeyboardInterrupt wherever the event loop is. In the
    # middle of waking a task, asyncio then never wakes it, and exits only at the next Ctrl-C.
    program.wait_until_idle()
    program.process.send_signal(signal.SIGINT)
    program.wait_for_exit()
    assert program.process.returncode == -signal.SIGINT
    assert program.logged("done") == []
    assert committed(emulator) is None
