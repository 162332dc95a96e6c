"""Kills ``sfpubsub ingest`` again and again while events are published, and counts what it wrote.

Everything is looked at from outside: processes, directories, the emulator's health page, and at the
end the table, read by pyarrow. Publishes with the generated stub, not with the client under test.
``python -m tests.faults.killer --help`` runs it by hand; `test_kill_ingest.py` runs a short one.
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

# Seconds. What a step may take on a busy machine before the run counts as hanging.
DEADLINE = 300.0

# Seconds between two looks from outside; a staging directory lives for some 100 ms.
GLANCE = 0.002

# Seconds of the longest life of a process that is killed at random: twice what it needs to start
# on two busy cores, so that about half of those kills meet a job at work.
LONGEST_LIFE = 16.0

# Small writes, so that a kill meets many borders between them.
INGEST_OPTIONS = ("--batch-events", "200", "--batch-seconds", "0.3")


class RunError(Exception):
    """The run did not come to its end, or the table is wrong."""


@dataclass(frozen=True)
class Kill:
    """One SIGKILL."""

    moment: str
    """``staging``, ``batch``, ``commit``, ``delivery``, or ``random``."""
    after: float
    """Seconds since the process was started."""
    batches: int
    """Batches in the table at that time."""
    with_jvm: bool
    """Whether the JVM was killed in the same instant, or left an orphan."""


@dataclass
class Report:
    """What was published, what was done, and what the table says."""

    source: str
    seed: int
    published: int
    rows: int
    lost: int
    duplicated: int
    strangers: int
    in_order: bool
    redelivered: int
    seconds: float
    kills: list[Kill] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return (self.lost, self.duplicated, self.strangers, self.in_order) == (0, 0, 0, True)


class Emulator:
    """The emulator as a process, and what its health page counts."""

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
        """Settings with which a client finds it."""
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
    """Publishes up to a goal that is raised from time to time, at a steady pace.

    Args:
        ready: The emulator's ready line.
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
        """Wait until the goal is reached."""
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
            # Without a time: the goal may be raised late, and a daemon's wait holds nobody up.
            self._changed.wait_for(lambda: self._ending or len(self.ids) < self._goal)
            return min(50, self._goal - len(self.ids))


def _payload(schema: Any) -> bytes:
    """An event of now, with a value of the schema's own kind in every field."""
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
    """One process of ``sfpubsub ingest``, in a session of its own."""

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
                    "SFPUBSUB_STATE_DIR": str(table.parent / "state"),  # not the user's own
                    **java.environment(),  # the figures of a killed job are of no interest
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
                f"ingest ended by itself with {self.process.returncode}:\n{self.log_tail()}"
            )

    def kill(self, with_jvm: bool) -> None:
        if with_jvm:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdout.close()

    def finish(self) -> dict[str, Any]:
        """Wait for the process's own end and return its summary."""
        try:
            output, _ = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired as error:
            self.kill(with_jvm=True)
            raise RunError(f"ingest did not end:\n{self.log_tail()}") from error
        if self.process.returncode != 0:
            raise RunError(f"ingest ended with {self.process.returncode}:\n{self.log_tail()}")
        return json.loads(output.splitlines()[-1])

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-15:])


def batches_in(table: Path) -> set[str]:
    return {str(path) for path in table.glob("ingest_date=*/batch=*")}


def _marks(moment: str, table: Path, emulator: Emulator) -> Callable[[], set[str]]:
    """Return what to look at from outside: a set that grows with each step of that kind."""
    if moment == "staging":
        beside = table.parent / f".{table.name}.sfpubsub"
        return lambda: {path.name for path in beside.glob("_staging/*")}
    if moment == "batch":
        return lambda: batches_in(table)
    if moment == "commit":
        return lambda: {str(emulator.counted("managed", "commits_accepted"))}
    return lambda: {str(emulator.counted("topic", "delivered"))}


def _wait_for_progress(ingest: Ingest, marks: Callable[[], set[str]], steps: int) -> None:
    """Return as soon as *steps* marks have been seen that were not there before."""
    before = marks()
    seen: set[str] = set()
    deadline = time.monotonic() + DEADLINE
    while len(seen) < steps:
        ingest.check_running()
        if time.monotonic() > deadline:
            raise RunError(f"no progress for {DEADLINE:.0f} s:\n{ingest.log_tail()}")
        seen |= marks() - before
        time.sleep(GLANCE)


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
    """Publish *events*, kill ingest *kills* times, let it finish, and count.

    Args:
        source: ``managed`` or ``topic``.
        directory: An empty one; the table is in ``table``.
        kills: Half of them after progress seen from outside, half at random times.
        events: Events to publish, spread over the whole run.
        seed: Of the random times.
        say: Is told each kill.

    Raises:
        RunError: Something other than a kill ended a process, or nothing moves.
    """
    rng = random.Random(seed)
    table = directory / "table"
    began = time.monotonic()
    seen = ("staging", "batch", "commit" if source == "managed" else "delivery")
    moments = [seen[n // 2 % 3] if n % 2 == 0 else "random" for n in range(kills)]
    # Batches that the new events of one round are sure to make, at 200 and up to 99 more a batch.
    most = max(1, events // (kills + 1) // 300)
    done: list[Kill] = []
    with _world(directory) as (emulator, publisher):
        for number, moment in enumerate(moments):
            publisher.raise_goal(events * (number + 1) // (kills + 1))
            ingest = Ingest(table, source, emulator.environment())
            if moment == "random":
                _stay(ingest, rng.uniform(0.2, LONGEST_LIFE))
            else:
                steps = rng.randint(1, most if moment in {"staging", "batch"} else 2)
                _wait_for_progress(ingest, _marks(moment, table, emulator), steps)
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


def _stay(ingest: Ingest, seconds: float) -> None:
    """Let the process live for a random time; it may be anywhere when that is over."""
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
    # Numbers without a hole, and in the order of publishing: one publisher, one topic.
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
