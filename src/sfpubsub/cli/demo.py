"""``sfpubsub demo``: run an ingest job against the emulator, kill it midway, and count events.

It demonstrates the exactly-once guarantee: the emulator, the publisher and the job are separate
processes, the job is killed with SIGKILL, and the rows are counted in the table's files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from sfpubsub.errors import ConfigurationError, MissingExtraError, SfPubSubError

TOPIC = "/event/Order_Event__e"
SUBSCRIPTION = "My_Managed_Subscription"

# Number of events to publish: enough for many batches, but processed within seconds.
EVENTS = 6000
# Rows per batch: when the job is killed, some batches are written and more remain.
BATCH = 500
# Timeout for each step, in seconds; starting Spark on a busy machine takes the longest.
PATIENCE = 60.0
# Seconds without an event after which the second run ends.
IDLE = 3.0

Table = dict[str, int]


@click.command()
@click.option("--events", type=click.IntRange(min=2 * BATCH), default=EVENTS, show_default=True)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory for the emulator's data and the table.  [default: a temporary directory]",
)
def demo(events: int, directory: Path | None) -> None:
    """Run an ingest job against the emulator: publish, ingest, kill -9, resume, count.

    Prints a table of counts at the end. The exit code is 0 only if no event is lost or duplicated.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the demo", "spark,emulator") from error
    with tempfile.TemporaryDirectory(prefix="sfpubsub-demo-") as temporary:
        home = directory or Path(temporary)
        if (home / "orders").exists():
            raise ConfigurationError(
                f"{home} already contains a directory orders, for example from an earlier demo: "
                f"use another --dir"
            )
        counts = _Demo(home.absolute(), events).run()
    _show(counts)
    if counts["lost"] or counts["duplicated"] or counts["written"] != counts["published"]:
        click.get_current_context().exit(1)


def _say(text: str) -> None:
    click.secho(f"» {text}", err=True, bold=True)


def _show(counts: Table) -> None:
    meaning = {
        "published": "events accepted by the service",
        "delivered": "events that the service sent in both runs",
        "redelivered": "delivered events that were sent again after the kill",
        "written": "rows in the table",
        "lost": "published, but not in the table",
        "duplicated": "in the table more than once",
    }
    width = max(map(len, meaning))
    for name, text in meaning.items():
        click.echo(f"{name:<{width}}  {counts[name]:>7}   {text}")


class _Demo:
    def __init__(self, home: Path, events: int) -> None:
        self._data = home / "emulator"
        self._table = home / "orders"
        self._events = events
        self._env = dict(os.environ)
        self._http = ""
        self._published: list[str] = []

    def run(self) -> Table:
        with self._emulator():
            half = self._events // 2
            _say(f"publishing {half} events to {TOPIC}")
            self._publish(half)
            _say(f"first run: ingest events from {SUBSCRIPTION} into {self._table}")
            with self._ingest() as job:
                _wait_for(lambda: self._batches() > 0, job, "the first batch in the table")
                _say(f"kill -9 {job.pid}, with {self._batches()} batches in the table")
                job.kill()
                job.wait()
            _say(f"publishing {self._events - half} more events while no job is running")
            self._publish(self._events - half)
            _say("second run: start the same command again")
            with self._ingest("--once", "--idle-timeout", str(IDLE)) as job:
                if job.wait(PATIENCE) != 0:
                    raise SfPubSubError(
                        f"the second run of the job ended with exit code {job.returncode}; "
                        f"see its output above"
                    )
            _say("counting the rows in the table's files")
            return self._count()

    @contextmanager
    def _emulator(self) -> Iterator[None]:
        _say("starting the emulator in a separate process")
        command = ["emulator", "--grpc-port", "0", "--http-port", "0", "--data-dir", self._data]
        with _running(command, self._env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            line = process.stdout.readline()
            if not line:
                raise SfPubSubError("the emulator did not start; see its output above")
            ready = json.loads(line)
            self._http = ready["http"]
            self._env.update(
                SFPUBSUB_ENDPOINT=ready["grpc"],
                SFPUBSUB_INSECURE="1",
                SFPUBSUB_AUTH="token",
                SFPUBSUB_ACCESS_TOKEN=ready["access_token"],
                SFPUBSUB_INSTANCE_URL=ready["instance_url"],
                SFPUBSUB_TENANT_ID=ready["tenant_id"],
                # Keep the status files in the demo's directory, which may be temporary.
                SFPUBSUB_STATE_DIR=str(self._data.parent / "state"),
            )
            click.echo(f"  gRPC {ready['grpc']}, web page {self._http}", err=True)
            yield

    def _publish(self, count: int) -> None:
        first = len(self._published)
        now = time.time_ns() // 1_000_000
        lines = "".join(
            json.dumps(
                {
                    "CreatedDate": now,
                    "CreatedById": "005000000000001AAA",
                    "Order_Number__c": f"ORD-{first + index:06}",
                    "Amount__c": float(index % 500),
                }
            )
            + "\n"
            for index in range(count)
        )
        done = subprocess.run(  # noqa: S603  # our own command, fixed arguments
            [sys.executable, "-m", "sfpubsub", "publish", TOPIC],
            input=lines,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if done.returncode != 0:
            raise SfPubSubError(
                f"publishing ended with exit code {done.returncode}; see its output above"
            )
        self._published += [json.loads(line)["event_id"] for line in done.stdout.splitlines()]

    @contextmanager
    def _ingest(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        command = ["ingest", "--managed", SUBSCRIPTION, "--to", self._table]
        command += ["--batch-events", str(BATCH), "--batch-seconds", "1", *options]
        with _running(command, self._env, stdout=subprocess.DEVNULL) as process:
            yield process

    def _batches(self) -> int:
        return sum(1 for _ in self._table.glob("ingest_*=*/batch=*"))

    def _count(self) -> Table:
        import pyarrow.parquet as pq

        files = sorted(self._table.glob("ingest_date=*/batch=*/*.parquet"))
        rows: Counter[str] = Counter()
        for file in files:
            rows.update(pq.ParquetFile(file).read(["event_id"]).column("event_id").to_pylist())
        with urllib.request.urlopen(f"{self._http}/health", timeout=PATIENCE) as answer:  # noqa: S310
            service = json.load(answer)["managed_subscriptions"][SUBSCRIPTION]
        published = set(self._published)
        return {
            "published": len(published),
            "delivered": service["delivered"],
            "redelivered": service["redelivered"],
            "written": sum(rows.values()),
            "lost": len(published - rows.keys()),
            "duplicated": sum(count - 1 for count in rows.values()),
        }


@contextmanager
def _running(
    arguments: list[Any], env: dict[str, str], *, stdout: int
) -> Iterator[subprocess.Popen[str]]:
    """Run an sfpubsub command and print its stderr; stop the command when the block ends."""
    process = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-m", "sfpubsub", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
    )
    name = str(arguments[0])
    echo = threading.Thread(target=_echo, args=(process, name), name=f"echo {name}", daemon=True)
    echo.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # A killed job's orphaned JVM keeps the pipe open for a moment; its output does not matter.
        echo.join(1.0)
        if process.stdout is not None:
            process.stdout.close()


def _echo(process: subprocess.Popen[str], name: str) -> None:
    assert process.stderr is not None  # noqa: S101  # it is a pipe
    with process.stderr as lines:
        for line in lines:
            click.echo(f"  {name}: {line.rstrip()}", err=True)


def _wait_for(happened: Callable[[], bool], job: subprocess.Popen[str], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if job.poll() is not None:
            _give_up(
                f"the job ended with exit code {job.returncode} before {what} appeared; "
                f"see its output above"
            )
        if time.monotonic() > deadline:
            _give_up(f"{what} did not appear within {PATIENCE:g} s; see the job's output above")
        time.sleep(0.02)  # polling, because another process writes the table


def _give_up(reason: str) -> NoReturn:
    raise SfPubSubError(reason)
