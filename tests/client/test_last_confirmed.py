"""When the position of a managed subscription counts as lost, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfpubsub.client.last_confirmed import Confirmed, LastConfirmed
from sfpubsub.config import Timings
from sfpubsub.monitoring.observation import NEW
from sfpubsub.types import Gap, Health, ReplayId

NAME = "My_Managed_Subscription"
HOUR = 3600.0
T0 = 1_800_000_000.0


def rid(number: int) -> ReplayId:
    """Return a position."""
    return ReplayId(number.to_bytes(8, "big"))


class Job:
    """A job that is killed and restarted: only what it stored survives."""

    def __init__(self) -> None:
        self.now = T0
        self.disk: Confirmed | None = None
        self.gaps: list[Gap] = []
        self.writes = 0
        self.number = 0
        self.start()

    def start(self) -> None:
        """Start a process, whose first stream has received nothing yet."""
        self.known = LastConfirmed(NAME, self.disk, Timings())
        self.health = replace(NEW, state="streaming")
        self.acked = 0

    def reconnect(self) -> None:
        """Replace the stream within the process."""
        self.health = replace(
            self.health, reconnects=self.health.reconnects + 1, caught_up=False, has_committed=False
        )
        self.observe()

    def keepalive(self) -> None:
        """Receive a keepalive, and have its position confirmed."""
        self.number += 1
        self.health = replace(self.health, last_position=rid(self.number), caught_up=True)
        self.confirm(self.number)

    def events(self, age: float, *, confirmed: bool = True) -> None:
        """Receive, write and ack an event of *age* seconds, and have its position confirmed."""
        self.number += 1
        self.acked += 1
        self.health = replace(self.health, last_position=rid(self.number), caught_up=False)
        self.known.acked(self.acked, self.now - age)
        if confirmed:
            self.confirm(self.number)

    def confirm(self, number: int) -> None:
        """Confirm the position *number* and all acked events."""
        self.health = replace(
            self.health,
            committed=rid(number),
            confirmed=self.acked,
            process_time=int(self.now * 1000),
            has_committed=True,
        )
        self.observe()

    def observe(self) -> None:
        """Look at the health, and store what is due."""
        gap = self.known.observe(self.health)
        if gap is not None:
            self.gaps.append(gap)
        self.store()

    def store(self, *, last: bool = False) -> None:
        """Store what is due."""
        due = self.known.due(last=last)
        if due is not None:
            self.disk = due
            self.writes += 1
            self.known.stored(due)

    def quiet(self, seconds: float) -> None:
        """Let only keepalives arrive, every 270 s."""
        for _ in range(round(seconds / 270)):
            self.now += 270
            self.keepalive()


def test_ten_quiet_days_and_a_kill_are_no_gap():
    """While keepalives are confirmed, the position is known to be current; it is written about once
    an hour, and a kill after ten days without an event loses nothing.
    """
    job = Job()
    job.keepalive()
    job.quiet(240 * HOUR)
    assert 200 < job.writes <= 241
    job.start()
    job.keepalive()
    assert job.gaps == []


@pytest.mark.parametrize(("down", "lost"), [(70, False), (80, True)])
def test_a_position_older_than_the_retention_is_one_gap(down: int, lost: bool):
    """After 80 h down there is exactly one gap, from the position that was known; not after 70 h,
    nor at the next start.
    """
    job = Job()
    job.keepalive()
    before = job.disk
    job.now += down * HOUR
    for _ in range(2):
        job.start()
        job.observe()
        job.events(0.0)
        job.keepalive()
    assert before is not None
    assert job.gaps == ([Gap("expired", NAME, before.position)] if lost else [])


def test_a_kill_before_the_new_time_is_stored_finds_the_same_gap():
    """A gap that was reported but may not be stored is found again, with the same contents."""
    job = Job()
    job.keepalive()
    job.now += 80 * HOUR
    found = []
    for _ in range(2):
        job.start()
        disk = job.disk
        job.events(0.0)
        job.disk = disk  # killed before this was stored
        found.append(job.gaps.pop())
    assert found[0] == found[1]


def test_a_position_is_as_old_as_its_event():
    """While a backlog is read, a position that was confirmed just now may be days old, so five
    hours without a connection may lose it; and a keepalive does not move it while events before the
    keepalive are unacked.
    """
    job = Job()
    job.events(70 * HOUR)
    job.number += 1
    job.health = replace(job.health, last_position=rid(job.number), caught_up=True)
    job.confirm(job.number - 1)
    assert job.disk == Confirmed(rid(1), T0 - 70 * HOUR)
    job.now += 5 * HOUR
    job.start()
    job.keepalive()
    assert [gap.after for gap in job.gaps] == [rid(1)]


def test_a_backlog_read_on_one_stream_is_no_gap():
    """Reading 72 hours of retained events from the start is no gap, and moves the time forward."""
    job = Job()
    for age in range(72, 0, -1):
        job.events(age * HOUR)
    assert job.gaps == []
    assert job.disk == Confirmed(rid(72), T0 - HOUR)


def test_events_without_a_pause_keep_the_position_current():
    """On a topic that is never idle, there are no keepalives; the events' own times move on."""
    job = Job()
    for _ in range(100):
        job.now += HOUR
        job.events(2.0)
    job.start()
    job.events(2.0)
    assert job.gaps == []


def test_a_loss_within_one_process_is_a_gap():
    """A process that could not connect for 80 h reports the gap when it can."""
    job = Job()
    job.keepalive()
    job.now += 80 * HOUR
    for _ in range(3):
        job.reconnect()
    assert job.gaps == []
    job.keepalive()
    assert [gap.reason for gap in job.gaps] == ["expired"]


def test_after_a_gap_an_older_position_replaces_the_lost_one():
    """If the stream goes on at the oldest retained event, older than the position that was lost,
    the next start does not find the gap again.
    """
    job = Job()
    job.keepalive()
    job.now += 71.5 * HOUR
    job.start()
    job.events(71.9 * HOUR)
    assert len(job.gaps) == 1
    assert job.disk is not None
    assert job.disk.position == rid(job.number)


def test_the_last_position_is_stored_at_the_end():
    """A drain stores the newest time, even if it moved by less than an hour."""
    job = Job()
    job.keepalive()
    job.now += 600.0
    job.keepalive()
    assert job.disk == Confirmed(rid(1), T0)
    job.store(last=True)
    assert job.disk == Confirmed(rid(2), T0 + 600.0)


@pytest.mark.parametrize(
    "health",
    [
        replace(NEW, process_time=1, has_committed=True),
        replace(NEW, committed=rid(1), has_committed=True),
        replace(NEW, committed=rid(1), process_time=1),
    ],
)
def test_without_a_confirmation_on_the_stream_nothing_is_known(health: Health):
    """Only a commit that the service confirmed on this stream tells its time."""
    known = LastConfirmed(NAME, Confirmed(rid(1), 0.0), Timings())
    assert known.observe(health) is None
    assert known.due(last=True) is None


def test_gap_that_the_subscription_reports_itself_is_not_reported_again():
    """Within a process, the subscription finds an outage longer than the retention itself; the job
    only stores the new time.
    """
    job = Job()
    job.keepalive()
    job.now += 80 * HOUR
    job.reconnect()
    own = Gap("expired", NAME, rid(1))
    job.health = replace(job.health, gaps=(own,))
    job.keepalive()
    assert job.gaps == []
    assert job.disk == Confirmed(rid(2), job.now)
    job.now += 80 * HOUR
    job.reconnect()
    job.keepalive()
    assert [gap.after for gap in job.gaps] == [rid(2)], "this one the subscription did not report"
