"""What comes in: each event once, every position noted, memory counted."""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.appetite import Appetite
from sfpubsub.protocol.commands import Deliver, Wake
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.intake import Intake
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.resume import Resume
from sfpubsub.types import StartPosition
from tests.protocol.scripted import NAME, event, events, keepalive, rid


class Managed:
    """An intake with its ledger, on stream 1."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.ledger = Ledger()
        self.intake = Intake(Appetite(limits or Limits()), self.ledger, None)
        self.stream = 0
        self.new_stream()

    def new_stream(self) -> None:
        self.stream += 1
        self.intake.new_stream()
        self.ledger.new_stream()


def plain(*, tracked: bool) -> tuple[Intake, Resume, Ledger]:
    resume, ledger = Resume(NAME, StartPosition.latest(), None), Ledger()
    return Intake(Appetite(Limits()), ledger if tracked else None, resume), resume, ledger


def test_events_are_delivered_in_order_of_arrival() -> None:
    """With numbers of ours that never repeat."""
    managed = Managed()
    first, second = events(5, 3, size=4), events(8)

    assert managed.intake.take_in(first) == [Deliver(first.events, 1, "rpc-5", 8)]
    assert managed.intake.take_in(second) == [Deliver(second.events, 3, "rpc-8", 1)]
    assert managed.intake.last_position == rid(8)


def test_redeliveries_are_not_delivered_again() -> None:
    """Only what is new goes to the application; the rest is counted."""
    managed = Managed()
    managed.intake.take_in(events(1, 2))
    managed.new_stream()

    (deliver,) = managed.intake.take_in(events(1, 2, 3))

    assert isinstance(deliver, Deliver)
    assert deliver.events == (event(3),)
    assert managed.intake.redelivered == 2
    managed.new_stream()
    assert managed.intake.take_in(events(1, 2, 3)) == []


def test_an_event_that_stands_twice_in_a_response_is_delivered_once() -> None:
    """And can be confirmed without harm."""
    managed = Managed()

    (deliver,) = managed.intake.take_in(events(1, 1, 2))

    assert isinstance(deliver, Deliver)
    assert deliver.events == (event(1), event(2))
    managed.ledger.ack(1, 2)
    managed.ledger.confirm(9)
    assert not managed.ledger.holds_events


def test_a_response_without_position_changes_nothing() -> None:
    """A bare commit answer or an odd empty message."""
    managed = Managed()
    managed.intake.take_in(events(1))

    assert managed.intake.take_in(Response()) == []
    assert managed.intake.last_position == rid(1)


def test_a_keepalive_of_a_stored_subscription_wakes_the_application() -> None:
    """An idle topic's position has to be stored, or it grows too old to resume from."""
    intake, resume, ledger = plain(tracked=True)

    assert intake.take_in(keepalive(4)) == [Wake()]
    assert resume.last == rid(4)
    assert ledger.newest_done is not None


def test_an_untracked_subscription_keeps_no_ledger() -> None:
    """Memory does not grow with what nobody asks for."""
    intake, resume, ledger = plain(tracked=False)

    assert intake.take_in(keepalive(4)) == []
    (deliver,) = intake.take_in(events(5, 6))
    assert isinstance(deliver, Deliver)
    assert resume.last == rid(6)
    assert ledger.newest_done is None
    assert not ledger.holds_events
    assert intake.unacked == 0


def test_unacked_events_leave_less_room() -> None:
    """No more is on its way than may be unacked, read or not; an ack makes room again."""
    managed = Managed(Limits(max_unacked=3))
    managed.intake.take_in(events(1, 2))
    assert managed.intake.unacked == 0, "not read yet"
    assert managed.intake.room == 1
    managed.intake.taken(2, 2)
    assert managed.intake.unacked == 2
    assert managed.intake.delivered == 2
    managed.ledger.ack(1, 1)

    assert managed.intake.room == 2


def test_redeliveries_do_not_wait_to_be_read() -> None:
    """They take no room, and still tell how large an event is."""
    managed = Managed(Limits(max_bytes=100, max_pending_count=4))
    managed.intake.take_in(events(1, 2, size=10))
    managed.new_stream()
    managed.intake.take_in(events(1, 2, 3, size=20))

    assert managed.intake.room == 1
    managed.intake.discarded()
    assert managed.intake.room == 4
