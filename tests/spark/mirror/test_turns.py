"""Tests of what a mirror does next: no work waits for ever, whatever else arrives."""

from __future__ import annotations

import random
from collections import deque

import pytest

from sfpubsub.errors import (
    AuthenticationError,
    PermissionDeniedError,
    QuotaExceededError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    SfPubSubError,
    StreamUnavailableError,
    WriteError,
)
from sfpubsub.spark.mirror.failures import Failures, Scope, can_resume, scope_of
from sfpubsub.spark.mirror.planning import (
    IDS_AT_ONCE,
    MOST_IDS,
    Wanted,
    smallest_first,
    wanted_reads,
)
from sfpubsub.spark.mirror.turns import EVENTS_IN_A_ROW, Turns
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.reads import AsOf, Entry, Read, heals

# Reads of an object after which it is read as a whole, if its queue keeps growing.
READS_BY_ID = MOST_IDS // IDS_AT_ONCE + 1


class World:
    """The queue, reads and merges of a mirror, with the decisions under test."""

    def __init__(self, rng: random.Random, objects: list[str]) -> None:
        self.rng, self.objects = rng, objects
        self.turns = Turns()
        self.now = 0
        self.queue: dict[str, list[tuple[int, Entry]]] = {name: [] for name in objects}
        self.sweeps: dict[str, int] = {}
        self.running: tuple[Wanted, int] | None = None
        self.pieces: deque[tuple[Wanted, AsOf, bool]] = deque()
        self.begun = 0
        self.waits: dict[str, list[int]] = {name: [] for name in objects}
        self.merge_waits: list[int] = []
        self.since_merge = 0

    def add(self, name: str, record: str | None) -> None:
        """Add a queue entry, caused by an event."""
        self.queue[name].append((self.begun, Entry(record, Cue(Reason.GAP, None, None, self.now))))

    def turn(self, *, events: bool) -> None:
        """Take one turn, as the job does: a read takes some turns in the background."""
        self.now += 1
        while True:
            choice = self.turns.next(events=events, merge=bool(self.pieces), reads=self.possible())
            if not isinstance(choice, Wanted):
                break
            self.begun += 1
            self.running = choice, self.rng.randint(1, 3)
        if choice == "merge":
            self.merge_waits.append(self.since_merge)
            self.since_merge = 0
            self.merge()
        elif self.pieces:
            self.since_merge += 1
        self.fetch()

    def possible(self) -> list[Wanted]:
        """Return the reads that can begin now."""
        if self.running is not None:
            return []
        ready = [each for each in self.objects if all(p[0].entity != each for p in self.pieces)]
        entries = {name: [entry for _, entry in queue] for name, queue in self.queue.items()}
        found = wanted_reads(entries, ready, AsOf(self.now, 0))
        return found + [Wanted(name, "sweep") for name in ready if name in self.sweeps]

    def fetch(self) -> None:
        """Let the running read return a piece."""
        if self.running is None:
            return
        wanted, left = self.running
        is_last = wanted.kind == "ids" or left == 1
        self.pieces.append((wanted, AsOf(self.now, 0), is_last))
        self.running = None if is_last else (wanted, left - 1)

    def merge(self) -> None:
        """Merge a piece, and note how many reads began while each closed entry was waiting."""
        wanted, as_of, is_last = self.pieces.popleft()
        name = wanted.entity
        if wanted.kind == "sweep":
            if is_last:
                self.waits[name].append(self.begun - self.sweeps.pop(name))
            return
        if wanted.kind == "object" and not is_last:
            return
        read, ids, left = Read(as_of, None, None), set(wanted.record_ids), []
        for since, entry in self.queue[name]:
            is_read = wanted.kind == "object" or entry.record_id in ids
            if is_read and heals(read, entry):
                self.waits[name].append(self.begun - since)
            else:
                left.append((since, entry))
        self.queue[name] = left


@pytest.mark.parametrize("seed", range(8))
def test_no_entry_waits_longer_than_a_fixed_number_of_turns(seed: int):
    """Whatever arrives, each entry and each sweep is served within a number of reads that depends
    only on the number of objects, and each piece is merged within a few turns.

    In the worst case, the reads of all objects and all sweeps come first, twice for each read that
    the object's older entries take. An object with few entries needs one read.
    """
    print("seed", seed)
    rng = random.Random(seed)
    objects = [f"Object{n}" for n in range(rng.randint(3, 5))]
    world = World(rng, objects)
    greedy = objects[: rng.randint(2, len(objects) - 1)]
    rng.shuffle(objects)
    for number in range(800):
        for name in greedy:  # more than is read at a time, for ever
            for _ in range(rng.choice((1, 3, 40))):
                world.add(name, f"{rng.randrange(10**6)}")
        other = rng.choice(objects)
        if number % 37 == 0:
            world.add(other, None if rng.random() < 0.2 else "one")
        if number % 53 == 0:
            world.sweeps.setdefault(other, world.begun)
        # without events, merges keep up with reads, and an object is soon ready for another read
        world.turn(events=number % 400 < 200)
    two_rounds = 2 * 2 * len(objects) + 1
    for name, queue in world.queue.items():
        most = two_rounds * (READS_BY_ID if name in greedy else 1)
        open_for = [world.begun - since for since, _ in queue]
        assert max([*world.waits[name], *open_for], default=0) <= most, name
    assert world.begun > 3 * two_rounds
    assert max(world.merge_waits) <= EVENTS_IN_A_ROW


def test_trickle_of_one_object_does_not_starve_the_others():
    """An object with new entries all the time, first in order, gets every second read at most, if
    another one has an entry.
    """
    turns = Turns()
    reads = [Wanted("Account", "ids", ("1",)), Wanted("Contact", "ids", ("2",))]
    found = [turns.next(events=False, merge=False, reads=reads) for _ in range(6)]
    assert found == reads * 3
    sweep = [reads[0], Wanted("Account", "sweep")]
    assert {turns.next(events=True, merge=True, reads=sweep) for _ in range(2)} == set(sweep)


def test_pieces_are_merged_between_events():
    """While events arrive without end, every third step merges; while they do not, every step."""
    turns = Turns()
    found = [turns.next(events=True, merge=True, reads=[]) for _ in range(6)]
    assert found == ["events", "events", "merge"] * 2
    assert turns.next(events=False, merge=True, reads=[]) == "merge"
    assert turns.next(events=False, merge=False, reads=[]) is None


@pytest.mark.parametrize(
    ("error", "scope", "resumes"),
    [
        (StreamUnavailableError("down"), Scope.ORG, True),
        (QuotaExceededError("used up", retryable=False), Scope.ORG, True),
        (AuthenticationError("later", retryable=True), Scope.ORG, True),
        (AuthenticationError("refused"), Scope.MIRROR, False),
        (WriteError("full"), Scope.MIRROR, False),
        (ValueError("a bug"), Scope.MIRROR, False),
        (RequestRefusedError("the job failed"), Scope.OBJECT, False),
        (RequestRefusedError("x", error_code="QUERY_TIMEOUT", retryable=True), Scope.OBJECT, True),
        (RequestRefusedError("x", status=404, error_code="NOT_FOUND"), Scope.GONE, False),
        (RequestRefusedError("x", status=400, error_code="INVALID_TYPE"), Scope.GONE, False),
        (ReadExpiredError("x", status=404, error_code="NOT_FOUND"), Scope.OBJECT, False),
        (PermissionDeniedError("x"), Scope.OBJECT, False),
        (RemoteProtocolError("x"), Scope.OBJECT, False),
    ],
)
def test_error_stops_no_more_than_it_has_to(error: BaseException, scope: Scope, resumes: bool):
    """An error of one object stops only that object, and its read goes on only if that can help."""
    assert scope_of(error) is scope
    assert can_resume(error) is resumes


def test_object_whose_read_failed_waits_alone():
    """After a failed read, only its object waits, longer each time, with the reason; an error of
    the org holds back every request.
    """
    waiting = Waiting()
    failures = Failures(waiting)
    refused = RequestRefusedError("the query job 750 of Account ended as Failed")
    for delay in (10.0, 20.0):
        assert failures.failed("Account", refused, 0.0, 5.0) is Scope.OBJECT
        assert "ended as Failed" in waiting.of("Account")[Why.READ].text
        assert not failures.may_read("Account", delay - 1)
        assert failures.may_read("Contact", 0.0)
        assert failures.may_read("Account", delay)
        assert not waiting.of("Account")
    failures.succeeded("Account")
    failures.failed("Account", refused, 0.0, 5.0)
    assert failures.may_read("Account", 10.0)
    failures.failed("Account", refused, 0.0, 5.0)  # a describe request, during a read
    failures.succeeded("Account")  # the read
    assert not waiting.of("Account")
    down: SfPubSubError = StreamUnavailableError("down")
    assert failures.failed("Account", down, 100.0, 5.0) is Scope.ORG
    assert not failures.may_ask(109.0)
    assert "down" in (failures.reason(109.0) or "")
    assert failures.may_ask(110.0)


def test_object_that_is_gone_is_looked_at_again_at_most_hourly():
    """An object that the org no longer has is asked about again after a minute, then after twice
    the time, up to an hour; until then it is not read.
    """
    waiting = Waiting()
    failures = Failures(waiting)
    gone = RequestRefusedError("no such object", status=404, error_code="NOT_FOUND")
    now, looks = 0.0, []
    for _ in range(9):
        assert failures.failed("Account", gone, now, now) is Scope.GONE
        delay = next(d for d in range(10**4) if failures.may_look("Account", now + d))
        looks.append(delay)
        now += delay
    assert looks == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert waiting.of("Account")[Why.GONE].since == 0.0
    assert not failures.may_read("Account", now)
    assert failures.is_there("Account")
    assert failures.may_read("Account", now)
    assert not failures.is_there("Account")


def test_after_a_gap_the_smallest_object_is_read_first():
    """If all objects wait for a read, they are read once each, by ascending number of records;
    objects that were never read come last.
    """
    entry = Entry(None, Cue(Reason.GAP, None, None, 0), 1)
    objects = ["New", "Case", "Lead", "Account"]
    order = smallest_first(objects, {"Case": 500, "Lead": 0, "Account": 30, "New": None})
    turns, queue, begun = Turns(), {name: [entry] for name in objects}, []
    while reads := wanted_reads(queue, [name for name in order if name in queue], AsOf(1, 1)):
        choice = turns.next(events=True, merge=True, reads=reads)
        assert isinstance(choice, Wanted)
        begun.append(choice.entity)
        del queue[choice.entity]
    assert begun == ["Lead", "Account", "Case", "New"]
