"""Tests of a job's health values: whether it has caught up, and how many events are confirmed."""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.intake import Intake
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.receive_limits import ReceiveLimits
from sfpubsub.types import RawEvent, ReplayId


def event(number: int) -> RawEvent:
    """Return an event whose id and position are derived from *number*."""
    return RawEvent(f"e{number}", "s", b"x", ReplayId(bytes([number])))


def test_caught_up_only_while_a_keepalive_is_the_last_message():
    """A keepalive means that the subscription has caught up, until more events arrive.

    A new stream means that it has not caught up yet.
    """
    intake = Intake(ReceiveLimits(Limits()), Ledger(), None)
    keepalive = Response(latest_replay_id=ReplayId(b"k"), pending=5)
    assert not intake.caught_up
    intake.take_in(keepalive)
    assert intake.caught_up
    intake.take_in(Response(events=(event(1),), pending=4))
    assert not intake.caught_up
    intake.take_in(keepalive)
    intake.new_stream()
    assert not intake.caught_up


def test_confirmed_events_are_counted_once():
    """Each confirmed event counts once, however often its position is confirmed.

    Keepalives don't count, and without a ledger the count stays 0.
    """
    ledger = Ledger()
    intake = Intake(ReceiveLimits(Limits()), ledger, None)
    intake.take_in(Response(events=(event(1), event(2)), pending=5))
    intake.take_in(Response(latest_replay_id=ReplayId(b"k"), pending=5))
    intake.take_in(Response(events=(event(3),), pending=5))
    ledger.ack(1, 2)
    assert intake.confirmed == 0
    ledger.confirm(3)
    assert intake.confirmed == 2
    ledger.ack(3, 3)
    ledger.confirm(4)
    ledger.confirm(4)
    assert intake.confirmed == 3
    assert Intake(ReceiveLimits(Limits()), None, None).confirmed == 0
