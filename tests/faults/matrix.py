"""The crash matrix: kills ``sfpubsub ingest`` at each moment of a write, and checks the table.

``python -m tests.faults.matrix FORMAT SOURCE DIRECTORY --kills N --seed S`` writes one stream of
events to one table. Each kill has a moment and victims (crash_victim.py). At the end, Spark and
another reader of the format read the table. scripts/crash_matrix.sh runs this for all formats and
sources.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, product
from pathlib import Path
from typing import TypeAlias

from tests import java
from tests.faults.crash_victim import MOMENTS, WHO
from tests.faults.killer import DEADLINE, MANAGED, TOPIC, Emulator, Publisher, RunError

# Events published per kill: at least three writes of 150 events, so that a second write certainly
# happens.
EVENTS_A_KILL = 600

OPTIONS = ("--batch-events", "150", "--batch-seconds", "0.3")

# Maximum delay of a kill within a write, in seconds: the duration of a small write.
LONGEST_WRITE = 0.4


# Event id and `ingest_seq` of each row, in order of arrival, by reader.
Rows: TypeAlias = dict[str, list[tuple[str, int]]]


@dataclass(frozen=True)
class Cell:
    """A planned kill of *who* at the *nth* occurrence of *moment*.

    In a write, the kill follows after *delay* seconds.
    """

    moment: str
    who: str
    nth: int
    delay: float


@dataclass
class Report:
    """The result of a run: published events, kills, and errors found in the table."""

    format: str
    source: str
    seed: int
    published: int
    kills: dict[str, int]
    redelivered: int
    seconds: float
    wrong: dict[str, str] = field(default_factory=dict)
    """Differences from the published events, by reader; empty if all readers see them in order."""

    @property
    def ok(self) -> bool:
        return not self.wrong


def cells(source: str, kills: int, rng: random.Random) -> list[Cell]:
    """Return *kills* planned kills in random order, covering moments and victims evenly."""
    pairs = [
        (moment, who)
        for moment, who in product(MOMENTS, WHO)
        if source == "managed" or moment != "receipt"  # a topic has no commits
    ]
    rng.shuffle(pairs)
    return [
        # Only one commit answer is certain, because waiting commits are combined.
        Cell(
            moment,
            who,
            1 if moment == "receipt" else rng.randint(1, 2),
            rng.uniform(0, LONGEST_WRITE),
        )
        for moment, who in islice(cycle(pairs), kills)
    ]


class Job:
    """A Python process that runs a module, in a new session."""

    def __init__(
        self, python: str, arguments: Sequence[str], environment: dict[str, str], log: Path
    ) -> None:
        self._log = log
        self._log_start = len(log.read_text()) if log.exists() else 0
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [python, "-m", *arguments],
                env={
                    **os.environ,
                    **environment,
                    "SFPUBSUB_STATE_DIR": str(log.parent / "state"),  # not the user's directory
                    **java.environment(),
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def wait(self) -> str:
        """Wait until the process exits, and return its stdout."""
        try:
            output, _ = self.process.communicate(timeout=DEADLINE * 2)
        except subprocess.TimeoutExpired as error:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise RunError(f"no exit within {DEADLINE * 2} s:\n{self.log_tail()}") from error
        return output

    def log_text(self) -> str:
        """Return what this process has written to the log."""
        return self._log.read_text()[self._log_start :]

    def log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-15:])


def run(
    format_: str,
    source: str,
    directory: Path,
    todo: Sequence[Cell],
    *,
    seed: int,
    python: str = sys.executable,
    to: str | None = None,
    options: Sequence[str] = (),
    read: Callable[[Path, str], Rows] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Perform the kills in *todo* during one stream, let ingest finish, and check the table.

    Args:
        format_: Format of the table.
        source: ``managed`` or ``topic``.
        directory: An empty directory; the table is created in ``table``.
        todo: The kills, in order.
        seed: Seed that *todo* was created with, for the report.
        python: Python interpreter with a PySpark version that supports the format.
        to: Path or URL of the table, if it is not in *directory*; requires *read*.
        options: Additional options of the command.
        read: Reads the table; by default, a new process reads it.
        say: Called with a description of each kill.

    Raises:
        RunError: A process exited in an unexpected way, or did not exit.
    """
    table, log = directory / "table", directory / "ingest.log"
    began = time.monotonic()
    chosen = ["--managed", MANAGED] if source == "managed" else ["--topic", TOPIC]
    command = ["ingest", *chosen, "--to", to or str(table), "--format", format_, *OPTIONS, *options]
    emulator = Emulator(directory)
    try:
        publisher = Publisher(emulator.ready, pace=0.02)
        publisher.start()
        for number, cell in enumerate(todo, start=1):
            publisher.raise_goal(EVENTS_A_KILL * number)
            victim = [cell.moment, cell.who, str(cell.nth), f"{cell.delay:.3f}", *command]
            job = Job(python, ["tests.faults.crash_victim", *victim], emulator.environment(), log)
            job.wait()
            status = job.process.returncode
            killed = job.log_text().count("killing") == 1
            if not killed or status != (1 if cell.who == "jvm" else -signal.SIGKILL):
                raise RunError(f"{cell} exited with {status}:\n{job.log_tail()}")
            say(f"kill {number}/{len(todo)}: {cell}")
        publisher.raise_goal(EVENTS_A_KILL * (len(todo) + 1))
        publisher.finish()
        last = Job(
            python,
            ["sfpubsub", *command, "--once", "--idle-timeout", "5"],
            emulator.environment(),
            log,
        )
        output = last.wait()
        if last.process.returncode != 0:
            raise RunError(f"ingest exited with {last.process.returncode}:\n{last.log_tail()}")
        say(f"last run: {output.strip()}")
        redelivered = emulator.counted(source, "redelivered")
    finally:
        emulator.close()
    readers = (read or _read_in_a_process(python, log))(table, format_)
    done = Counter(f"{cell.moment}/{cell.who}" for cell in todo)
    seconds = round(time.monotonic() - began, 1)
    report = Report(format_, source, seed, len(publisher.ids), dict(done), redelivered, seconds)
    for reader, rows in readers.items():
        wrong = _differences(publisher.ids, rows)
        if wrong:
            report.wrong[reader] = wrong
    return report


def _read_in_a_process(python: str, log: Path) -> Callable[[Path, str], Rows]:
    def read(table: Path, format_: str) -> Rows:
        counter = Job(python, ["tests.faults.count_table", str(table), format_], {}, log)
        output = counter.wait()
        if counter.process.returncode != 0:
            raise RunError(f"the table cannot be read:\n{counter.log_tail()}")
        found: Rows = json.loads(output.splitlines()[-1])
        return found

    return read


def _differences(published: list[str], rows: list[tuple[str, int]]) -> str:
    """Describe the differences of *rows* from *published*; empty if they are equal."""
    found = [row[0] for row in rows]
    if found == published and [row[1] for row in rows] == list(range(len(rows))):
        return ""
    counts = Counter(found)
    lost = sum(counts[event] == 0 for event in published)
    doubled = sum(count - 1 for count in counts.values())
    return f"{len(rows)} rows of {len(published)} events, {lost} lost, {doubled} duplicated"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=["parquet", "delta", "iceberg"])
    parser.add_argument("source", choices=["managed", "topic"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--python", default=sys.executable, help="interpreter for the format")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    report = run(
        options.format,
        options.source,
        options.directory,
        cells(options.source, options.kills, random.Random(options.seed)),
        seed=options.seed,
        python=options.python,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(
        json.dumps(
            {
                **vars(report),
                "kills": sum(report.kills.values()),
                "cells": report.kills,
                "ok": report.ok,
            }
        )
    )
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
