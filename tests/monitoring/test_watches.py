"""What the monitor learns of an ingest job: its counts, its writes, and one that hangs."""

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


def test_a_write_that_hangs_fails_health_until_it_ends():
    """With the job's own loop and thread, on the job's own clock; its end is a step with what it
    did and how long it took."""
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


def test_each_write_is_told_by_itself():
    """The job counts its whole run; the page shows what each write did."""
    monitor = Monitor("test")
    watch = WriteWatch(monitor, Source("topic", "/event/X__e"))
    watch.wrote(Progress(rows=5, duplicates=1, batches=1, seconds=0.5))
    watch.wrote(Progress(rows=7, duplicates=1, batches=2, undecodable=3, conflicts=1, seconds=0.25))
    assert [(done.text, done.seconds) for done in monitor.steps.done()] == [
        ("2 rows, 0 duplicates, 3 not decoded, 1 conflict", 0.25),
        ("5 rows, 1 duplicate", 0.5),
    ]
