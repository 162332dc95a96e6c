"""Tests of the ingest loop: when it writes, when it acks and when it ends, without Spark and with a
simulated clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sfpubsub.errors import ReplayIdRejectedError, StreamUnavailableError, WriteError
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.sidecars import Commit
from sfpubsub.types import Gap
from tests.conftest import until
from tests.spark.fakes import Clock, FakeSubscription
from tests.spark.sample_events import MANAGED, replay_id


class FakeWriter:
    """Records the event ids of each write. It can fail, or block until `hold` is set."""

    flush_requested = False

    def __init__(self, subscription: FakeSubscription) -> None:
        self.writes: list[list[str]] = []
        self.failure: Exception | None = None
        self.hold: threading.Event | None = None
        self.dead = False
        self.subscription = subscription

    def write_collected(self, rows):
        if self.hold is not None:
            assert self.hold.wait(10.0), "the write was not released"
        if self.failure:
            raise self.failure
        ids = rows.table()["event_id"].to_pylist()
        self.writes.append(ids)
        self.subscription.log.append("write")
        return WriteResult(len(ids), 0, 0, "b", 0, None)

    def check(self):
        if self.dead:
            raise WriteError("spark's JVM has ended")


class FakeSidecars:
    """Fake sidecars that record gaps and commits.

    Each call is also logged in the subscription's log of writes and acks, so that tests can check
    the order.
    """

    def __init__(self, subscription: FakeSubscription) -> None:
        self.log = subscription.log
        self.gaps: list[Gap] = []
        self.commits: list[Commit] = []

    def keep_gaps(self, gaps):
        self.gaps += gaps
        self.log.append("gap")

    def keep_commit(self, commit):
        self.commits.append(commit)
        self.log.append("commit")

    def flush_due(self):
        pass


def job_of(subscription: FakeSubscription, **options):
    """Return a job and its fake writer."""
    writer = FakeWriter(subscription)
    return IngestJob(subscription, writer, clock=subscription.clock, **options), writer


def test_events_are_acked_after_their_write_last_batch_first():
    """Received batches are acked from last to first, so that the position to resume from moves
    once, to the end of the write.
    """
    subscription = FakeSubscription([3, 2])
    job, writer = job_of(subscription, batch_events=5, idle_timeout=5.0)
    summary = job.run()
    assert writer.writes == [[f"event-{n}" for n in range(5)]]
    assert subscription.log == ["write", "ack", "ack"]
    assert subscription.acked == [(3, 4), (0, 2)]
    assert summary.progress.position == replay_id(4)
    assert (summary.progress.received, summary.progress.batches) == (5, 1)


def test_batch_is_written_when_its_first_event_is_old_enough():
    """A batch is written `batch_seconds` after its first event, even if further events keep
    arriving.
    """
    subscription = FakeSubscription([1, 4.0, 1, 4.0, 1, 4.0, 1])
    job, writer = job_of(subscription, batch_seconds=10.0, idle_timeout=100.0)
    job.run()
    assert [len(write) for write in writer.writes] == [3, 1]


def test_batch_is_written_when_other_sources_write():
    """A job writes its batch early when the shared writer asks for it, so that one commit contains
    the events of all sources.
    """
    subscription = FakeSubscription([2, 1.0, lambda: setattr(writer, "flush_requested", True), 1.0])
    subscription.script.append(lambda: until(lambda: writer.writes, "the write", patience=10.0))
    job, writer = job_of(subscription, batch_seconds=100.0, idle_timeout=50.0)
    job.run()
    assert [len(write) for write in writer.writes] == [2]


def test_batch_is_written_when_it_reaches_batch_bytes():
    """A batch is limited in bytes as well as in number of events."""
    subscription = FakeSubscription([2, 2, 2, 2])
    job, writer = job_of(subscription, idle_timeout=1.0, batch_bytes=30)
    job.run()
    assert [len(write) for write in writer.writes] == [2, 2, 2, 2]


def test_a_failed_write_acks_nothing():
    """A failed write ends the job with the writer's error and acks nothing, so that the events are
    redelivered.
    """
    subscription = FakeSubscription([3, 2])
    job, writer = job_of(subscription, batch_events=3)
    writer.failure = WriteError("disk full")
    with pytest.raises(WriteError, match="disk full"):
        job.run()
    assert subscription.acked == []


def test_failed_subscription_acks_only_written_events():
    """An error of the subscription ends the job.

    Only the events that were written before it are acked.
    """
    subscription = FakeSubscription([3, 2, StreamUnavailableError("gone")])
    job, _ = job_of(subscription, batch_events=3)
    with pytest.raises(StreamUnavailableError):
        job.run()
    assert subscription.acked == [(0, 2)]


def test_stop_writes_and_acks_received_events():
    """A job that is stopped, for example by SIGTERM, writes and acks all events that it has
    received.
    """
    clock = Clock()
    subscription = FakeSubscription([3, lambda: job.stop()], clock)
    job, writer = job_of(subscription)
    summary = job.run()
    assert summary.ending == "stopped"
    assert [len(write) for write in writer.writes] == [3]
    assert subscription.acked == [(0, 2)]


def test_max_events_is_exact():
    """A job writes and acks exactly `max_events` events, even if the limit falls within a response.

    The remaining events stay unacked.
    """
    subscription = FakeSubscription([4, 4, 4])
    job, writer = job_of(subscription, max_events=6)
    summary = job.run()
    assert summary.ending == "max-events"
    assert sum(map(len, writer.writes)) == summary.progress.received == 6
    assert subscription.acked == [(4, 5), (0, 3)]
    assert summary.progress.position == replay_id(5)


def test_idle_job_writes_everything_and_ends():
    """Each event restarts the idle timeout, and a job that ends because of it has written all
    events.
    """
    subscription = FakeSubscription([1, 7.0, 1])
    job, writer = job_of(subscription, idle_timeout=8.0)
    began = subscription.clock.now
    assert job.run().ending == "idle"
    assert sum(map(len, writer.writes)) == 2
    assert subscription.clock.now - began >= 15.0


@pytest.mark.parametrize("state", ["new", "waiting", "renewing", "paused"])
def test_idle_timeout_ignores_time_without_a_stream(state):
    """The idle timeout counts only time with an open stream, so that an outage of an hour does not
    end the job.
    """
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
def test_closed_subscription_ends_the_job(state):
    """If its subscription is draining, closing or closed, a job writes the events received so far
    and ends.
    """

    def end() -> None:
        subscription.state = state

    subscription = FakeSubscription([3, end], patience=10.0)
    job, writer = job_of(subscription)
    assert job.run().ending == "stopped"
    assert [len(write) for write in writer.writes] == [3]


def test_waiting_job_detects_that_spark_has_exited():
    """If the JVM exits, a job without events to write raises an error within seconds."""
    clock = Clock()

    def die() -> None:
        writer.dead = True

    subscription = FakeSubscription([10.0, die], clock, patience=10.0)
    job, writer = job_of(subscription)
    with pytest.raises(WriteError, match="has ended"):
        job.run()


def test_progress_is_reported_after_each_write():
    """The reported progress is the total of all writes so far."""
    seen = []
    job, _ = job_of(
        FakeSubscription([2, 3]), batch_events=1, idle_timeout=1.0, on_progress=seen.append
    )
    job.run()
    assert [(progress.rows, progress.batches) for progress in seen] == [(2, 1), (5, 2)]


# Receiving during a write.


def release(writer: FakeWriter) -> Callable[[], None]:
    """Return a step that lets a blocked write continue."""

    def step() -> None:
        assert writer.hold is not None
        writer.hold.set()

    return step


def test_events_are_received_during_a_write():
    """A job receives more events while a write is in progress, and acks none of its events until
    the write has succeeded.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, idle_timeout=5.0)
    writer.hold = threading.Event()
    seen: list[list[tuple[int, int]]] = []
    subscription.script = [3, 1, lambda: seen.append(list(subscription.acked)), release(writer)]
    assert job.run().progress.rows == 4
    assert seen == [[]], "events were acked during the write"
    assert subscription.acked == [(0, 2), (3, 3)]
    assert [len(write) for write in writer.writes] == [3, 1]


def test_max_events_counts_events_that_are_being_written():
    """The limit stays exact when it is reached while a write is in progress."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=4, max_events=6)
    writer.hold = threading.Event()
    subscription.script = [4, 4, 4]

    def release_after_the_second() -> None:
        until(lambda: subscription.next_seq == 8)
        release(writer)()

    threading.Thread(target=release_after_the_second).start()
    assert job.run().progress.received == 6
    assert [len(write) for write in writer.writes] == [4, 2]


def test_at_most_one_batch_is_collected_during_a_write():
    """A job with a slow writer stops receiving when the next batch is full, so that it never holds
    more than two batches in memory.
    """
    subscription = FakeSubscription([2, 2, 2, 2], patience=100.0)
    job, writer = job_of(subscription, batch_events=2, idle_timeout=5.0)
    writer.hold = threading.Event()
    runner = threading.Thread(target=job.run, daemon=True)
    runner.start()
    until(lambda: subscription.next_seq == 4)
    # The job now waits for the first write, and receives nothing until the write is complete.
    assert (subscription.next_seq, subscription.acked) == (4, [])
    writer.hold.set()
    runner.join(10.0)
    assert [len(write) for write in writer.writes] == [2, 2, 2, 2]


def test_events_collected_during_a_write_are_one_batch():
    """`batch_seconds` limits how long events wait for more events, but not how long they wait for a
    write in progress, so that a slow disk does not cause small batches.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, batch_seconds=1.0, idle_timeout=50.0)
    writer.hold = threading.Event()
    subscription.script = [3, 1, 30.0, 1, release(writer)]
    job.run()
    assert [len(write) for write in writer.writes] == [3, 2]
    assert min(subscription.timeouts[:4]) > 0.1, "the job polls for the end of the write"


def test_subscription_error_during_a_write_is_raised_after_it():
    """If the subscription fails during a write, the job acks the events of the write before it
    raises the error. Events that were only received are not acked.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3)
    writer.hold = threading.Event()
    subscription.script = [3, 2, release(writer), StreamUnavailableError("gone")]
    with pytest.raises(StreamUnavailableError):
        job.run()
    assert subscription.acked == [(0, 2)]
    assert job.progress.rows == 3


def test_failed_write_does_not_hide_the_subscriptions_error(caplog):
    """If the subscription fails first and the write in progress fails too, the first error is
    raised, the second one is logged, and nothing is acked.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3)
    writer.hold, writer.failure = threading.Event(), WriteError("disk full")

    def fail() -> None:
        assert writer.hold is not None
        threading.Timer(0.0, writer.hold.set).start()
        raise StreamUnavailableError("gone")

    subscription.script = [3, fail]
    with pytest.raises(StreamUnavailableError):
        job.run()
    assert "disk full" in caplog.text
    assert subscription.acked == []


def test_idle_timeout_ignores_the_time_of_a_write():
    """A long write does not count as idle time, because too many unacked events stop delivery until
    it is done.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, idle_timeout=5.0)
    writer.hold = threading.Event()
    subscription.script = [3, 20.0, release(writer), 2]
    assert job.run().progress.rows == 5


def test_error_in_a_callback_does_not_hide_a_failed_write(caplog):
    """An unexpected error in a callback ends the job during a write; if that write fails too, its
    error is logged.
    """
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3)
    writer.hold, writer.failure = threading.Event(), WriteError("disk full")

    def fault() -> None:
        release(writer)()
        raise KeyError("somebody's")

    subscription.script = [3, fault]
    with pytest.raises(KeyError):
        job.run()
    assert "disk full" in caplog.text
    assert subscription.acked == []


def test_fatal_gap_is_not_recorded_even_if_a_batch_follows():
    """A gap that ends the subscription is not recorded, even if a batch is written after it is
    detected.

    Earlier gaps are recorded.
    """
    passed, ahead = Gap("unanchored", "/event/X__e"), Gap("rejected", "/event/X__e")

    def refuse() -> None:
        subscription.gaps, subscription.state = (passed, ahead), "closed"

    subscription = FakeSubscription([refuse, 2, ReplayIdRejectedError("refused", gap=ahead)])
    job, writer, sidecars = job_with_sidecars(subscription, batch_events=2)
    with pytest.raises(ReplayIdRejectedError):
        job.run()
    assert sidecars.gaps == [passed]
    assert len(writer.writes) == 1


def test_sidecars_are_not_written_during_a_write():
    """A gap that is detected during a write is recorded after it, because both may use the same
    Spark session and file system.
    """
    subscription = FakeSubscription([])
    job, writer, sidecars = job_with_sidecars(subscription, batch_events=3, idle_timeout=50.0)
    writer.hold = threading.Event()
    during: list[int] = []

    def lose() -> None:
        subscription.gaps = (Gap("repositioned", MANAGED),)

    def look() -> None:
        during.append(len(sidecars.gaps))

    subscription.script = [3, lose, 20.0, look, release(writer)]
    job.run()
    assert (during, len(sidecars.gaps)) == ([0], 1)


# The end of a job with ``until_caught_up``.


def test_until_caught_up_ends_the_job_at_the_next_keepalive():
    """With `until_caught_up`, a keepalive that reports no remaining events ends the job after its
    batch has been written.
    """

    def keepalive() -> None:
        subscription.caught_up = True

    subscription = FakeSubscription([2, 5.0, 3, keepalive], patience=60.0)
    job, writer = job_of(subscription, until_caught_up=True, batch_seconds=1000.0)
    assert job.run().ending == "caught-up"
    assert [len(write) for write in writer.writes] == [5]


@pytest.mark.parametrize("obstacle", ["events wait", "no stream", "not asked for"])
def test_keepalive_that_does_not_end_the_job(obstacle: str):
    """A keepalive does not end the job while received events wait for delivery, while no stream is
    open, or without `until_caught_up`.
    """

    def keepalive() -> None:
        subscription.caught_up = True
        if obstacle == "events wait":
            subscription.waiting_events = 3
        elif obstacle == "no stream":
            subscription.state = "opening"

    subscription = FakeSubscription([2, keepalive])
    once = obstacle != "not asked for"
    job, _ = job_of(subscription, until_caught_up=once, idle_timeout=50.0)
    assert job.run().ending == "idle"


# Sidecars.


def job_with_sidecars(subscription: FakeSubscription, **options):
    """Return a job, its fake writer and its fake sidecars."""
    sidecars = FakeSidecars(subscription)
    job, writer = job_of(subscription, sidecars=sidecars, **options)
    return job, writer, sidecars


def test_gap_is_recorded_before_later_events_are_written():
    """A gap that is detected while a batch is being collected is recorded once, before the batch is
    written.
    """
    gap = Gap("repositioned", MANAGED)

    def lose() -> None:
        subscription.gaps = (gap,)

    subscription = FakeSubscription([2, lose, 2, 2])
    job, _, sidecars = job_with_sidecars(subscription, batch_events=4, idle_timeout=1.0)
    assert job.run().gaps == (gap,)
    assert sidecars.gaps == [gap]
    assert subscription.log.index("gap") < subscription.log.index("write")


def test_job_ends_if_a_gap_cannot_be_recorded():
    """The job raises the error before it writes or acks any events."""
    subscription = FakeSubscription([2, 2])
    job, writer, sidecars = job_with_sidecars(subscription, batch_events=4)
    subscription.gaps = (Gap("repositioned", MANAGED),)

    def fail(_gaps):
        raise WriteError("disk full")

    sidecars.keep_gaps = fail
    with pytest.raises(WriteError):
        job.run()
    assert (writer.writes, subscription.acked) == ([], [])


def test_rejected_position_that_ends_a_job_is_not_recorded_as_a_gap():
    """If a job ends because its position was rejected, nothing was skipped, so no gap is recorded.
    An earlier gap is recorded even though the job failed.
    """
    passed, ahead = Gap("unanchored", "/event/X__e"), Gap("rejected", "/event/X__e")

    def refuse() -> None:
        subscription.gaps, subscription.state = (passed, ahead), "closed"

    subscription = FakeSubscription([2, refuse, ReplayIdRejectedError("refused", gap=ahead)])
    job, _, sidecars = job_with_sidecars(subscription)
    with pytest.raises(ReplayIdRejectedError):
        job.run()
    assert sidecars.gaps == [passed]


def test_commit_is_recorded_after_its_confirmation():
    """When the service confirms a commit, one entry is recorded, with the totals of all writes
    since the previous entry. `settle` records a commit that was confirmed after the end of `run`.
    """

    def confirm() -> None:
        subscription.confirmed, subscription.committed = 5, replay_id(4)

    subscription = FakeSubscription([3, 2, confirm, 4])
    job, _, sidecars = job_with_sidecars(subscription, batch_events=1, idle_timeout=1.0)
    job.run()
    assert subscription.log[-2:] == ["write", "ack"], "the last write is not confirmed yet"
    (first,) = sidecars.commits
    assert (first.received, first.batches, first.replay_id) == (5, 2, replay_id(4).hex())
    subscription.confirmed, subscription.committed = 9, replay_id(8)
    job.settle()
    assert [commit.received for commit in sidecars.commits] == [5, 4]
    assert sidecars.commits[1].replay_id == replay_id(8).hex()
