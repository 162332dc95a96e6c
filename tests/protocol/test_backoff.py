"""Delays between attempts."""

from __future__ import annotations

from sfpubsub.protocol.backoff import Backoff


def test_the_ceiling_doubles_up_to_the_maximum() -> None:
    """A service that is down is asked less and less often, and never given up for good."""
    backoff = Backoff(1.0, 10.0)

    assert [backoff.next(0.5) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_the_jitter_is_full() -> None:
    """Clients that failed together do not come back together."""
    backoff = Backoff(8.0, 8.0)

    assert backoff.next(0.0) == 0.0
    assert backoff.next(0.75) == 6.0


def test_a_reset_starts_over() -> None:
    """After a sign of success the next failure is the first again."""
    backoff = Backoff(1.0, 10.0)
    for _ in range(5):
        backoff.next(1.0)
    backoff.reset()

    assert backoff.next(1.0) == 1.0
