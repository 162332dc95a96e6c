"""The ingest loop: when it writes, when it acks, when it ends. No Spark, no waiting."""

from __future__ import annotations

import pytest

from sfpubsub.errors import StreamUnavailableError, WriteError
from sfpubsub.spark import job as jobs
from sfpubsub.spark.job import IngestJob
from sfpubsub.spark.writer import WriteResult
from tests.spark.fakes import Clock, FakeSubscription
from tests.spark.sample_events import replay_id


class FakeWriter:
    """Keeps what it was given."""

    def __init__(self, subscription: FakeSubscription) -> None:
        self.writes: list[list[str]] = []
        self.failure: Exception | None = None
        self.dead = False
        self.subscription = subscription

    def write(self, batches):
        if self.failure:
            raise self.failure
        ids = [event.id for batch in batches for event in batch]
        assert sum(map(len, batches)) == len(ids)
        self.writes.append(ids)
        self.subscription.log.append("write")
        return WriteResult(len(ids), 0, 0, "b", 0, None)

    def check(self):
        if self.dead:
            raise WriteError("spark's JVM has ended")


def job_of(subscription: FakeSubscription, **options):
    writer = FakeWriter(subscription)
    return IngestJob(subscription, writer, clock=subscription.clock, **options), writer


def test_events_are_acked_after_their_write_and_in_one_move():
    """Write first. Backwards, the acked prefix moves once, and to the end."""
    subscription = FakeSubscription([3, 2])
    job, writer = job_of(subscription, batch_events=5, idle_timeout=5.0)
    summary = job.run()
    assert writer.writes == [[f"event-{n}" for n in range(5)]]
    assert subscription.log == ["write", "ack", "ack"]
    assert subscription.acked == [(3, 4), (0, 2)]
    assert summary.progress.position == replay_id(4)
    assert (summary.progress.received, summary.progress.batches) == (5, 1)


def test_a_batch_is_written_when_its_first_event_has_waited_long_enough():
    """A trickle of events does not put the write off."""
    subscription = FakeSubscription([1, 4.0, 1, 4.0, 1, 4.0, 1])
    job, writer = job_of(subscription, batch_seconds=10.0, idle_timeout=100.0)
    job.run()
    assert [len(write) for write in writer.writes] == [3, 1]


def test_a_batch_is_written_when_it_is_heavy(monkeypatch):
    """Bytes bound a write as well as events."""
    monkeypatch.setattr(jobs, "MAX_BATCH_BYTES", 30)
    subscription = FakeSubscription([2, 2, 2, 2])
    job, writer = job_of(subscription, idle_timeout=1.0)
    job.run()
    assert [len(write) for write in writer.writes] == [2, 2, 2, 2]


def test_a_failed_write_acks_nothing():
    """The events come again to whoever starts next."""
    subscription = FakeSubscription([3, 2])
    job, writer = job_of(subscription, batch_events=3)
    writer.failure = WriteError("disk full")
    with pytest.raises(WriteError, match="disk full"):
        job.run()
    assert subscription.acked == []


def test_a_failed_subscription_keeps_what_was_written():
    """Its error ends the job; what was not written is not acked."""
    subscription = FakeSubscription([3, 2, StreamUnavailableError("gone")])
    job, _ = job_of(subscription, batch_events=3)
    with pytest.raises(StreamUnavailableError):
        job.run()
    assert subscription.acked == [(0, 2)]


def test_a_stop_writes_and_acks_what_was_received():
    """SIGTERM loses no work."""
    clock = Clock()
    subscription = FakeSubscription([3, lambda: job.stop()], clock)
    job, writer = job_of(subscription)
    summary = job.run()
    assert summary.ending == "stopped"
    assert [len(write) for write in writer.writes] == [3]
    assert subscription.acked == [(0, 2)]


def test_max_events_is_exact():
    """The rest of a response is neither written nor acked, so it comes again."""
    subscription = FakeSubscription([4, 4, 4])
    job, writer = job_of(subscription, max_events=6)
    summary = job.run()
    assert summary.ending == "max-events"
    assert sum(map(len, writer.writes)) == summary.progress.received == 6
    assert subscription.acked == [(4, 5), (0, 3)]
    assert summary.progress.position == replay_id(5)


def test_an_idle_job_ends_with_everything_written():
    """After the timeout; events put it off."""
    subscription = FakeSubscription([1, 7.0, 1])
    job, writer = job_of(subscription, idle_timeout=8.0)
    began = subscription.clock.now
    assert job.run().ending == "idle"
    assert sum(map(len, writer.writes)) == 2
    assert subscription.clock.now - began >= 15.0


@pytest.mark.parametrize("state", ["new", "waiting", "renewing", "paused"])
def test_a_subscription_that_is_not_listening_is_not_idle(state):
    """A service that is down for an hour does not look like one with nothing to say."""
    clock = Clock()

    def back() -> None:
        subscription.state = "streaming"

    subscription = FakeSubscription([3600.0, back], clock)
    subscription.state = state
    job, _ = job_of(subscription, idle_timeout=8.0)
    began = clock.now
    job.run()
    assert clock.now - began >= 3608.0


@pytest.mark.parametrize("state", ["draining", "closing", "closed"])
def test_a_subscription_that_somebody_ended_ends_the_job(state):
    """It does not ask for ever what will never come; what was received is written."""

    def end() -> None:
        subscription.state = state

    subscription = FakeSubscription([3, end], patience=10.0)
    job, writer = job_of(subscription)
    assert job.run().ending == "stopped"
    assert [len(write) for write in writer.writes] == [3]


def test_a_job_notices_within_seconds_that_spark_has_ended():
    """Without an event to write, too."""
    clock = Clock()

    def die() -> None:
        writer.dead = True

    subscription = FakeSubscription([10.0, die], clock, patience=10.0)
    job, writer = job_of(subscription)
    with pytest.raises(WriteError, match="has ended"):
        job.run()


def test_progress_is_told_after_each_write():
    """Sums, not single writes."""
    seen = []
    job, _ = job_of(
        FakeSubscription([2, 3]), batch_events=1, idle_timeout=1.0, on_progress=seen.append
    )
    job.run()
    assert [(progress.rows, progress.batches) for progress in seen] == [(2, 1), (5, 2)]
