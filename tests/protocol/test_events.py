"""What counts as a keepalive."""

from __future__ import annotations

from sfpubsub.protocol.events import Response
from tests.protocol.scripted import answer, events, keepalive, rid


def test_a_keepalive_has_a_position_and_something_pending() -> None:
    """An empty response with credit left says where the stream stands."""
    assert keepalive(3).keepalive == rid(3)


def test_events_are_no_keepalive() -> None:
    """The positions of events are theirs, whatever the response says besides."""
    assert events(1, 2).keepalive is None


def test_a_commit_answer_is_no_keepalive_whatever_it_carries() -> None:
    """Its position and figure may be stale, so its position is never taken."""
    assert answer("1-1", pending=50).keepalive is None


def test_nothing_pending_is_no_keepalive() -> None:
    """The service sends keepalives only while something is pending."""
    assert Response((), rid(1), 0).keepalive is None


def test_a_keepalive_without_position_has_none() -> None:
    """There is nothing to take."""
    assert Response((), None, 5).keepalive is None
