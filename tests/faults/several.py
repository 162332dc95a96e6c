"""Kills ``sfpubsub ingest`` while it writes a topic and two Streaming API channels to one table.

This works like matrix.py. Events of channels have no id, so they are identified by their numbers.
Run ``python -m tests.faults.several delta DIRECTORY --kills 20``; the last line is the report as
JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.killer import DEADLINE, TOPIC, Emulator, Publisher, RunError
from tests.faults.matrix import OPTIONS, Cell, Job, cells
from tests.spark.readers import read_table

CHANNELS = ("/topic/Accounts", "/topic/Leads")

# Events per source and kill: at least two writes of 150 events of a source.
EVENTS_A_KILL = 350


@dataclass
class Report:
    """The result of a run: published events, kills, and errors found in the table."""

    format: str
    seed: int
    published: dict[str, int]
    kills: dict[str, int]
    commits_of_several: int
    """Number of batches with rows of more than one source."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Differences from the published events, by source; empty if the table is correct."""

    @property
    def ok(self) -> bool:
        return not self.wrong


class ChannelPublisher(threading.Thread):
    """Publishes numbered events to the channels, up to a goal that the caller raises."""

    def __init__(self, ready: dict[str, str]) -> None:
        super().__init__(name="channels", daemon=True)
        self._ready = ready
        self._changed = threading.Condition()
        self._goal = 0
        self._ending = False
        self.count = 0
        """Number of events published to each channel."""
        self.failure: Exception | None = None

    def raise_goal(self, goal: int) -> None:
        with self._changed:
            self._goal = goal
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self.join(DEADLINE)
        if self.failure is not None or self.is_alive():
            raise RunError(f"publishing to channels failed: {self.failure!r}")

    def run(self) -> None:
        try:
            while (size := self._next_size()) > 0:
                for channel in CHANNELS:
                    self._publish(channel, range(self.count, self.count + size))
                self.count += size
        except OSError as error:
            self.failure = error

    def _next_size(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._ending, timeout=0.02)  # delay between requests
            self._changed.wait_for(lambda: self._ending or self.count < self._goal)
            return min(20, self._goal - self.count)

    def _publish(self, channel: str, numbers: range) -> None:
        events = [{"type": "created", "sobject": {"Id": "001", "Name": str(n)}} for n in numbers]
        request = urllib.request.Request(
            f"{self._ready['http']}/admin/streaming",
            json.dumps({"channel": channel, "events": events}).encode(),
            {
                "Authorization": f"Bearer {self._ready['access_token']}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=DEADLINE):
            pass


def run(
    format_: str,
    directory: Path,
    todo: Sequence[Cell],
    *,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Perform the kills in *todo*, let ingest finish, and check the table; see `matrix.run`.

    Raises:
        RunError: A process exited in an unexpected way, or did not exit.
    """
    table, log = directory / "table", directory / "ingest.log"
    sources = ["--topic", TOPIC, *(word for name in CHANNELS for word in ("--channel", name))]
    command = ["ingest", *sources, "--to", str(table), "--format", format_, *OPTIONS]
    emulator = Emulator(directory)
    try:
        topic, channels = Publisher(emulator.ready, pace=0.02), ChannelPublisher(emulator.ready)
        topic.start()
        channels.start()
        for number, cell in enumerate(todo, start=1):
            topic.raise_goal(EVENTS_A_KILL * number)
            channels.raise_goal(EVENTS_A_KILL * number)
            victim = [cell.moment, cell.who, str(cell.nth), f"{cell.delay:.3f}", *command]
            job = Job(
                sys.executable,
                ["tests.faults.crash_victim", *victim],
                emulator.environment(),
                log,
            )
            job.wait()
            status = job.process.returncode
            killed = job.log_text().count("killing") == 1
            if not killed or status != (1 if cell.who == "jvm" else -signal.SIGKILL):
                raise RunError(f"{cell} exited with {status}:\n{job.log_tail()}")
            say(f"kill {number}/{len(todo)}: {cell}")
        for publisher in (topic, channels):
            publisher.raise_goal(EVENTS_A_KILL * (len(todo) + 1))
            publisher.finish()
        last = Job(
            sys.executable,
            ["sfpubsub", *command, "--once", "--idle-timeout", "8"],
            emulator.environment(),
            log,
        )
        say(last.wait())
        if last.process.returncode != 0:
            raise RunError(f"ingest exited with {last.process.returncode}:\n{last.log_tail()}")
    finally:
        emulator.close()
    numbers = [str(number) for number in range(channels.count)]
    published = {TOPIC: topic.ids, **dict.fromkeys(CHANNELS, numbers)}
    rows = read_table(table, format_).to_pylist()
    return Report(
        format_,
        seed,
        {name: len(events) for name, events in published.items()},
        dict(Counter(f"{cell.moment}/{cell.who}" for cell in todo)),
        sum(len(found) > 1 for found in _sources_by_batch(rows).values()),
        _differences(published, rows),
    )


def _sources_by_batch(rows: list[dict]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["batch"], set()).add(row["subscription"])
    return found


def _differences(published: dict[str, list[str]], rows: list[dict]) -> dict[str, str]:
    wrong = {}
    if [row["ingest_seq"] for row in rows] != list(range(len(rows))):
        wrong["ingest_seq"] = "is not consecutive"
    for source, expected in published.items():
        found = [_identity(row) for row in rows if row["subscription"] == source]
        if found == expected:
            continue
        counts = Counter(found)
        lost = sum(counts[event] == 0 for event in expected)
        doubled = sum(count - 1 for count in counts.values())
        wrong[source] = f"{len(found)} rows, {lost} lost, {doubled} duplicated"
    return wrong


def _identity(row: dict) -> str:
    if row["event_id"]:
        return row["event_id"]
    return json.loads(row["payload"])["sobject"]["Name"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=["parquet", "delta"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    report = run(
        options.format,
        options.directory,
        cells("topic", options.kills, random.Random(options.seed)),
        seed=options.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(json.dumps(asdict(report) | {"ok": report.ok}))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
