"""What the health says to whoever moves events on: what is safe, and whether anything is left."""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.appetite import Appetite
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.intake import Intake
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.types import RawEvent, ReplayId


def event(number: int) -> RawEvent:
    return RawEvent(f"e{number}", "s", b"x", ReplayId(bytes([number])))


def test_only_a_keepalive_behind_everything_says_that_nothing_is_left():
    """Not one before further events, and none of an earlier stream."""
    intake = Intake(Appetite(Limits()), Ledger(), None)
    keepalive = Response(latest_replay_id=ReplayId(b"k"), pending=5)
    assert not intake.caught_up
    intake.take_in(keepalive)
    assert intake.caught_up
    intake.take_in(Response(events=(event(1),), pending=4))
    assert not intake.caught_up
    intake.take_in(keepalive)
    intake.new_stream()
    assert not intake.caught_up


def test_confirmed_events_are_counted_once_each_without_keepalives():
    """A position behind which nothing was acked counts nothing."""
    ledger = Ledger()
    intake = Intake(Appetite(Limits()), ledger, None)
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
    assert Intake(Appetite(Limits()), None, None).confirmed == 0
