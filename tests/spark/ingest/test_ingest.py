"""What `Ingest` promises to a program: what it closes, how it is stopped, and what it raises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sfpubsub import PubSubClient
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError, LocalProtocolError
from sfpubsub.spark.ingest.ingest import Ingest
from sfpubsub.spark.ingest.job import Writer
from sfpubsub.spark.ingest.progress import Progress
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.spark.ingest.streams import SourceSubscription
from sfpubsub.spark.raw.sources import Source
from tests.cli.test_cli import environment, point_at
from tests.client.test_managed import NAME, TOPIC, committed, orders
from tests.conftest import PATIENCE, until

ORDERS = Source("topic", TOPIC)
MANAGED = Source("managed", NAME)
QUICK = IngestSettings(batch_seconds=0.1)


def rows_of(table: Path) -> list[str]:
    """Return the order numbers in a Parquet table, in order of arrival."""
    rows = ds.dataset(table, format="parquet").to_table().sort_by("ingest_seq").to_pylist()
    return [row["event_id"] for row in rows]


@pytest.fixture
def emulator(run_emulator, monkeypatch) -> Any:
    """An emulator at which the environment points."""
    found = run_emulator(settings=Settings(keepalive_s=0.3))
    point_at(found, monkeypatch)
    return found


def test_a_stop_from_another_thread_drains_and_leaves_open_what_is_the_callers(
    spark: SparkSession, emulator, connect: Callable[..., PubSubClient], tmp_path: Path
):
    """The events received so far are written and committed, and the result says so. The caller's
    session and client can be used afterwards; the subscription is closed.
    """
    published = emulator.publish(TOPIC, orders(3))
    client = connect(emulator)
    results: list[Any] = []
    with Ingest([MANAGED], to=tmp_path / "t", spark=spark, client=client) as job:
        thread = threading.Thread(target=lambda: results.append(job.run()))
        thread.start()
        until(lambda: job.health()[MANAGED].delivered == 3, "the events")
        job.stop()
        thread.join(PATIENCE)
    (summary,) = results[0].values()
    assert (summary.ending, summary.progress.rows) == ("stopped", 3)
    assert rows_of(tmp_path / "t") == [event.event_id for event in published]
    assert committed(emulator) == published[-1].replay_id
    assert job.health()[MANAGED].state == "closed"
    assert spark.range(2).count() == 2
    assert client.get_topic(TOPIC).topic_name == TOPIC


def test_a_job_that_does_not_run_opens_no_stream(
    spark: SparkSession, emulator, connect: Callable[..., PubSubClient], tmp_path: Path
):
    """A job that is left without a run closes its subscription and its table, whose lease the next
    one gets. One that is stopped before it is open creates no table. One can run only in its block.
    """
    client = connect(emulator)
    for _ in range(2):
        with Ingest([ORDERS], to=tmp_path / "t", spark=spark, client=client):
            pass
        assert client.kept[-1].closed
    stopped = Ingest([ORDERS], to=tmp_path / "other", spark=spark)
    stopped.stop()
    with stopped:
        assert stopped.run() == {}
    assert not (tmp_path / "other").exists()
    with pytest.raises(LocalProtocolError, match="with block"):
        Ingest([ORDERS], to=tmp_path / "t", spark=spark).run()


def test_ctrl_c_drains_closes_everything_and_the_next_run_resumes(
    spark: SparkSession, emulator, tmp_path: Path, monkeypatch
):
    """KeyboardInterrupt in `run` is raised once the received events are written and committed, and
    what the job has opened is closed.
    """
    closed = closes(monkeypatch)
    published = emulator.publish(TOPIC, orders(3))
    main = threading.main_thread().ident

    def interrupt(_source: Source, progress: Progress) -> None:
        if progress.batches == 1:
            emulator.publish(TOPIC, orders(2, 3))
            signal.pthread_kill(main, signal.SIGINT)

    once = IngestSettings(batch_events=3, batch_seconds=0.1, until_caught_up=True, idle_timeout=30)
    with (
        pytest.raises(KeyboardInterrupt),
        Ingest([MANAGED], to=tmp_path / "t", settings=QUICK, on_progress=interrupt) as job,
    ):
        job.run()
    assert len(closed) == 1
    assert not any(thread.name.startswith("ingest") for thread in threading.enumerate())
    assert rows_of(tmp_path / "t")[:3] == [event.event_id for event in published]
    with Ingest([MANAGED], to=tmp_path / "t", settings=once, spark=spark) as job:
        job.run()
    assert len(rows_of(tmp_path / "t")) == len(set(rows_of(tmp_path / "t"))) == 5
    assert len(closed) == 2


def test_a_second_ctrl_c_ends_it_without_draining(
    spark: SparkSession, emulator, tmp_path: Path, monkeypatch
):
    """It ends although a callback hangs, and closes everything as soon as the callback returns."""
    closed = closes(monkeypatch)
    emulator.publish(TOPIC, orders(3))
    hangs, main = threading.Event(), threading.main_thread().ident
    monkeypatch.setattr("sfpubsub.spark.runtime.threaded._ABORT_TIMEOUT", 0.1)

    def hang(_source: Source, _progress: object) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        until(lambda: job._is_stopping, "the first")
        signal.pthread_kill(main, signal.SIGINT)
        hangs.wait(PATIENCE)

    with (
        pytest.raises(KeyboardInterrupt),
        Ingest([MANAGED], to=tmp_path / "t", settings=QUICK, on_progress=hang) as job,
    ):
        job.run()
    assert not job._has_ended
    hangs.set()
    until(lambda: job._has_ended, "the end")
    assert len(closed) == 1
    with Ingest([MANAGED], to=tmp_path / "t", spark=spark):
        pass  # the lease is free


def closes(monkeypatch) -> list[PubSubClient]:
    """Return a list to which each client is added when it is closed."""
    closed: list[PubSubClient] = []
    close = PubSubClient.close
    monkeypatch.setattr(PubSubClient, "close", lambda each: closed.append(each) or close(each))
    return closed


PROGRAM = """
import sys
from pyspark import SparkContext
from sfpubsub.spark import Ingest, IngestSettings, Source

settings = IngestSettings(until_caught_up=True, idle_timeout=30)
with Ingest([Source("topic", sys.argv[1])], to=sys.argv[2], settings=settings) as ingest:
    assert not ingest.spark.sparkContext._jsc.sc().isStopped()
    (summary,) = ingest.run().values()
print(summary.progress.rows, SparkContext._active_spark_context)
"""


@pytest.mark.spark
def test_a_program_without_a_session_gets_one_that_is_stopped(run_emulator, tmp_path: Path):
    """Spark is started, and stopped when the job has run."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.3))
    emulator.publish(TOPIC, orders(3))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, TOPIC, str(tmp_path / "t")],
        env={**os.environ, **environment(emulator)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "3 None\n"), done.stderr


def test_a_job_can_be_watched(spark: SparkSession, emulator, tmp_path: Path):
    """`wrap` replaces what a source's job uses, and the callbacks are called for each source."""
    emulator.publish(TOPIC, orders(3))
    emulator.publish("/data/AccountChangeEvent", [{"Name": "Acme"}])
    log: list[tuple[str, str]] = []

    class Writes:
        def __init__(self, name: str, writer: Any) -> None:
            self._name, self._writer = name, writer

        def write_collected(self, received: Any) -> Any:
            log.append((self._name, f"write {len(received)}"))
            return self._writer.write_collected(received)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._writer, name)

    def wrap(
        source: Source, subscription: SourceSubscription, writer: Writer
    ) -> tuple[SourceSubscription, Writer]:
        return subscription, Writes(source.name, writer)

    changes = Source("topic", "/data/AccountChangeEvent")
    with Ingest(
        [ORDERS, changes],
        to=tmp_path / "t",
        settings=IngestSettings(max_events=1, batch_seconds=0.1),
        spark=spark,
        on_progress=lambda source, progress: log.append((source.name, f"{progress.rows} rows")),
        on_acked=lambda source, batch, count: log.append((source.name, f"{count} acked")),
        wrap=wrap,
    ) as job:
        ended = job.run()
    assert [each.ending for each in ended.values()] == ["max-events"] * 2
    for source in (ORDERS, changes):
        steps = [step for name, step in log if name == source.name]
        assert steps == ["write 1", "1 rows", "1 acked"]


def test_an_invalid_job_is_refused_before_spark_starts(tmp_path: Path, emulator, monkeypatch):
    """So is one with a client that was opened before Spark, which could not survive the fork."""
    with pytest.raises(ConfigurationError, match="at least one"):
        Ingest([], to=tmp_path / "t")
    (tmp_path / "orders" / "_table.json").parent.mkdir()
    (tmp_path / "orders" / "_table.json").touch()
    with pytest.raises(ConfigurationError, match="inside the table"):
        Ingest([ORDERS], to=tmp_path / "orders" / "a")
    monkeypatch.setattr("sfpubsub.spark.ingest.service.is_java_running", lambda: False)
    with (
        PubSubClient.from_env() as client,
        pytest.raises(ConfigurationError, match="start Spark before you open a client"),
    ):
        Ingest([ORDERS], to=tmp_path / "t", client=client)
    assert {path.name for path in tmp_path.iterdir()} == {"emulator", "orders"}
