"""Kills a streaming query repeatedly while events are published, and counts the rows of its table.

The query starts at LATEST, and must not deliver the events that are already on the bus. Its driver,
Spark's JVM or the source's process is killed, at random times or while the offsets of a batch are
written but the batch is not committed. Everything is observed from outside: processes, the
checkpoint, and at the end the table, read by pyarrow. See
``python -m tests.faults.source_killer --help``; `test_kill_source.py` does a short run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds

from tests import java
from tests.faults.killer import (
    DEADLINE,
    POLL_S,
    TOPIC,
    Emulator,
    Publisher,
    RunError,
)

ROOT = Path(__file__).parents[2]

VICTIMS = ("driver", "jvm", "source")
MOMENTS = ("journaled", "random")

# Number of events published before the query starts, which it must not deliver.
BEFORE = 100

# Longest lifetime of a query that is killed at random, relative to that of the first query, which
# is killed in its first batch. So about half of these kills hit a running query, even on a busy
# machine.
LONGEST_LIFE = 2.0


@dataclass(frozen=True)
class Kill:
    """A SIGKILL that was sent."""

    victim: str
    moment: str
    after: float
    """Seconds from the start of the driver to the kill."""
    offsets: int
    """Number of batches whose offsets were written."""
    commits: int
    """Number of batches that were committed."""


@dataclass
class Report:
    """The result of a run: published events, kills, and the rows of the table."""

    seed: int
    published: int
    rows: int
    lost: int
    duplicated: int
    strangers: int
    """Number of event ids in the table that were not published."""
    in_order: bool
    repeated: int
    """Number of kills that left an uncommitted batch with offsets, which is then repeated."""
    seconds: float
    kills: list[Kill] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return (self.lost, self.duplicated, self.strangers, self.in_order) == (0, 0, 0, True)


class Query:
    """A process that runs the streaming query, in an operating-system session of its own."""

    def __init__(self, directory: Path, environment: dict[str, str], *more: str) -> None:
        self.log = directory / "query.log"
        self.checkpoint = directory / "checkpoint"
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "faults" / "source_job.py"),
                 str(directory / "table"), str(self.checkpoint), TOPIC, "latest", *more],
                env={
                    **os.environ,
                    **environment,
                    **java.environment(),
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        self.started = time.monotonic()

    def numbers(self, log: str) -> set[int]:
        """Return the batch numbers in *log*, the checkpoint's ``offsets`` or ``commits``."""
        try:
            names = os.listdir(self.checkpoint / log)
        except FileNotFoundError:
            return set()
        return {int(name) for name in names if name.isdigit()}

    def jvm(self) -> int:
        line = self.process.stdout.readline()
        if not line.startswith("jvm "):
            raise RunError(f"the query did not start:\n{self.log_tail()}")
        return int(line.split()[1])

    def source(self, jvm: int) -> int | None:
        """Return the pid of the source's process; None if it has not started."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == jvm and b"python_streaming_source_runner" in command:
                return int(path.name)
        return None

    def check_running(self) -> None:
        if self.process.poll() is not None:
            raise RunError(
                f"the query exited unexpectedly with {self.process.returncode}:\n{self.log_tail()}"
            )

    def end(self) -> None:
        """Check that the driver exits after the kill, and kill the remaining processes."""
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the driver did not exit after the kill:\n{self.log_tail()}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.stdout.close()

    def finish(self) -> None:
        try:
            output, _ = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired as error:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise RunError(f"the query did not exit in time:\n{self.log_tail()}") from error
        if self.process.returncode != 0 or "done" not in output:
            raise RunError(f"the query exited with {self.process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-25:])


def _wait(query: Query, condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        query.check_running()
        if time.monotonic() > deadline:
            raise RunError(f"{what} was not seen within {DEADLINE:.0f} s:\n{query.log_tail()}")
        time.sleep(POLL_S)


def run(
    directory: Path,
    *,
    kills: int,
    events: int = 10_000,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Publish *events*, kill the query *kills* times, let it finish, and count the rows.

    Args:
        directory: An empty directory; ``table`` and ``checkpoint`` are created in it.
        kills: Number of kills. The first is in the first batch after LATEST; then victims and
            moments alternate.
        events: Number of events to publish, spread over the whole run.
        seed: Seed of the random times.
        say: Called with a description of each kill.

    Raises:
        RunError: A process exited without being killed, or nothing happened for too long.
    """
    rng = random.Random(seed)
    began = time.monotonic()
    done: list[Kill] = []
    repeated = 0
    emulator = Emulator(directory)
    try:
        publisher = Publisher(emulator.ready, pace=0.02)
        publisher.start()
        publisher.raise_goal(BEFORE)
        environment = emulator.environment()
        for number in range(kills):
            victim = VICTIMS[number % 3]
            moment = MOMENTS[number // 3 % 2] if number else "journaled"
            query = Query(directory, environment)
            jvm = query.jvm()
            if not number:
                _wait(query, lambda: _streams(emulator), "the first stream")
            publisher.raise_goal(BEFORE + events * (number + 1) // (kills + 1))
            if moment == "random":
                end = query.started + rng.uniform(0.1, LONGEST_LIFE * done[0].after)
                _wait(query, lambda: time.monotonic() > end, "the time of the kill")  # noqa: B023
            else:
                before = query.numbers("commits")
                if number:
                    # Wait for commits of this process; the last one left an uncommitted batch.
                    steps = rng.randint(1, 3)
                    _wait(query, lambda: len(query.numbers("commits") - before) >= steps, "commits")  # noqa: B023
                _wait(query, lambda: _journaled_rows(query), "a batch under way")  # noqa: B023
            pid = {"driver": query.process.pid, "jvm": jvm}.get(victim) or query.source(jvm)
            if pid is None:  # the source has not started yet, so kill the driver
                victim, pid = "driver", query.process.pid
            os.kill(pid, signal.SIGKILL)
            after = time.monotonic() - query.started
            query.end()
            offsets, commits = query.numbers("offsets"), query.numbers("commits")
            repeated += bool(offsets - commits)
            done.append(Kill(victim, moment, round(after, 2), len(offsets), len(commits)))
            say(f"kill {number + 1}/{kills}: {done[-1]}")
        publisher.raise_goal(BEFORE + events)
        publisher.finish()
        Query(directory, environment, "now").finish()
    finally:
        emulator.close()
    return _count(directory / "table", publisher.ids[:BEFORE], publisher.ids[BEFORE:], Report(
        seed=seed, published=len(publisher.ids) - BEFORE, rows=0, lost=0, duplicated=0,
        strangers=0, in_order=False, repeated=repeated, kills=done,
        seconds=round(time.monotonic() - began, 1),
    ))  # fmt: skip


def _streams(emulator: Emulator) -> bool:
    return bool(emulator.health()["topics"][TOPIC].get("streams"))


def _journaled_rows(query: Query) -> bool:
    """Return whether the offsets of a batch with events are written but not committed."""
    for number in query.numbers("offsets") - query.numbers("commits"):
        text = (query.checkpoint / "offsets" / str(number)).read_text()
        offset = text.splitlines()[-1]
        if offset.startswith("{") and "seq" in (found := json.loads(offset)) and found["seq"]:
            return True
    return False


def _count(table: Path, before: list[str], published: list[str], report: Report) -> Report:
    rows = ds.dataset(table, format="parquet").to_table(columns=["event_id", "ingest_seq"])
    found = Counter(rows["event_id"].to_pylist())
    report.rows = len(rows)
    report.lost = sum(found[event_id] == 0 for event_id in published)
    report.duplicated = sum(count - 1 for count in found.values())
    report.strangers = len(set(found) - set(published))
    ordered = rows.sort_by("ingest_seq")
    report.in_order = (
        ordered["ingest_seq"].to_pylist() == list(range(len(rows)))
        and ordered["event_id"].to_pylist() == published
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    report = run(
        options.directory,
        kills=options.kills,
        events=options.events,
        seed=options.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(json.dumps({**vars(report), "kills": len(report.kills), "ok": report.ok}))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
