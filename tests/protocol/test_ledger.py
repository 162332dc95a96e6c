"""Tests of the ledger, which tracks which positions may be committed."""

from __future__ import annotations

from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.run import FULL
from tests.protocol.scripted import event, rid


def filled(*numbers: int) -> Ledger:
    """Return a ledger, on its first stream, that contains ``event(n)`` with sequence number *n* for
    each *n* in *numbers*.
    """
    ledger = Ledger()
    ledger.new_stream()
    for number in numbers:
        ledger.add((event(number),), number)
    return ledger


def candidate(ledger: Ledger) -> object:
    """Return the replay id that may be committed now; None if there is none."""
    return None if ledger.candidate is None else ledger.candidate.replay_id


def test_unacked_events_may_not_be_committed() -> None:
    """Received events provide no position to commit until they are acked."""
    assert filled(1, 2).candidate is None


def test_only_the_acked_prefix_may_be_committed() -> None:
    """Acks out of order provide no position to commit until all earlier events are acked."""
    ledger = filled(1, 2, 3)
    ledger.ack(3, 3)
    ledger.ack(2, 2)
    assert ledger.candidate is None
    ledger.ack(1, 1)

    assert candidate(ledger) == rid(3)
    assert ledger.newest_done == ledger.newest_done_event == ledger.candidate


def test_repeated_and_unknown_acks_are_ignored() -> None:
    """Acking an event twice, or one that does not exist, changes nothing and counts as 0 events."""
    ledger = filled(1, 2)

    assert ledger.ack(1, 1) == 1
    assert ledger.ack(1, 1) == 0
    assert ledger.ack(7, 9) == 0
    assert ledger.unacked == 1


def test_keepalive_is_committed_only_after_earlier_events() -> None:
    """A keepalive's position needs no ack, but may be committed only once all earlier events are
    acked.
    """
    ledger = filled(1)
    ledger.add_keepalive(rid(5))
    assert ledger.candidate is None
    ledger.ack(1, 1)

    assert candidate(ledger) == rid(5)
    assert ledger.newest_done_event is not None
    assert ledger.newest_done_event.replay_id == rid(1)


def test_consecutive_keepalives_are_merged() -> None:
    """Consecutive keepalives, however many, share a single run of the ledger, and the newest may be
    committed.
    """
    ledger = filled(1)
    for number in range(10, 50):
        ledger.add_keepalive(rid(number))
    assert len(ledger._runs) == 1
    ledger.ack(1, 1)
    for number in range(50, 90):
        ledger.add_keepalive(rid(number))

    assert len(ledger._runs) == 1
    assert candidate(ledger) == rid(89)
    assert ledger.candidate is not None
    ledger.confirm(ledger.candidate.order)
    for number in range(90, 95):
        ledger.add_keepalive(rid(number))
    assert len(ledger._runs) == 1
    assert candidate(ledger) == rid(94)


def test_merged_keepalive_can_still_be_confirmed() -> None:
    """Confirming a keepalive that has since been merged into a newer one removes the events before
    it, and keeps the newer one.
    """
    ledger = filled(1)
    ledger.ack(1, 1)
    ledger.add_keepalive(rid(10))
    assert ledger.candidate is not None
    sent = ledger.candidate.order
    ledger.add_keepalive(rid(11))
    ledger.confirm(sent)

    assert candidate(ledger) == rid(11)
    assert ledger.done_events == 0
    assert not ledger.holds_events


def test_confirmed_entries_are_removed() -> None:
    """Confirming a position removes the entries up to it, so their events are no longer known."""
    ledger = filled(1, 2, 3)
    ledger.ack(1, 2)
    assert ledger.candidate is not None
    ledger.confirm(ledger.candidate.order)

    assert ledger.candidate is None
    assert ledger.newest_done is None
    assert ledger.newest_done_event is None
    assert not ledger.is_known(event(1))
    assert ledger.is_known(event(3))


def test_position_must_be_sent_on_the_current_stream() -> None:
    """An acked position may be committed on a new stream only after it has been redelivered there;
    otherwise the service rejects it.
    """
    ledger = filled(1, 2)
    ledger.ack(1, 2)
    ledger.new_stream()
    assert ledger.candidate is None
    assert ledger.is_known(event(1))
    assert candidate(ledger) == rid(1)
    assert ledger.is_known(event(2))

    assert candidate(ledger) == rid(2)


def test_event_acked_after_its_stream_waits_for_redelivery() -> None:
    """An event acked after its stream has ended may be committed only once the new stream has sent
    it again.
    """
    ledger = filled(1)
    ledger.new_stream()
    ledger.ack(1, 1)
    assert ledger.candidate is None

    assert ledger.is_known(event(1))
    assert candidate(ledger) == rid(1)


def test_redelivery_does_not_replace_an_ack() -> None:
    """Redelivering an unacked event does not ack it, so the events after it are not committed."""
    ledger = filled(1, 2)
    ledger.ack(2, 2)
    ledger.new_stream()
    ledger.is_known(event(1))
    ledger.is_known(event(2))

    assert ledger.candidate is None


def test_redelivery_after_an_unacked_event_is_not_committed() -> None:
    """If the service moves back and sends unacked event 1 before acked event 5, position 5 is not
    committed, since that would skip event 1.
    """
    ledger = filled(5)
    ledger.ack(5, 5)
    ledger.new_stream()
    ledger.add((event(1),), 6)
    assert ledger.is_known(event(5))
    assert ledger.candidate is None
    ledger.ack(6, 6)

    assert candidate(ledger) == rid(1)


def test_redelivery_needs_equal_id_and_position() -> None:
    """An event is a redelivery only if both id and position are equal: ids may be empty, and
    positions may be reused after a reset.
    """
    ledger = Ledger()
    ledger.new_stream()
    ledger.add((event(1, event_id=""),), 1)

    assert not ledger.is_known(event(2, event_id=""))
    assert not ledger.is_known(event(1, event_id="other"))
    assert ledger.is_known(event(1, event_id=""))


def test_stream_may_begin_only_right_after_a_given_position() -> None:
    """`begins_right_after` is true only if the stream's first event directly follows the position.

    The position may be the start of the ledger or that of an acked event.
    """
    ledger = filled(1, 2, 3)
    ledger.ack(1, 2)
    second = ledger.newest_done
    assert second is not None

    assert ledger.begins_right_after(0, event(1))
    assert not ledger.begins_right_after(0, event(2))
    assert not ledger.begins_right_after(0, None)
    assert ledger.begins_right_after(second.order, event(3))
    assert not ledger.begins_right_after(second.order, event(9))


def test_stream_may_begin_with_any_new_event_after_the_last() -> None:
    """After the ledger's last position, a stream may begin with a keepalive or with any event that
    the ledger does not already contain.
    """
    ledger = filled(1)
    ledger.add_keepalive(rid(4))
    ledger.ack(1, 1)
    end = ledger.newest_done
    assert end is not None

    assert ledger.begins_right_after(end.order, event(9))
    assert ledger.begins_right_after(end.order, None)
    assert not ledger.begins_right_after(end.order, event(1))


def test_reused_position_is_a_separate_entry() -> None:
    """Two events at the same position, which is possible after a reset, are recognised, acked and
    removed separately.
    """
    ledger = filled(1, 2)
    twin = event(1)._replace(id="another")
    assert ledger.add((twin,), 3) == (twin,)
    assert ledger.add((twin, event(1)), 4) == (), "both are entries"
    ledger.ack(1, 1)
    ledger.confirm(1)
    assert ledger.holds(twin)
    assert not ledger.holds(event(1))
    ledger.ack(2, 3)
    ledger.confirm(3)
    assert not ledger.holds_events


def test_small_responses_share_runs() -> None:
    """Events share runs of `FULL` entries even if they arrive one at a time.

    A run is removed once all of its events are confirmed.
    """
    ledger = filled(*range(1, 2 * FULL + 2))
    assert len(ledger._runs) == 3
    ledger.ack(1, FULL)
    ledger.confirm(FULL - 1)
    assert len(ledger._runs) == 3
    ledger.confirm(FULL)
    assert len(ledger._runs) == 2
