"""Tests of which responses are keepalives."""

from __future__ import annotations

from sfpubsub.protocol.events import Response
from tests.protocol.scripted import answer, events, keepalive, rid


def test_empty_response_with_position_and_credit_is_a_keepalive() -> None:
    """An empty response with a position and pending credit is a keepalive at that position."""
    assert keepalive(3).keepalive == rid(3)


def test_response_with_events_is_not_a_keepalive() -> None:
    """A response with events is not a keepalive, even if it has a position and pending credit."""
    assert events(1, 2).keepalive is None


def test_commit_answer_is_not_a_keepalive() -> None:
    """A response to a commit is not a keepalive: its position and pending count may be stale."""
    assert answer("1-1", pending=50).keepalive is None


def test_response_without_pending_credit_is_not_a_keepalive() -> None:
    """An empty response without pending credit is not a keepalive, because the service sends
    keepalives only while events are requested.
    """
    assert Response((), rid(1), 0).keepalive is None


def test_response_without_position_is_not_a_keepalive() -> None:
    """An empty response without a position is not a keepalive."""
    assert Response((), None, 5).keepalive is None
