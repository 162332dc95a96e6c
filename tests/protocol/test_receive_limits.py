"""Tests of the receive limits: how many events may be requested, limited by number and by bytes."""

from __future__ import annotations

import random

import pytest

from sfpubsub.config import Limits
from sfpubsub.protocol.receive_limits import ReceiveLimits
from tests.protocol.scripted import event

MB = 1_000_000


def receive(receive_limits: ReceiveLimits, count: int, size: int) -> None:
    """Receive *count* events of *size* bytes each, which then wait to be read."""
    receive_limits.seen([event(number) for number in range(count)], count * size)
    receive_limits.delivered(count, count * size)


def test_first_request_is_small_while_sizes_are_unknown() -> None:
    """At first, ten events are requested, since each may be up to 1 MB; with a memory limit of less
    than 10 MB, fewer.
    """
    assert ReceiveLimits(Limits()).room(0) == 10
    assert ReceiveLimits(Limits(max_bytes=4 * 1024 * 1024)).room(0) == 4
    assert ReceiveLimits(Limits(max_bytes=10)).room(0) == 1


def test_small_events_allow_the_full_window_at_once() -> None:
    """After the first response has shown that events are small, 100 events may be requested."""
    receive_limits = ReceiveLimits(Limits())
    receive(receive_limits, 1, 300)

    assert receive_limits.room(0) == 100


def test_large_events_are_requested_only_if_they_fit() -> None:
    """No more events are requested than fit into the memory limit at their average size, beside
    those that still wait to be read.
    """
    receive_limits = ReceiveLimits(Limits(max_bytes=32 * MB))
    receive(receive_limits, 3, MB)
    assert receive_limits.room(0) == 29
    receive(receive_limits, 29, MB)
    assert receive_limits.room(0) == 0
    assert receive_limits.full
    assert not receive_limits.overfull
    receive_limits.taken(10, 10 * MB)

    assert receive_limits.room(0) == 10
    assert not receive_limits.full


def test_event_larger_than_the_limit_is_requested_alone() -> None:
    """An event that exceeds the memory limit is requested alone: nothing more is requested while it
    waits to be read.
    """
    receive_limits = ReceiveLimits(Limits(max_bytes=100))
    receive_limits.seen([event(1)], 150)
    assert receive_limits.room(0) == 1
    receive_limits.delivered(1, 150)

    assert receive_limits.room(0) == 0


def test_size_estimate_rises_at_once_and_falls_gradually() -> None:
    """Larger events immediately reduce the number requested, since underestimating would exceed the
    memory limit; smaller events raise it only gradually.
    """
    receive_limits = ReceiveLimits(Limits(max_bytes=32 * MB))
    receive_limits.seen([event(1)] * 100, 100 * 200)
    receive_limits.seen([event(1)] * 3, 3 * MB)
    assert receive_limits.room(0) == 32
    receive_limits.seen([event(1)] * 32, 32 * 200)
    assert 40 < receive_limits.room(0) < 60
    for _ in range(10):
        receive_limits.seen([event(1)] * 50, 50 * 200)

    assert receive_limits.room(0) == 100


def test_one_large_event_does_not_shrink_the_window() -> None:
    """A single large event among small ones has no effect, because the average size is what
    counts.
    """
    receive_limits = ReceiveLimits(Limits())
    receive_limits.seen([event(1)] * 50, MB + 49 * 200)

    assert receive_limits.room(0) == 100


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
def test_event_counts_limit_requests_too(limits: Limits, unacked: int, room: int) -> None:
    """The limits for waiting events and for unacked events also apply; the strictest limit wins."""
    receive_limits = ReceiveLimits(limits)
    receive(receive_limits, 50, 1)

    assert receive_limits.room(unacked) == room


def test_discarded_events_make_room() -> None:
    """Discarded events no longer count as waiting, so events are requested again."""
    receive_limits = ReceiveLimits(Limits(max_bytes=10))
    receive(receive_limits, 2, 10)
    assert receive_limits.overfull
    receive_limits.discarded()

    assert not receive_limits.overfull
    assert receive_limits.room(0) == 1


def test_waiting_bytes_stay_near_the_limit() -> None:
    """Whatever the event sizes, waiting events take up less than 1.7 times the memory limit if no
    more are delivered than requested.
    """
    chance = random.Random(5)
    for _ in range(200):
        receive_limits, most = ReceiveLimits(Limits()), chance.choice([300, 20_000, MB])
        for _ in range(60):
            sizes = [chance.randint(1, most) for _ in range(receive_limits.room(0))]
            if sizes:
                receive_limits.seen([event(1)] * len(sizes), sum(sizes))
                receive_limits.delivered(len(sizes), sum(sizes))
            assert receive_limits.waiting_bytes < 1.7 * Limits().max_bytes
            if chance.random() < 0.3:
                receive_limits.discarded()
