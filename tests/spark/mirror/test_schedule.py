"""Tests of what a mirror does when, in one thread and with a virtual clock."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from sfpubsub.errors import ConfigurationError, PermissionDeniedError
from sfpubsub.rest.grants import Grant
from sfpubsub.spark.ingest.selection import Member, event_of
from sfpubsub.spark.ingest.sidecars import KeptGap
from sfpubsub.spark.mirror import actions
from sfpubsub.spark.mirror.due_reads import IDS_AT_ONCE, MOST_IDS
from sfpubsub.spark.mirror.mailbox import Signal
from sfpubsub.spark.mirror.schedule import EVENTS_IN_A_ROW
from sfpubsub.spark.mirror.settings import By
from sfpubsub.spark.records.fold import Reason
from tests.spark.mirror.schedule_world import (
    DAY,
    MARGIN,
    SETTINGS,
    KilledError,
    SimulatedMirror,
)

# Longest time in which a mirror without further changes settles: a look at the members after one
# that failed, the settling of a member or a right, the longest back-off, and reads.
SETTLED_WITHIN = 4 * 3600.0


def disturb(world: SimulatedMirror, number: int) -> None:
    """Let something happen to the org, the stream or the mailbox."""
    rng = world.rng
    name = rng.choice(world.objects)
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            rows = [(name, rng.choice(["a", "b", None])), None]
            world.raw += rng.choices(rows, k=rng.randint(1, 4))
        case 4:
            world.mailbox[f"{number}"] = Signal("reread", name, id=f"{number}")
        case 5:
            kind = rng.choice(["pause", "resume", "abandon-read"])
            of = name if kind == "abandon-read" else None
            world.mailbox[f"{number}"] = Signal(kind, of, id=f"{number}")
        case 6:
            world.gaps.append(KeptGap(f"gap {number}", rng.choice([None, name])))
        case 7:
            world.failing ^= {name}
        case 8:
            world.gone ^= {name}
        case 9:
            world.is_down = not world.is_down
        case 10:
            grant = Grant.of([f"{number}"] if rng.random() < 0.7 else [])
            world.grants[name] = grant
        case 11:
            if world.members.pop(event_of(name), None) is None:
                world.members[event_of(name)] = Member(f"{number}")


def heal(world: SimulatedMirror) -> None:
    """End all that holds the mirror up."""
    world.failing, world.gone, world.is_down = set(), set(), False
    world.grants = {name: grant or Grant.of(["z"]) for name, grant in world.grants.items()}
    for name in world.objects:
        world.members.setdefault(event_of(name), Member("z"))
    world.mailbox["resume"] = Signal("resume", None, id="resume")


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_the_mirror_settles(seed: int):
    """Whatever happens to the org, the stream, the mailbox and the process, in any order: no read
    begins before the margin is over, beyond the budget, without the right to see everything, or
    beside another one (`SimulatedMirror.start`); nothing is due before the deadline; and once the
    disturbances have ended, every object is read again, and every gap has led to reads.
    """
    most = random.Random(seed).choice([None, 400])
    world = settled("Account", "Contact", "Lead", seed=seed, api_calls_per_day=most)
    kills = 0
    for number in range(60):
        for _ in range(world.rng.randint(0, 3)):
            disturb(world, number)
        if world.rng.random() < 0.3:
            world.kill_in = world.rng.randint(0, 30)
        try:
            world.run(world.rng.choice([0.0, 1.0, 30.0, MARGIN, 900.0]))
        except KilledError:
            kills += 1
            world.is_between = world.rng.random() < 0.3
            world.open()
        world.kill_in = None
    heal(world)
    world.open(once=True)
    began = world.now.clock
    assert world.run(SETTLED_WITHIN if most is None else 3 * DAY, every=60.0)
    assert world.is_equal
    assert {gap.name for gap in world.gaps} <= set(world.kept_gaps)
    assert not world.mailbox
    assert world.now.clock - began < 3 * DAY
    assert kills or seed


def settled(*objects: str, seed: int = 1, **settings: float | None) -> SimulatedMirror:
    """Return a mirror whose objects were read."""
    world = SimulatedMirror(seed, list(objects), replace(SETTINGS, **settings))
    world.run(2 * MARGIN)
    assert world.is_equal
    assert {name for _, name, _ in world.begun} == set(objects)
    return world


def test_a_deadline_is_never_missed():
    """A mirror that nothing happens to does what is due by time alone, and when it is due: it looks
    at the mailbox every two seconds, at rights every five minutes, at each object and the members
    every hour.
    """
    world = settled("Account")
    before = len(world.sends)
    world.run(DAY / 4)
    assert len(world.sends) - before == pytest.approx(6 * (12 + 1 + 1), abs=3)
    idle = world.next()
    assert isinstance(idle, actions.Idle)
    assert idle.until <= world.now.clock + 2.0


@pytest.mark.parametrize("seed", range(5))
def test_no_entry_waits_longer_than_a_fixed_number_of_reads(seed: int):
    """However many entries some objects have, those of the others are read within a number of reads
    that depends only on the number of objects; and pieces are merged within a few steps, however
    many events arrive.
    """
    objects = [f"Object{n}" for n in range(3 + seed % 3)]
    world = settled(*objects, seed=seed)
    greedy = objects[: 1 + seed % (len(objects) - 1)]
    world.closed.clear()
    numbers = iter(range(10**6))

    def more() -> None:
        """Let events of the greedy objects arrive while a read is running, for ever."""
        world.pass_time(8.0)
        for name in greedy:
            world.raw += [(name, f"{next(numbers)}") for _ in range(world.rng.choice((1, 60, 300)))]
        if world.rng.random() < 0.1:
            world.raw.append((world.rng.choice(objects), "one"))

    world.on_piece = more
    more()
    world.run(3000.0)
    assert len(world.begun) > 40, "the reads have not been without end"
    open_for = [
        (name, entry, len(world.begun) - world.added[name, entry])
        for name, entries in world.entries.items()
        for entry in entries
    ]
    two_rounds = 2 * 2 * len(objects) + 1
    margin = MARGIN / 8.0  # reads that begin before an entry may be read
    reads = MOST_IDS // IDS_AT_ONCE + 1
    for name, entry, waited in [*world.closed, *open_for]:
        most = two_rounds * (reads if name in greedy else 1)
        assert waited <= margin + most, (name, entry)
    assert {name for name, _, _ in world.closed} == set(objects)
    assert max(world.merges_after) <= EVENTS_IN_A_ROW


def test_a_failed_object_stops_no_other_one_and_is_tried_again():
    """An object whose reads fail is tried again after 10, 20, 40 seconds and so on, up to ten
    minutes; the others are read meanwhile, and so is the object once its reads succeed.
    """
    world = settled("Account", "Contact")
    world.failing = {"Account"}
    began = world.now.clock
    for name in world.objects:
        world.mailbox[name] = Signal("reread", name, id=name)
    world.run(3000.0)
    begun = [at for at, name, _ in world.begun if name == "Account" and at > began]
    delays = [b - a for a, b in pairwise(begun)]
    assert delays == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0][: len(delays)]
    assert len(delays) > 6
    assert not world.entries["Contact"]
    world.failing = set()
    world.run(700.0)
    assert world.is_equal


def test_an_object_that_is_gone_is_asked_for_and_read_once_it_is_back():
    """An object that the org does not have is not read; it is read as a whole once it is back."""
    world = settled("Account", "Contact")
    world.gone = {"Account"}
    world.mailbox["1"] = Signal("reread", "Account", id="1")
    world.run(200.0)
    world.begun.clear()
    world.run(2 * 3600.0, every=30.0)
    assert "Account" not in {name for _, name, _ in world.begun}
    world.gone = set()
    world.asks.clear()
    world.run(3600.0 + 2 * MARGIN, every=30.0)
    (ask,) = world.asks
    assert (ask.entity, ask.record_ids, ask.reason) == ("Account", None, Reason.GAP)
    assert (world.is_equal, world.begun[-1][1:]) == (True, ("Account", "object"))


def test_a_read_waits_for_the_budget_and_goes_on_when_calls_are_a_day_old():
    """No read begins once the calls are used up. Those that no step has stored become old, too, so
    that an idle mirror does not wait for ever.
    """
    world = settled("Account", api_calls_per_day=350)
    world.run(DAY / 2, every=60.0)
    world.sends += [world.now.wall] * 350
    world.mailbox["1"] = Signal("reread", "Account", id="1")
    world.begun.clear()
    world.run(DAY / 2, every=60.0)
    assert not world.begun
    assert any("350 API calls were used" in text for text in world.said)
    (status,) = world.schedule.statuses({}, {})
    assert "API calls" in status.waits["read"]
    world.run(2 * DAY, every=60.0)
    assert world.is_equal


@pytest.mark.parametrize("seed", range(14))
def test_a_signal_is_carried_out_exactly_once(seed: int):
    """A signal leads to one request, and leaves the mailbox after it. If the process is killed in
    between, it may lead to a second one; before, it leads to one.
    """
    world = settled("Account", seed=seed)
    world.asks.clear()
    world.mailbox["1"] = Signal("reread", "Account", "Name = 'a'", id="1")
    world.kill_in = seed % 7
    kills = 0
    try:
        world.run(10.0)
    except KilledError:
        kills += 1
        assert "1" in world.mailbox or world.asks, "a signal was lost"
        world.kill_in = None
        world.open()
        world.run(30.0)
    assert not world.mailbox
    asks = [each for each in world.asks if each.record_ids == ("found",)]
    assert 1 <= len(asks) <= 1 + kills


def test_a_paused_mirror_does_nothing_until_it_is_resumed():
    """During a pause, no event is applied and no read begins; a restart does not end it."""
    world = settled("Account")
    world.mailbox["1"] = Signal("pause", None, id="1")
    world.run(2.0)
    world.raw.append(("Account", "a"))
    world.mailbox["reread"] = Signal("reread", "Account", id="reread")
    world.gaps.append(KeptGap("while it is paused", None))
    world.asks.clear()
    applied, begun = world.applied, len(world.begun)
    for _ in range(2):
        assert not world.run(DAY, every=30.0)
        assert (world.applied, len(world.begun), world.asks) == (applied, begun, [])
        world.open(once=True)
    world.mailbox["2"] = Signal("resume", None, id="2")
    assert world.run(DAY)
    assert (world.is_equal, world.mailbox) == (True, {})
    assert world.kept_gaps == ["while it is paused"]


def test_a_run_with_once_does_not_end_while_a_gap_has_not_led_to_reads():
    """A gap that is found during a pause is not forgotten, even if all events are applied."""
    world = settled("Account")
    world.mailbox["1"] = Signal("pause", None, id="1")
    world.run(2.0)
    world.gaps.append(KeptGap("while it is paused", None))
    world.schedule.end_once_settled()
    assert not world.run(DAY, every=30.0)


def test_a_signal_ends_a_read_that_is_running():
    """Its pieces are not merged; the signal is answered once the read has ended and its log is
    cleared. The object is read again, because its entries are still open.
    """
    world = settled("Account")
    world.mailbox["1"] = Signal("reread", "Account", id="1")
    while world.running is None:
        world.work()
        world.pass_time(1.0)
    reading = world.running
    reading.pieces = 3
    world.read_on()
    world.mailbox["2"] = Signal("abandon-read", "Account", id="2")
    world.pass_time(2.0)
    world.work()
    assert reading.is_stopped
    assert list(world.mailbox) == ["2"]
    world.log["Account"].clear()
    world.run(2 * MARGIN)
    assert (world.mailbox, world.is_equal) == ({}, True)
    (piece,) = {each.read for each in world.log["Account"]}
    assert piece > reading.number


def test_an_interruption_of_the_right_leads_to_one_reread():
    """It is a gap that needs no further rereads, in this process and in the next one."""
    world = settled("Account", "Contact")
    world.asks.clear()
    world.grants["Account"] = Grant()
    world.run(700.0)
    world.grants["Account"] = Grant.of(["again"])
    world.run(1300.0)
    world.open()
    world.run(700.0)
    assert [(each.entity, each.reason) for each in world.asks] == [("Account", Reason.GAP)]
    assert [gap.entity for gap in world.gaps] == ["Account"]
    assert world.is_equal


@pytest.mark.parametrize("seed", range(8))
def test_once_ends_only_when_every_lost_position_has_led_to_reads(seed: int):
    """A run with ``once`` ends when each object that a gap concerns was read by a read that began a
    margin after the gap was found, and not before.
    """
    world = SimulatedMirror(seed, ["Account", "Contact"])
    world.open(once=True)
    world.gaps = [KeptGap("one", "Account"), KeptGap("two", None)][: 1 + seed % 2]
    found = world.now.clock
    assert world.run(DAY)
    assert set(world.kept_gaps) == {gap.name for gap in world.gaps}
    assert all(at >= found + MARGIN for at, _, _ in world.begun)
    assert {ask.entity for ask in world.asks if ask.reason is Reason.GAP} >= {"Account"}
    assert world.is_equal


def test_once_ends_with_an_error_if_an_object_cannot_be_read():
    """It names an object that is gone, or whose records the user may not see, instead of waiting
    for ever.
    """
    world = settled("Account", "Contact")
    world.gone = {"Account"}
    world.mailbox["1"] = Signal("reread", "Account", id="1")
    world.run(MARGIN)
    world.open(once=True)
    with pytest.raises(ConfigurationError, match="Account does not exist"):
        world.run(DAY, every=30.0)
    world = settled("Account")
    world.grants["Account"] = Grant()
    world.open(once=True)
    with pytest.raises(PermissionDeniedError, match="every record of Account"):
        world.run(DAY, every=30.0)


def test_a_sweep_and_a_refresh_are_due_by_the_wall_clock():
    """A sweep begins an interval after the last read of all records, not sooner, and once."""
    world = settled("Account", sweep=7200.0)
    read_at = world.progress["Account"].read_at
    assert read_at is not None
    world.run(7200.0 - (world.now.wall - read_at) - 1.0)
    assert {kind for _, _, kind in world.begun} == {"object"}
    world.run(2.0)
    assert [kind for _, _, kind in world.begun][-1] == "sweep"
    assert math.isclose(world.progress["Account"].swept_at or 0.0, read_at + 7200.0, abs_tol=2.0)


@pytest.mark.parametrize("seed", range(4))
def test_changes_without_an_event_are_found_within_two_intervals(seed: int):
    """Each change without an event is found by the next read of changed records, or by the one
    after that if a response lags: across kills, with stamps that are older than their commits by as
    much as a transaction may take, and beside all other reads.
    """
    every = 3600.0
    world = settled("Account", "Contact", "Lead", seed=seed, drift=every)
    kills = 0
    for _ in range(30):
        name = world.rng.choice(world.objects)
        world.raw.append((name, "a"))
        world.change_silently(name)
        world.kill_in = world.rng.randint(0, 30) if world.rng.random() < 0.3 else None
        try:
            world.run(world.rng.choice([1.0, 30.0, MARGIN, 900.0, every]))
        except KilledError:
            kills += 1
            world.open()
    world.kill_in = None
    world.run(2 * every + 4 * MARGIN)
    assert not any(world.silent.values())
    assert len(world.found) == 30
    assert max(world.found) <= 2 * every + 4 * MARGIN
    assert kills


def changes_read(world: SimulatedMirror, seconds: float) -> int:
    """Let the mirror run, and return how many reads of changed records have begun."""
    before = len(world.begun)
    world.run(seconds)
    return sum(kind == "changes" for _, _, kind in world.begun[before:])


def test_how_often_changed_records_are_read():
    """They are read once an hour; every five minutes if the object has fields that no event
    reports; more seldom if that would take more than a tenth of the org's API calls; never if told
    so. A run with ``once`` reads them at most once.
    """
    hours = 4 * 3600.0
    world = settled("Account", drift=3600.0)
    assert changes_read(world, hours) == pytest.approx(4, abs=1)
    world.has_derived = True
    assert changes_read(world, hours) == pytest.approx(48, abs=1)
    world.limit = 1000
    world.open()  # asks for the limit
    assert changes_read(world, hours) == pytest.approx(100 / 1.2 / 6, abs=1)
    world.open(once=True)
    world.run(hours)
    assert isinstance(world.next(), actions.End)
    assert not changes_read(settled("Account"), hours)


def without_events(seed: int = 1, by: By = "auto", **settings: float) -> SimulatedMirror:
    """Return a mirror of two objects, of which the channel delivers the events of one, or none."""
    world = SimulatedMirror(
        seed, ["Account", "Contact"], replace(SETTINGS, by=by, sweep=DAY, **settings)
    )
    del world.members[event_of("Account")]
    if by == "modstamp":
        world.members.clear()
    world.run(2 * MARGIN)
    return world


def kinds_of(world: SimulatedMirror, name: str) -> list[str]:
    """Return the kinds of the reads of an object."""
    return [kind for _, of, kind in world.begun if of == name]


@pytest.mark.parametrize("seed", range(4))
def test_an_object_without_events_is_read_by_its_stamps(seed: int):
    """Each change is found within an interval and the time of a read, or by the next read if the
    response lags: across kills, and beside objects with events, which are not polled.
    """
    world = without_events(seed, poll=300.0)
    for _ in range(60):
        world.change_silently("Account")
        world.kill_in = world.rng.randint(0, 30) if world.rng.random() < 0.1 else None
        try:
            world.run(world.rng.choice([1.0, 30.0, 900.0, 3600.0]))
        except KilledError:
            world.open()
    world.kill_in = None
    world.run(600.0 + 4 * MARGIN)
    assert not any(world.silent.values())
    assert max(world.found) <= 600.0 + 4 * MARGIN
    assert not any("changes" in kind for kind in kinds_of(world, "Contact"))
    assert not any(status.waits for status in world.schedule.statuses({}, {}))


@pytest.mark.parametrize("by", ["auto", "modstamp"])
def test_an_object_without_events_is_read_whole_from_time_to_time(by: By):
    """No event says which records were deleted, so a comparison of ids alone is not enough."""
    world = without_events(by=by)
    world.run(2 * DAY + 3600.0)
    assert kinds_of(world, "Account").count("object") == 3
    assert "sweep" not in kinds_of(world, "Account")
    assert "sweep" in kinds_of(world, "Contact") or by == "modstamp"


def test_a_change_that_becomes_visible_late_is_found_within_a_day():
    """The first read of a day begins two days earlier, so a record is found that was committed
    longer after its stamp than the overlap allows for.
    """
    world = without_events()
    world.run(DAY)
    stamp = world.now.wall - DAY
    world.silent["Account"].append((world.now.wall, stamp))
    world.run(DAY + 3600.0)
    assert not world.silent["Account"]


def test_an_object_whose_events_begin_is_reread_and_no_longer_polled():
    """Its events say what changes from then on. If they end again, it is polled again."""
    world = without_events(poll=300.0)
    world.members[event_of("Account")] = Member("new")
    world.run(2 * 3600.0)
    assert kinds_of(world, "Account").count("object") == 2
    assert not changes_read(world, 3600.0)
    del world.members[event_of("Account")]
    world.run(2 * 3600.0)
    assert [gap.entity for gap in world.gaps] == ["Account"]
    assert changes_read(world, 3600.0) == pytest.approx(12, abs=1)


def test_an_object_without_events_waits_if_only_events_may_tell():
    """With ``events``, such an object is not polled, and says what to do."""
    world = without_events(by="events")
    (account, contact) = world.schedule.statuses({}, {})
    assert (set(account.waits), contact.waits) == ({"deselected"}, {})
    assert not changes_read(world, 3600.0)
