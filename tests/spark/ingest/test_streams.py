"""Tests of running several ingest jobs concurrently, and of failures and stops, without Spark."""

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


class WaitingSubscription(FakeSubscription):
    """A fake subscription that waits for a millisecond of real time once its script is finished."""

    def next_batch(self, timeout=None):
        if not self.script:
            threading.Event().wait(0.001)
        return super().next_batch(timeout)


def stream_of(source: Source, script: list, log: list[str]) -> Stream:
    """Return a stream that follows *script*; finishing the stream adds *source*'s name to *log*."""
    subscription = WaitingSubscription(script, patience=500.0)
    job = IngestJob(subscription, FakeWriter(subscription), clock=subscription.clock)
    return Stream(source, job, subscription, subscription, lambda: log.append(source.name))


def test_failure_of_one_job_drains_the_others_and_names_its_source():
    """When a job fails, the other jobs write and ack what they have received, and the raised error
    names the failed job's source.
    """
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
    assert sorted(log) == ["/data/AccountChangeEvent", "Orders"], "a job was not finished"


def test_failure_to_finish_does_not_hide_the_jobs_failure(caplog):
    """If a job fails and its stream cannot be finished either, the job's error is raised and the
    second error is logged.
    """

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [PermissionDeniedError("no access to Orders")], [])
    stream.finish = finish
    with pytest.raises(PermissionDeniedError, match=r"^no access to Orders$"):
        Streams([stream]).run()
    assert "disk full" in caplog.text


def test_failure_to_finish_fails_the_run():
    """If finishing a successful job fails, for example because a commit cannot be recorded, the run
    raises the error and the job has no summary.
    """

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [lambda: stream.job.stop()], [])
    stream.finish = finish
    with pytest.raises(WriteError, match=r"^disk full$"):
        Streams([stream]).run()
    assert stream.summary is None


def test_stop_ends_every_job():
    """A stop, as requested by SIGTERM, ends all jobs."""
    streams = [stream_of(source, [1], []) for source in (A, B)]
    jobs = Streams(streams)
    streams[0].subscription.script.append(jobs.stop)
    jobs.run()
    assert [stream.summary.ending for stream in streams] == ["stopped", "stopped"]
    assert all(not stream.is_running for stream in streams)


def test_policy_continue_keeps_the_other_jobs_running(caplog):
    """With the policy `continue`, a job's failure is logged at once, but raised only after the
    other jobs have ended on their own.
    """
    log: list[str] = []
    bad = stream_of(B, [2, PermissionDeniedError("no access", error_code="x")], log)
    good = stream_of(A, [lambda: until(lambda: "continuing without it" in caplog.text), 3], log)
    good.subscription.script += [lambda: good.job.stop()]
    with pytest.raises(PermissionDeniedError, match="topic /data/AccountChangeEvent: no access"):
        Streams([good, bad], "continue").run()
    assert good.subscription.log == ["write", "ack", "drain"]
    assert (good.summary.ending, good.job.progress.received) == ("stopped", 3)
    assert bad.subscription.acked == []


def test_failed_write_ends_all_jobs():
    """If the table cannot be written, all jobs end even with the policy `continue`, because they
    share the table.
    """
    streams = [stream_of(source, [2], []) for source in (A, B)]
    streams[0].job._writer.failure = WriteError("disk full")
    with pytest.raises(WriteError, match="disk full"):
        Streams(streams, "continue").run()
    assert streams[1].summary.ending == "stopped"
