"""Room: how many events may be on their way, by number and by bytes."""

from __future__ import annotations

import random

import pytest

from sfpubsub.config import Limits
from sfpubsub.protocol.appetite import Appetite
from tests.protocol.scripted import event

MB = 1_000_000


def bring(appetite: Appetite, count: int, size: int) -> None:
    """Receive events of that size each, which wait to be read."""
    appetite.seen([event(number) for number in range(count)], count * size)
    appetite.delivered(count, count * size)


def test_ten_events_of_unknown_size_are_asked_for() -> None:
    """They may be of a megabyte each; with less memory than that needs, fewer."""
    assert Appetite(Limits()).room(0) == 10
    assert Appetite(Limits(max_bytes=4 * 1024 * 1024)).room(0) == 4
    assert Appetite(Limits(max_bytes=10)).room(0) == 1


def test_small_events_open_the_whole_window_at_once() -> None:
    """The first response tells their size; nothing is slower for long."""
    appetite = Appetite(Limits())
    bring(appetite, 1, 300)

    assert appetite.room(0) == 100


def test_large_events_are_asked_for_as_far_as_they_fit() -> None:
    """What waits and what is on its way fit into the bound together."""
    appetite = Appetite(Limits(max_bytes=32 * MB))
    bring(appetite, 3, MB)
    assert appetite.room(0) == 29
    bring(appetite, 29, MB)
    assert appetite.room(0) == 0
    assert appetite.full
    assert not appetite.overfull
    appetite.taken(10, 10 * MB)

    assert appetite.room(0) == 10
    assert not appetite.full


def test_an_event_larger_than_the_bound_comes_alone() -> None:
    """It has to come through; nothing else waits beside it."""
    appetite = Appetite(Limits(max_bytes=100))
    appetite.seen([event(1)], 150)
    assert appetite.room(0) == 1
    appetite.delivered(1, 150)

    assert appetite.room(0) == 0


def test_larger_events_count_at_once_and_smaller_ones_by_and_by() -> None:
    """Too small a guess is dropped with the stream; too large a one is only slower."""
    appetite = Appetite(Limits(max_bytes=32 * MB))
    appetite.seen([event(1)] * 100, 100 * 200)
    appetite.seen([event(1)] * 3, 3 * MB)
    assert appetite.room(0) == 32
    appetite.seen([event(1)] * 32, 32 * 200)
    assert 40 < appetite.room(0) < 60
    for _ in range(10):
        appetite.seen([event(1)] * 50, 50 * 200)

    assert appetite.room(0) == 100


def test_one_large_event_among_small_ones_changes_little() -> None:
    """It is the average that has to fit."""
    appetite = Appetite(Limits())
    appetite.seen([event(1)] * 50, MB + 49 * 200)

    assert appetite.room(0) == 100


@pytest.mark.parametrize(
    ("limits", "unacked", "room"),
    [
        (Limits(max_pending_count=60), 0, 10),
        (Limits(max_pending_count=40), 0, 0),
        (Limits(max_unacked=70), 0, 70),
        (Limits(max_unacked=70), 65, 5),
        (Limits(max_unacked=70), 80, 0),
    ],
)
def test_number_and_acks_bound_it_too(limits: Limits, unacked: int, room: int) -> None:
    """The least of them counts."""
    appetite = Appetite(limits)
    bring(appetite, 50, 1)

    assert appetite.room(unacked) == room


def test_what_is_discarded_makes_room() -> None:
    """Nobody will read it."""
    appetite = Appetite(Limits(max_bytes=10))
    bring(appetite, 2, 10)
    assert appetite.overfull
    appetite.discarded()

    assert not appetite.overfull
    assert appetite.room(0) == 1


def test_the_bytes_stay_near_their_bound_whatever_comes() -> None:
    """Asked for by what fits, events of any mixture of sizes stay near the bound."""
    chance = random.Random(5)
    for _ in range(200):
        appetite, most = Appetite(Limits()), chance.choice([300, 20_000, MB])
        for _ in range(60):
            sizes = [chance.randint(1, most) for _ in range(appetite.room(0))]
            if sizes:
                appetite.seen([event(1)] * len(sizes), sum(sizes))
                appetite.delivered(len(sizes), sum(sizes))
            assert appetite.waiting_bytes < 1.7 * Limits().max_bytes
            if chance.random() < 0.3:
                appetite.discarded()
