"""The ingest loop: when it writes, when it acks, when it ends. No Spark, no waiting."""

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
    """Keeps what it was given."""

    is_wanted = False

    def __init__(self, subscription: FakeSubscription) -> None:
        self.writes: list[list[str]] = []
        self.failure: Exception | None = None
        self.hold: threading.Event | None = None
        self.dead = False
        self.subscription = subscription

    def write_read(self, rows):
        if self.hold is not None:
            assert self.hold.wait(10.0), "nobody let the write go on"
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
    """Notes the order in which things are kept, among the writes and acks."""

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


def test_a_batch_is_written_when_others_write():
    """One commit of the table takes what all sources have; nobody waits for those without any."""
    subscription = FakeSubscription([2, 1.0, lambda: setattr(writer, "is_wanted", True), 1.0])
    subscription.script.append(lambda: until(lambda: writer.writes, "the write", patience=10.0))
    job, writer = job_of(subscription, batch_seconds=100.0, idle_timeout=50.0)
    job.run()
    assert [len(write) for write in writer.writes] == [2]


def test_a_batch_is_written_when_it_is_heavy():
    """Bytes bound a write as well as events."""
    subscription = FakeSubscription([2, 2, 2, 2])
    job, writer = job_of(subscription, idle_timeout=1.0, batch_bytes=30)
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


# A write beside the receiving.


def let_go(writer: FakeWriter) -> Callable[[], None]:
    """Return a step that lets a held write go on."""

    def step() -> None:
        assert writer.hold is not None
        writer.hold.set()

    return step


def test_events_are_received_while_a_write_is_under_way():
    """And none of them is acked, nor those that are being written."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, idle_timeout=5.0)
    writer.hold = threading.Event()
    seen: list[list[tuple[int, int]]] = []
    subscription.script = [3, 1, lambda: seen.append(list(subscription.acked)), let_go(writer)]
    assert job.run().progress.rows == 4
    assert seen == [[]], "received a fourth event, and had acked nothing"
    assert subscription.acked == [(0, 2), (3, 3)]
    assert [len(write) for write in writer.writes] == [3, 1]


def test_max_events_counts_what_is_being_written():
    """Exact, wherever the events are."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=4, max_events=6)
    writer.hold = threading.Event()
    subscription.script = [4, 4, 4]

    def let_go_after_the_second() -> None:
        until(lambda: subscription.next_seq == 8)
        let_go(writer)()

    threading.Thread(target=let_go_after_the_second).start()
    assert job.run().progress.received == 6
    assert [len(write) for write in writer.writes] == [4, 2]


def test_no_more_than_one_batch_is_gathered_behind_a_write():
    """A Spark that is slow stops the receiving; memory is bounded by two batches."""
    subscription = FakeSubscription([2, 2, 2, 2], patience=100.0)
    job, writer = job_of(subscription, batch_events=2, idle_timeout=5.0)
    writer.hold = threading.Event()
    runner = threading.Thread(target=job.run, daemon=True)
    runner.start()
    until(lambda: subscription.next_seq == 4)
    # It waits for the first write now; more cannot come until that is over.
    assert (subscription.next_seq, subscription.acked) == (4, [])
    writer.hold.set()
    runner.join(10.0)
    assert [len(write) for write in writer.writes] == [2, 2, 2, 2]


def test_batches_that_wait_too_long_wait_for_the_write_before_them():
    """Time bounds how long an event waits for others, not for the disk: no small batches."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, batch_seconds=1.0, idle_timeout=50.0)
    writer.hold = threading.Event()
    subscription.script = [3, 1, 30.0, 1, let_go(writer)]
    job.run()
    assert [len(write) for write in writer.writes] == [3, 2]
    assert min(subscription.timeouts[:4]) > 0.1, "it looks for the write's end all the time"


def test_a_subscription_that_fails_during_a_write_is_told_after_it():
    """What was written is acked, what was only received is not."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3)
    writer.hold = threading.Event()
    subscription.script = [3, 2, let_go(writer), StreamUnavailableError("gone")]
    with pytest.raises(StreamUnavailableError):
        job.run()
    assert subscription.acked == [(0, 2)]
    assert job.progress.rows == 3


def test_a_write_that_fails_after_the_subscription_has_does_not_hide_it(caplog):
    """The first failure is raised, the second one is logged, and nothing is acked."""
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


def test_a_long_write_is_no_idleness():
    """A ledger that is full until the ack keeps events away, and they come after it."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3, idle_timeout=5.0)
    writer.hold = threading.Event()
    subscription.script = [3, 20.0, let_go(writer), 2]
    assert job.run().progress.rows == 5


def test_a_fault_in_a_callback_does_not_hide_a_failed_write(caplog):
    """Nobody asks for the result any more; it is logged."""
    subscription = FakeSubscription([])
    job, writer = job_of(subscription, batch_events=3)
    writer.hold, writer.failure = threading.Event(), WriteError("disk full")

    def fault() -> None:
        let_go(writer)()
        raise KeyError("somebody's")

    subscription.script = [3, fault]
    with pytest.raises(KeyError):
        job.run()
    assert "disk full" in caplog.text
    assert subscription.acked == []


def test_a_gap_that_ended_the_subscription_is_left_to_the_failure():
    """Though a batch that came before it is written after it was known."""
    passed, ahead = Gap("unanchored", "/event/X__e"), Gap("rejected", "/event/X__e")

    def refuse() -> None:
        subscription.gaps, subscription.state = (passed, ahead), "closed"

    subscription = FakeSubscription([refuse, 2, ReplayIdRejectedError("refused", gap=ahead)])
    job, writer, sidecars = beside(subscription, batch_events=2)
    with pytest.raises(ReplayIdRejectedError):
        job.run()
    assert sidecars.gaps == [passed]
    assert len(writer.writes) == 1


def test_nothing_is_put_beside_the_table_while_a_write_is_under_way():
    """Both may go to the same file system through the same Spark: one at a time."""
    subscription = FakeSubscription([])
    job, writer, sidecars = beside(subscription, batch_events=3, idle_timeout=50.0)
    writer.hold = threading.Event()
    during: list[int] = []

    def lose() -> None:
        subscription.gaps = (Gap("repositioned", MANAGED),)

    def look() -> None:
        during.append(len(sidecars.gaps))

    subscription.script = [3, lose, 20.0, look, let_go(writer)]
    job.run()
    assert (during, len(sidecars.gaps)) == ([0], 1)


# The end of ``once``.


def test_the_first_keepalive_after_everything_was_received_ends_a_job_that_waits_for_it():
    """The service says that nothing is left, which no silence says so soon."""

    def keepalive() -> None:
        subscription.caught_up = True

    subscription = FakeSubscription([2, 5.0, 3, keepalive], patience=60.0)
    job, writer = job_of(subscription, until_caught_up=True, batch_seconds=1000.0)
    assert job.run().ending == "caught-up"
    assert [len(write) for write in writer.writes] == [5]


@pytest.mark.parametrize("obstacle", ["events wait", "no stream", "not asked for"])
def test_a_keepalive_that_says_nothing_yet(obstacle: str):
    """With events to be handed out, with the stream gone, and without ``once``: go on."""

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


# What is kept beside the table, and when.


def beside(subscription: FakeSubscription, **options):
    sidecars = FakeSidecars(subscription)
    job, writer = job_of(subscription, sidecars=sidecars, **options)
    return job, writer, sidecars


def test_a_gap_is_kept_before_what_came_after_it_is_written():
    """Even if it was told while the batch was being gathered; once each."""
    gap = Gap("repositioned", MANAGED)

    def lose() -> None:
        subscription.gaps = (gap,)

    subscription = FakeSubscription([2, lose, 2, 2])
    job, _, sidecars = beside(subscription, batch_events=4, idle_timeout=1.0)
    assert job.run().gaps == (gap,)
    assert sidecars.gaps == [gap]
    assert subscription.log.index("gap") < subscription.log.index("write")


def test_a_gap_that_cannot_be_kept_stops_the_job_in_front_of_it():
    """Nothing is written, nothing is acked."""
    subscription = FakeSubscription([2, 2])
    job, writer, sidecars = beside(subscription, batch_events=4)
    subscription.gaps = (Gap("repositioned", MANAGED),)

    def fail(_gaps):
        raise WriteError("disk full")

    sidecars.keep_gaps = fail
    with pytest.raises(WriteError):
        job.run()
    assert (writer.writes, subscription.acked) == ([], [])


def test_the_position_that_a_job_stops_at_is_no_gap():
    """It is still where it was. A gap before it is kept, although the job failed."""
    passed, ahead = Gap("unanchored", "/event/X__e"), Gap("rejected", "/event/X__e")

    def refuse() -> None:
        subscription.gaps, subscription.state = (passed, ahead), "closed"

    subscription = FakeSubscription([2, refuse, ReplayIdRejectedError("refused", gap=ahead)])
    job, _, sidecars = beside(subscription)
    with pytest.raises(ReplayIdRejectedError):
        job.run()
    assert sidecars.gaps == [passed]


def test_a_commit_is_noted_after_its_receipt_and_covers_every_write_before_it():
    """Three writes, two receipts, one of them learned from the drain: sums without a hole."""

    def confirm() -> None:
        subscription.confirmed, subscription.committed = 5, replay_id(4)

    subscription = FakeSubscription([3, 2, confirm, 4])
    job, _, sidecars = beside(subscription, batch_events=1, idle_timeout=1.0)
    job.run()
    assert subscription.log[-2:] == ["write", "ack"], "not confirmed"
    (first,) = sidecars.commits
    assert (first.received, first.batches, first.replay_id) == (5, 2, replay_id(4).hex())
    subscription.confirmed, subscription.committed = 9, replay_id(8)
    job.settle()
    assert [commit.received for commit in sidecars.commits] == [5, 4]
    assert sidecars.commits[1].replay_id == replay_id(8).hex()
