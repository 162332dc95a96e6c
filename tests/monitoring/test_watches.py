"""Tests of the monitoring of ingest jobs: counts, write durations, and stuck writes."""

from __future__ import annotations

import threading

from sfpubsub.cli.write_watch import WriteWatch
from sfpubsub.monitoring.metrics import OPERATION, Metric
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.progress import Progress
from sfpubsub.spark.raw.sources import Source

from ..conftest import PATIENCE, until
from ..spark.fakes import FakeSubscription
from ..spark.ingest.test_job import FakeWriter

NAME = "My_Sub"


def test_stuck_write_fails_health_until_it_ends():
    """A write that has lasted over 600 s is reported as stuck.

    Once it ends, its duration and result are recorded.
    """
    subscription = FakeSubscription([3])
    writer = FakeWriter(subscription)
    writer.hold = threading.Event()
    monitor = Monitor("test")
    watch = WriteWatch(monitor, Source("managed", NAME))
    job = IngestJob(
        subscription, writer, batch_events=3, on_progress=watch.wrote, clock=subscription.clock
    )
    watch.follow(job)
    assert job.writing_seconds() is None
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.writing_seconds() is not None)
        subscription.clock.now += 601
        (problem,) = monitor.problems()
        assert problem.situation == "stuck"
        assert problem.reason.startswith(f"write of {NAME}: running for 0:10:")
        samples = monitor.registry.collect()
        assert [sample.value for sample in samples if sample.metric is Metric.FAILING].count(1) == 1
    finally:
        writer.hold.set()
        job.stop()
        thread.join(PATIENCE)
    assert monitor.problems() == []
    (done,) = monitor.steps.done()
    assert (done.name, done.text) == (f"write of {NAME}", "3 rows, 0 duplicates")
    assert done.seconds >= 601
    samples = monitor.registry.collect()
    (took,) = [sample for sample in samples if sample.metric is Metric.PROCESS_DURATION]
    assert dict(took.labels)[OPERATION] == "write"
    assert took.value.counts[-1] == 1
    counts = {sample.metric: sample.value for sample in monitor.counts()}
    assert counts[Metric.WRITTEN] == 3
    assert counts[Metric.WRITES] == 1


def test_each_write_is_shown_separately():
    """Each write is listed with its own counts, although the job reports totals for its run."""
    monitor = Monitor("test")
    watch = WriteWatch(monitor, Source("topic", "/event/X__e"))
    watch.wrote(Progress(rows=5, duplicates=1, batches=1, seconds=0.5))
    watch.wrote(Progress(rows=7, duplicates=1, batches=2, undecodable=3, conflicts=1, seconds=0.25))
    assert [(done.text, done.seconds) for done in monitor.steps.done()] == [
        ("2 rows, 0 duplicates, 3 not decoded, 1 conflict", 0.25),
        ("5 rows, 1 duplicate", 0.5),
    ]
