"""Kills ``sfpubsub ingest`` repeatedly while events are published, and counts the written rows.

Everything is observed from outside: processes, directories, the emulator's health page, and at the
end the table, read by pyarrow. Events are published with the generated gRPC stub, not with the
client under test. See ``python -m tests.faults.killer --help``; `test_kill_ingest.py` does a short
run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import grpc
import pyarrow.dataset as ds

from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc
from tests import java

TOPIC = "/event/Order_Event__e"
MANAGED = "My_Managed_Subscription"

# Seconds after which a run counts as hanging if nothing happens, even on a busy machine.
DEADLINE = 300.0

# Seconds between two observations; a staging directory exists for about 100 ms.
POLL_S = 0.002

# Longest lifetime of a process that is killed at a random time, in seconds: twice its start time on
# two busy cores, so that about half of these kills hit a running job.
LONGEST_LIFE = 16.0

# Small batches, so that kills hit many boundaries between them.
INGEST_OPTIONS = ("--batch-events", "200", "--batch-seconds", "0.3")


class RunError(Exception):
    """The run failed: a process ended unexpectedly, or nothing happened for too long."""


@dataclass(frozen=True)
class Kill:
    """Records one SIGKILL."""

    moment: str
    """What triggered it: ``staging``, ``batch``, ``commit``, ``delivery`` or ``random``."""
    after: float
    """Seconds from the start of the process to the kill."""
    batches: int
    """Number of batches in the table at the time of the kill."""
    with_jvm: bool
    """Whether the JVM was killed as well, instead of being orphaned."""


@dataclass
class Report:
    """The result of a run: published events, kills, and the rows of the table."""

    source: str
    seed: int
    published: int
    rows: int
    lost: int
    duplicated: int
    strangers: int
    """Number of event ids in the table that were not published."""
    in_order: bool
    redelivered: int
    seconds: float
    kills: list[Kill] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return (self.lost, self.duplicated, self.strangers, self.in_order) == (0, 0, 0, True)


class Emulator:
    """An emulator process, with access to the counters of its health page."""

    def __init__(self, directory: Path) -> None:
        self._errors = (directory / "emulator.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sfpubsub", "emulator", "--grpc-port", "0", "--http-port", "0",
             "--data-dir", str(directory / "emulator")],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        if not line:
            log = (directory / "emulator.log").read_text()
            raise RunError(f"the emulator did not start: {log}")
        self.ready: dict[str, str] = json.loads(line)

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.ready['http']}/health", timeout=60) as answer:
            return json.load(answer)

    def counted(self, source: str, name: str) -> int:
        health = self.health()
        counts = (
            health["managed_subscriptions"][MANAGED]
            if source == "managed"
            else health["topics"][TOPIC]
        )
        return int(counts[name])

    def environment(self) -> dict[str, str]:
        """Return environment variables that point a client at this emulator."""
        return {
            "SFPUBSUB_ENDPOINT": self.ready["grpc"],
            "SFPUBSUB_INSECURE": "1",
            "SFPUBSUB_AUTH": "token",
            "SFPUBSUB_ACCESS_TOKEN": self.ready["access_token"],
            "SFPUBSUB_INSTANCE_URL": self.ready["instance_url"],
            "SFPUBSUB_TENANT_ID": self.ready["tenant_id"],
        }

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self._errors.close()


class Publisher(threading.Thread):
    """Publishes events at a steady pace, up to a goal that the caller raises.

    Args:
        ready: The emulator's ready line, parsed as JSON.
        pace: Seconds between two requests of up to 50 events.
    """

    def __init__(self, ready: dict[str, str], pace: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self._ready = ready
        self._pace = pace
        self._changed = threading.Condition()
        self._goal = 0
        self._ending = False
        self.ids: list[str] = []
        self.failure: Exception | None = None

    def raise_goal(self, goal: int) -> None:
        with self._changed:
            self._goal = max(goal, self._goal)
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until the goal is reached, then stop the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self.join(DEADLINE)
        if self.failure is not None or self.is_alive():
            raise RunError(f"publishing failed: {self.failure!r}")

    def run(self) -> None:
        try:
            with grpc.insecure_channel(self._ready["grpc"]) as channel:
                self._publish_all(pb_grpc.PubSubStub(channel))
        except grpc.RpcError as error:
            self.failure = error

    def _publish_all(self, stub: pb_grpc.PubSubStub) -> None:
        metadata = [
            ("accesstoken", self._ready["access_token"]),
            ("instanceurl", self._ready["instance_url"]),
            ("tenantid", self._ready["tenant_id"]),
        ]
        info = stub.GetTopic(pb.TopicRequest(topic_name=TOPIC), metadata=metadata)
        answer = stub.GetSchema(pb.SchemaRequest(schema_id=info.schema_id), metadata=metadata)
        schema = fastavro.parse_schema(json.loads(answer.schema_json))
        while (size := self._next_size()) > 0:
            ids = [str(uuid.uuid4()) for _ in range(size)]
            events = [
                pb.ProducerEvent(id=i, schema_id=info.schema_id, payload=_payload(schema))
                for i in ids
            ]
            request = pb.PublishRequest(topic_name=TOPIC, events=events)
            results = stub.Publish(request, metadata=metadata, timeout=DEADLINE).results
            self.ids += [result.correlation_key for result in results]

    def _next_size(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._ending, timeout=self._pace)
            # No timeout: the goal may be raised late, and a daemon thread does not block the exit.
            self._changed.wait_for(lambda: self._ending or len(self.ids) < self._goal)
            return min(50, self._goal - len(self.ids))


def _payload(schema: Any) -> bytes:
    """Return an encoded event with the current time, and null or a simple value in each field."""
    value = {}
    for item in schema["fields"]:
        kinds = item["type"] if isinstance(item["type"], list) else [item["type"]]
        if item["name"] == "CreatedDate":
            value[item["name"]] = round(time.time() * 1000)
        elif "null" in kinds:
            value[item["name"]] = None
        else:
            value[item["name"]] = {"string": "x", "long": 1, "int": 1, "double": 1.0}.get(kinds[0])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


class Ingest:
    """A process that runs ``sfpubsub ingest`` in a session of its own."""

    def __init__(self, table: Path, source: str, environment: dict[str, str], *more: str) -> None:
        self.log = table.parent / "ingest.log"
        chosen = ["--managed", MANAGED] if source == "managed" else ["--topic", TOPIC]
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sfpubsub", "ingest", *chosen, "--to", str(table),
                 *INGEST_OPTIONS, *more],
                env={
                    **os.environ,
                    **environment,
                    "SFPUBSUB_STATE_DIR": str(table.parent / "state"),  # not the user's directory
                    **java.environment(),  # faster start; timing does not matter here
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        self.started = time.monotonic()

    def check_running(self) -> None:
        if self.process.poll() is not None:
            raise RunError(
                f"ingest exited unexpectedly with {self.process.returncode}:\n{self.log_tail()}"
            )

    def kill(self, with_jvm: bool) -> None:
        if with_jvm:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdout.close()

    def finish(self) -> dict[str, Any]:
        """Wait until the process exits by itself, and return its summary."""
        try:
            output, _ = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired as error:
            self.kill(with_jvm=True)
            raise RunError(f"ingest did not exit in time:\n{self.log_tail()}") from error
        if self.process.returncode != 0:
            raise RunError(f"ingest exited with {self.process.returncode}:\n{self.log_tail()}")
        return json.loads(output.splitlines()[-1])

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-15:])


def batches_in(table: Path) -> set[str]:
    return {str(path) for path in table.glob("ingest_date=*/batch=*")}


def _progress_marks(moment: str, table: Path, emulator: Emulator) -> Callable[[], set[str]]:
    """Return a function that returns the current marks (names or counts) of ingest's progress.

    Each step of the kind *moment*, such as "batch" or "commit", adds or changes a mark.
    """
    if moment == "staging":
        beside = table.parent / f".{table.name}.sfpubsub"
        return lambda: {path.name for path in beside.glob("_staging/*")}
    if moment == "batch":
        return lambda: batches_in(table)
    if moment == "commit":
        return lambda: {str(emulator.counted("managed", "commits_accepted"))}
    return lambda: {str(emulator.counted("topic", "delivered"))}


def _wait_for_progress(ingest: Ingest, marks: Callable[[], set[str]], steps: int) -> None:
    """Wait until *marks* has returned *steps* marks that it did not return at first.

    Raise RunError after `DEADLINE` seconds, or if ingest exits.
    """
    before = marks()
    seen: set[str] = set()
    deadline = time.monotonic() + DEADLINE
    while len(seen) < steps:
        ingest.check_running()
        if time.monotonic() > deadline:
            raise RunError(f"no progress for {DEADLINE:.0f} s:\n{ingest.log_tail()}")
        seen |= marks() - before
        time.sleep(POLL_S)


@contextmanager
def _world(directory: Path) -> Iterator[tuple[Emulator, Publisher]]:
    emulator = Emulator(directory)
    try:
        publisher = Publisher(emulator.ready, pace=0.02)
        publisher.start()
        yield emulator, publisher
    finally:
        emulator.close()


def run(
    source: str,
    directory: Path,
    *,
    kills: int,
    events: int = 20_000,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Publish *events*, kill ingest *kills* times, let it finish, and count the rows.

    Args:
        source: ``managed`` or ``topic``.
        directory: An empty directory; the table is created in ``table``.
        kills: Number of kills: half of them after visible progress, half at random times.
        events: Number of events to publish, spread over the whole run.
        seed: Seed of the random times.
        say: Called with a description of each kill.

    Raises:
        RunError: A process exited without being killed, or nothing happened for too long.
    """
    rng = random.Random(seed)
    table = directory / "table"
    began = time.monotonic()
    seen = ("staging", "batch", "commit" if source == "managed" else "delivery")
    moments = [seen[n // 2 % 3] if n % 2 == 0 else "random" for n in range(kills)]
    # Minimum number of batches per round, with 200 to 299 events per batch.
    most = max(1, events // (kills + 1) // 300)
    done: list[Kill] = []
    with _world(directory) as (emulator, publisher):
        for number, moment in enumerate(moments):
            publisher.raise_goal(events * (number + 1) // (kills + 1))
            ingest = Ingest(table, source, emulator.environment())
            if moment == "random":
                _run_for(ingest, rng.uniform(0.2, LONGEST_LIFE))
            else:
                steps = rng.randint(1, most if moment in {"staging", "batch"} else 2)
                _wait_for_progress(ingest, _progress_marks(moment, table, emulator), steps)
            with_jvm = number % 3 == 2
            ingest.kill(with_jvm)
            after = time.monotonic() - ingest.started
            done.append(Kill(moment, round(after, 2), len(batches_in(table)), with_jvm))
            say(f"kill {number + 1}/{kills}: {done[-1]}")
        publisher.raise_goal(events)
        last = Ingest(table, source, emulator.environment(), "--once", "--idle-timeout", "5")
        publisher.finish()
        say(f"last run: {last.finish()}")
        redelivered = emulator.counted(source, "redelivered")
    return _count(table, publisher.ids, Report(
        source=source, seed=seed, published=len(publisher.ids), rows=0, lost=0, duplicated=0,
        strangers=0, in_order=False, redelivered=redelivered, kills=done,
        seconds=round(time.monotonic() - began, 1),
    ))  # fmt: skip


def _run_for(ingest: Ingest, seconds: float) -> None:
    """Let the process run for *seconds*; raise an error if it exits before that."""
    try:
        ingest.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    ingest.check_running()


def _count(table: Path, published: list[str], report: Report) -> Report:
    rows = ds.dataset(table, format="parquet").to_table(columns=["event_id", "ingest_seq"])
    found = Counter(rows["event_id"].to_pylist())
    report.rows = len(rows)
    report.lost = sum(found[event_id] == 0 for event_id in published)
    report.duplicated = sum(count - 1 for count in found.values())
    report.strangers = len(set(found) - set(published))
    # Consecutive numbers in the order of publication: there is one publisher and one topic.
    ordered = rows.sort_by("ingest_seq")
    report.in_order = (
        ordered["ingest_seq"].to_pylist() == list(range(len(rows)))
        and ordered["event_id"].to_pylist() == published
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", choices=["managed", "topic"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    report = run(
        options.source,
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
