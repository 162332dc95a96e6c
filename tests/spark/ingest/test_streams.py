"""Several jobs side by side: threads, one failure, names of tables. No Spark."""

from __future__ import annotations

import threading

import pytest

from sfpubsub.errors import PermissionDeniedError, WriteError
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.streams import Stream, Streams
from sfpubsub.spark.raw.sources import Source
from tests.conftest import until
from tests.spark.fakes import FakeSubscription
from tests.spark.ingest.test_job import FakeWriter

A, B = Source("managed", "Orders"), Source("topic", "/data/AccountChangeEvent")


class Waking(FakeSubscription):
    """Waits for a moment where the fake clock would have passed it."""

    def next_batch(self, timeout=None):
        if not self.script:
            threading.Event().wait(0.001)
        return super().next_batch(timeout)


def stream_of(source: Source, script: list, log: list[str]) -> Stream:
    subscription = Waking(script, patience=500.0)
    job = IngestJob(subscription, FakeWriter(subscription), clock=subscription.clock)
    return Stream(source, job, subscription, subscription, lambda: log.append(source.name))


def test_a_failure_of_one_ends_the_others_in_order_and_names_its_source():
    """The others write and ack what they have; what failed says whose it was."""
    log: list[str] = []
    good = stream_of(A, [3], log)

    def wait() -> None:
        until(lambda: not good.subscription.script, "the other one's events")

    bad = stream_of(B, [2, wait, PermissionDeniedError("no access", error_code="x")], log)
    with pytest.raises(PermissionDeniedError, match="topic /data/AccountChangeEvent: no access"):
        Streams([good, bad]).run()
    assert good.subscription.log == ["write", "ack", "drain"]
    assert (good.summary.ending, good.error) == ("stopped", None)
    assert bad.summary is None
    assert bad.subscription.acked == []
    assert sorted(log) == ["/data/AccountChangeEvent", "Orders"], "both finished"


def test_what_fails_afterwards_does_not_hide_what_failed_first(caplog):
    """Closing a table after the job's own failure."""

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [PermissionDeniedError("no access to Orders")], [])
    stream.finish = finish
    with pytest.raises(PermissionDeniedError, match=r"^no access to Orders$"):
        Streams([stream]).run()
    assert "disk full" in caplog.text


def test_a_failure_to_finish_is_a_failure():
    """A commit that could not be noted ends the run with an error, not in silence."""

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [lambda: stream.job.stop()], [])
    stream.finish = finish
    with pytest.raises(WriteError, match=r"^disk full$"):
        Streams([stream]).run()
    assert stream.summary is None


def test_a_stop_reaches_every_job():
    """SIGTERM ends them all."""
    streams = [stream_of(source, [1], []) for source in (A, B)]
    jobs = Streams(streams)
    streams[0].subscription.script.append(jobs.stop)
    jobs.run()
    assert [stream.summary.ending for stream in streams] == ["stopped", "stopped"]
    assert all(not stream.is_running for stream in streams)


def test_one_that_fails_is_left_out_where_that_is_asked_for(caplog):
    """The others go on to their own end; the failure is told at once and decides the outcome."""
    log: list[str] = []
    bad = stream_of(B, [2, PermissionDeniedError("no access", error_code="x")], log)
    good = stream_of(A, [lambda: until(lambda: "continuing without it" in caplog.text), 3], log)
    good.subscription.script += [lambda: good.job.stop()]
    with pytest.raises(PermissionDeniedError, match="topic /data/AccountChangeEvent: no access"):
        Streams([good, bad], "continue").run()
    assert good.subscription.log == ["write", "ack", "drain"]
    assert (good.summary.ending, good.job.progress.received) == ("stopped", 3)
    assert bad.subscription.acked == []


def test_a_table_that_cannot_be_written_ends_all_of_them():
    """No source could go on, whatever was asked for."""
    streams = [stream_of(source, [2], []) for source in (A, B)]
    streams[0].job._writer.failure = WriteError("disk full")
    with pytest.raises(WriteError, match="disk full"):
        Streams(streams, "continue").run()
    assert streams[1].summary.ending == "stopped"
