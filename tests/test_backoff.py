"""Tests of the exponential delay between attempts."""

from __future__ import annotations

from sfpubsub.backoff import Backoff


def test_delay_doubles_up_to_the_maximum() -> None:
    """The upper limit of the delay doubles with each attempt until it reaches the maximum, and
    stays there.
    """
    backoff = Backoff(1.0, 10.0)

    assert [backoff.next(0.5) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_covers_the_whole_delay() -> None:
    """The delay is random between 0 and the upper limit, so that clients that failed together don't
    retry together.
    """
    backoff = Backoff(8.0, 8.0)

    assert backoff.next(0.0) == 0.0
    assert backoff.next(0.75) == 6.0


def test_reset_restarts_from_the_initial_delay() -> None:
    """After a reset, which follows a success, the next delay is as short as the first."""
    backoff = Backoff(1.0, 10.0)
    for _ in range(5):
        backoff.next(1.0)
    backoff.reset()

    assert backoff.next() == 1.0
