"""Tests of the intake: events are delivered once, positions recorded and memory counted."""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.commands import Deliver, Wake
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.intake import Intake
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.receive_limits import ReceiveLimits
from sfpubsub.protocol.resume import Resume
from sfpubsub.types import StartPosition
from tests.protocol.scripted import NAME, event, events, keepalive, rid


class Managed:
    """The intake and the ledger of a managed subscription, on their first stream."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.ledger = Ledger()
        self.intake = Intake(ReceiveLimits(limits or Limits()), self.ledger, None)
        self.stream = 0
        self.new_stream()

    def new_stream(self) -> None:
        self.stream += 1
        self.intake.new_stream()
        self.ledger.new_stream()


def plain(*, tracked: bool) -> tuple[Intake, Resume, Ledger]:
    """Return a plain subscription's intake, resume position and ledger.

    *tracked* says whether the intake uses the ledger.
    """
    resume, ledger = Resume(NAME, StartPosition.latest(), None), Ledger()
    return Intake(ReceiveLimits(Limits()), ledger if tracked else None, resume), resume, ledger


def test_events_are_numbered_in_order_of_arrival() -> None:
    """Events are delivered and numbered in the order received, regardless of their positions."""
    managed = Managed()
    first, second = events(5, 3, size=4), events(8)

    assert managed.intake.take_in(first) == [Deliver(first.events, 1, "rpc-5", 8)]
    assert managed.intake.take_in(second) == [Deliver(second.events, 3, "rpc-8", 1)]
    assert managed.intake.last_position == rid(8)


def test_redelivered_events_are_dropped_and_counted() -> None:
    """Redelivered events are counted but not delivered; new events that follow are delivered."""
    managed = Managed()
    managed.intake.take_in(events(1, 2))
    managed.new_stream()

    (deliver,) = managed.intake.take_in(events(1, 2, 3))

    assert isinstance(deliver, Deliver)
    assert deliver.events == (event(3),)
    assert managed.intake.redelivered == 2
    managed.new_stream()
    assert managed.intake.take_in(events(1, 2, 3)) == []


def test_duplicate_event_in_a_response_is_delivered_once() -> None:
    """An event that a response contains twice is delivered once.

    Once it is confirmed, the ledger contains no trace of the duplicate.
    """
    managed = Managed()

    (deliver,) = managed.intake.take_in(events(1, 1, 2))

    assert isinstance(deliver, Deliver)
    assert deliver.events == (event(1), event(2))
    managed.ledger.ack(1, 2)
    managed.ledger.confirm(9)
    assert not managed.ledger.holds_events


def test_response_without_position_changes_nothing() -> None:
    """An empty response without a position delivers nothing and keeps the last position."""
    managed = Managed()
    managed.intake.take_in(events(1))

    assert managed.intake.take_in(Response()) == []
    assert managed.intake.last_position == rid(1)


def test_keepalive_wakes_an_application_that_stores_positions() -> None:
    """A keepalive wakes the application to store its position, even on an idle topic.

    The stored position would otherwise become too old to resume from.
    """
    intake, resume, ledger = plain(tracked=True)

    assert intake.take_in(keepalive(4)) == [Wake()]
    assert resume.last == rid(4)
    assert ledger.newest_done is not None


def test_untracked_subscription_uses_no_ledger() -> None:
    """Without a position store, events are delivered, and the ledger stays empty."""
    intake, resume, ledger = plain(tracked=False)

    assert intake.take_in(keepalive(4)) == []
    (deliver,) = intake.take_in(events(5, 6))
    assert isinstance(deliver, Deliver)
    assert resume.last == rid(6)
    assert ledger.newest_done is None
    assert not ledger.holds_events
    assert intake.unacked == 0


def test_unacked_events_reduce_the_room() -> None:
    """An event reduces the number that may be in flight until it is acked and confirmed."""
    managed = Managed(Limits(max_unacked=3))
    managed.intake.take_in(events(1, 2))
    assert managed.intake.unacked == 0, "not read yet"
    assert managed.intake.room == 1
    managed.intake.taken(2, 2)
    assert managed.intake.unacked == 2
    assert managed.intake.delivered == 2
    managed.ledger.ack(1, 1)
    assert managed.intake.room == 1
    managed.ledger.confirm(1)

    assert managed.intake.room == 2


def test_redelivered_events_take_no_room_but_show_their_size() -> None:
    """Redelivered events are not counted as in flight, but affect the estimated event size."""
    managed = Managed(Limits(max_bytes=100, max_pending_count=4))
    managed.intake.take_in(events(1, 2, size=10))
    managed.new_stream()
    managed.intake.take_in(events(1, 2, 3, size=20))

    assert managed.intake.room == 1
    managed.intake.discarded()
    assert managed.intake.room == 4
