"""Tests of when an ingest flushes and ends, and of who writes for whom, with a virtual clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from sfpubsub.spark.ingest.schedule import (
    CHECK_EVERY,
    LOOK_EVERY,
    MOVE_AFTER,
    Check,
    End,
    Finish,
    Flush,
    Group,
    IngestSchedule,
    Look,
    Receive,
    SharedWrites,
    Waiting,
)
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.types import ReplayId
from tests.spark.fakes import FakeSubscription

# Payload bytes of an event.
SIZE = 10


class Source:
    """A job without threads: its subscription, its writes and its clock are numbers."""

    def __init__(self, seed: int, settings: IngestSettings) -> None:
        print("seed", seed)
        self.rng = random.Random(seed)
        self.settings = settings
        self.now = 0.0
        self.schedule = IngestSchedule(settings, self.now)
        self.pending: list[float] = []  # when each collected event was taken
        self.writing: tuple[int, float] | None = None  # events, and when the write is done
        self.written = 0
        self.taken = 0
        self.flush_requested = False
        self.subscription = FakeSubscription([])
        self.is_stopped = False
        self.opened_at = 0.0  # when the stream was last not open, or brought an event
        self.looked = self.checked = 0.0
        self.ending: str | None = None
        self.quiet_until = float("-inf")
        self.caught_up_since: float | None = None

    def step(self) -> None:
        """Carry out the next action, and check it."""
        is_written = self.writing is not None and self.writing[1] <= self.now
        action = self.schedule.next(
            self.now, is_written=is_written, flush_requested=self.flush_requested
        )
        settings, waited = self.settings, self.now - min(self.pending, default=self.now)
        is_full = len(self.pending) >= settings.batch_events
        is_full = is_full or len(self.pending) * SIZE >= settings.batch_bytes
        match action:
            case Receive(timeout):
                assert 0.0 <= timeout <= LOOK_EVERY
                assert not is_full, "more events are taken although the batch is full"
                assert self.now - self.looked < LOOK_EVERY
                if self.writing is None:
                    assert not self.pending or waited + timeout <= settings.batch_seconds
                    assert not (self.pending and self.flush_requested)
                    assert self.now - self.checked < CHECK_EVERY
                self.receive(timeout)
            case Look():
                self.looked = self.now
                self.schedule.looked(self.subscription.health(), self.now)
            case Flush():
                is_due = waited >= settings.batch_seconds or self.flush_requested
                assert self.writing is None, "two writes at a time"
                assert self.pending
                assert is_full or is_due or self.must_end(), "a batch is flushed too early"
                self.writing = len(self.pending), self.now + self.rng.choice([0.125, 1.0, 30.0])
                self.pending.clear()
                self.schedule.flushed()
            case Finish():
                assert self.writing is not None
                count, done = self.writing
                self.now = max(self.now, done)
                self.written, self.writing = self.written + count, None
                self.opened_at = self.checked = self.now
                self.schedule.finished(self.now)
            case Check():
                self.checked = self.now
                self.schedule.checked(self.now)
            case End(ending):
                assert not self.pending
                assert self.writing is None
                assert self.written == self.taken, "the job ended before its last write"
                self.ending = ending

    def must_end(self) -> bool:
        """Return whether the job has a reason to end."""
        most, idle = self.settings.max_events, self.settings.idle_timeout
        if self.is_stopped or (most is not None and self.taken >= most):
            return True
        if self.settings.until_caught_up and self.subscription.caught_up:
            return True
        return idle is not None and self.now - self.opened_at >= idle

    def receive(self, timeout: float) -> None:
        """Wait for a response, which may come."""
        self.subscription.caught_up = False
        if self.rng.random() < 0.4 and self.now >= self.quiet_until:
            count = self.rng.randint(1, 5)
            taken = self.schedule.room(count)
            most = self.settings.max_events
            assert taken == min(count, (most or 10**9) - self.taken) > 0
            self.now += self.rng.choice([0.0, timeout / 2])
            self.pending += [self.now] * taken
            self.taken += taken
            self.opened_at = self.now
            self.subscription.state = "streaming"
            self.schedule.taken(taken, len(self.pending) * SIZE, self.now)
            return
        self.now += timeout
        if self.subscription.state != "streaming":
            self.now += self.rng.choice([0.0, 10.0])  # a slow machine
        self.subscription.caught_up = self.rng.random() < 0.2
        if self.subscription.state != "streaming":
            self.opened_at = self.now
        self.schedule.nothing_received()


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_is_flushed_when_it_is_full_or_old_enough(seed: int):
    """Whatever arrives, a batch is flushed when it has enough events or bytes, or its first event
    is old enough, or other sources wait, whichever comes first; one write at a time. The job ends
    for one of its reasons, with all that it has taken written.
    """
    rng = random.Random(seed)
    source = Source(
        seed,
        IngestSettings(
            batch_events=rng.choice([1, 7, 30]),
            batch_bytes=rng.choice([50, 10_000]),
            batch_seconds=rng.choice([0.0, 0.5, 10.0]),
            max_events=rng.choice([None, 40]),
            idle_timeout=rng.choice([None, 8.0]),
            until_caught_up=rng.random() < 0.3,
        ),
    )
    for _ in range(400):
        if source.ending is not None:
            break
        if rng.random() < 0.05:
            source.quiet_until = source.now + rng.choice([1.0, 12.0])
        if rng.random() < 0.05:
            source.subscription.state = rng.choice(["streaming", "waiting"])
        source.flush_requested = rng.random() < 0.05
        source.step()
    source.schedule.stop()
    source.is_stopped = True
    for _ in range(4):
        if source.ending is None:
            source.step()
    settings, reasons = source.settings, {"stopped"}
    if settings.max_events is not None:
        assert source.taken <= settings.max_events
        reasons |= {"max-events"}
    reasons |= {"idle"} if settings.idle_timeout is not None else set()
    reasons |= {"caught-up"} if settings.until_caught_up else set()
    assert source.ending in reasons
    assert (source.ending == "max-events") == (source.taken == settings.max_events)


def test_an_outage_is_not_taken_for_an_idle_stream():
    """While the stream is not open, the idle timeout does not run; once it is, it does."""
    source = Source(1, IngestSettings(idle_timeout=8.0))
    source.quiet_until = float("inf")
    source.subscription.state = "waiting"
    while source.now < 3600.0:
        source.step()
        assert source.ending is None
    source.subscription.state = "streaming"
    began = source.now
    while source.ending is None:
        source.step()
    assert source.ending == "idle"
    assert 7.0 <= source.now - began <= 9.0


@dataclass(eq=False)
class Events:
    """Events of one source."""

    count: int
    number: int

    @property
    def bytes(self) -> int:
        return self.count * SIZE

    def __len__(self) -> int:
        return self.count


def position(number: int) -> ReplayId:
    return ReplayId(number.to_bytes(4, "big"))


@pytest.mark.parametrize("seed", range(30))
def test_sources_share_writes(seed: int):
    """In any order of batches, keepalives, failures and ends of sources: each batch is in exactly
    one write, or in one that failed; a write waits for other sources no longer than the patience,
    and not for those that have ended; it grows no further once it is full; and no position is
    stored that is older than one that is stored already.
    """
    print("seed", seed)
    rng = random.Random(seed)
    names = [f"/event/{n}" for n in range(rng.randint(1, 5))]
    writes: SharedWrites[Events] = SharedWrites(names, max_events=20, max_bytes=2000, patience=0.5)
    now, number, running = 0.0, 0, set(names)
    waiting: dict[str, Waiting[Events]] = {}
    stored, written = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    numbers: dict[ReplayId, int] = {}

    def numbered(of: int) -> ReplayId:
        numbers[position(of)] = of
        return position(of)

    def write(group: Group[Events]) -> None:
        ids = [each.batch.number for each in group.batches]
        events = [len(each.batch) for each in group.batches]
        assert sum(events[:-1]) < 4 * 20, "a full write was extended"
        assert len({each.source for each in group.batches}) == len(ids)
        if group.batches:  # the oldest first, so that none waits for ever
            assert group.batches[0].since == min(each.since for each in waiting.values())
        for each in group.batches:  # a keepalive that came before the events, during the write
            assert each.source not in group.moves, "a position older than the events is stored"
            writes.move(each.source, numbered(each.batch.number - 1), now)
            assert waiting.pop(each.source) is each
        if rng.random() < 0.1:
            writes.failed(group)
            return
        for source, at in group.moves.items():
            assert numbers[at] >= stored[source], "an older position was stored"
            stored[source] = numbers[at]
        for each in group.batches:
            assert each.batch.number > stored[each.source], "an older position was stored"
            stored[each.source] = written[each.source] = each.batch.number
        writes.wrote(group, [numbered(each.batch.number) for each in group.batches])

    for _ in range(500):
        now += rng.choice([0.0, 0.125, 0.5])
        number += 2
        source = rng.choice(names)
        if rng.random() < 0.02 and len(running) > 1:
            running.discard(source)
            writes.leave(source)
        if source in running and source not in waiting:
            if rng.random() < 0.5:
                waiting[source] = writes.add(source, Events(rng.randint(1, 40), number), now)
            else:
                # A newer keepalive, or the position of the events that were written last.
                writes.move(source, numbered(rng.choice([number, written[source] or number])), now)
        if not waiting:
            if (group := writes.moves_due(now)) is not None:
                write(group)
            continue
        oldest = min(each.since for each in waiting.values())
        group = writes.next(now)
        if isinstance(group, Group):
            is_full = sum(len(each.batch) for each in waiting.values()) >= 20
            assert is_full or running <= waiting.keys() or now >= oldest + 0.5
            write(group)
        else:
            assert now < group <= oldest + 0.5, "it waits longer than its patience"
            assert not running <= waiting.keys(), "it waits for sources that have ended"
            for name in names:
                assert writes.flush_requested(name) == (name not in waiting)
    while waiting:
        now += 1.0
        group = writes.next(now)
        assert isinstance(group, Group)
        write(group)
    if (group := writes.moves_due(now + MOVE_AFTER)) is not None:
        write(group)
