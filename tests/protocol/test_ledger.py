"""The ledger: what may be committed, whatever order things arrive and are acked in."""

from __future__ import annotations

from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.run import FULL
from tests.protocol.scripted import event, rid


def filled(*numbers: int) -> Ledger:
    """A ledger on stream 1 with those events; delivery_seq and number are the same."""
    ledger = Ledger()
    ledger.new_stream()
    for number in numbers:
        ledger.add((event(number),), number)
    return ledger


def candidate(ledger: Ledger) -> object:
    return None if ledger.candidate is None else ledger.candidate.replay_id


def test_nothing_is_a_candidate_before_it_is_acked() -> None:
    """A received event alone never moves the position."""
    assert filled(1, 2).candidate is None


def test_only_the_acked_prefix_counts() -> None:
    """An ack out of order waits for those before it."""
    ledger = filled(1, 2, 3)
    ledger.ack(3, 3)
    ledger.ack(2, 2)
    assert ledger.candidate is None
    ledger.ack(1, 1)

    assert candidate(ledger) == rid(3)
    assert ledger.newest_done == ledger.newest_done_event == ledger.candidate


def test_acks_of_unknown_and_acked_events_change_nothing() -> None:
    """A worker that acks twice does no harm."""
    ledger = filled(1, 2)

    assert ledger.ack(1, 1) == 1
    assert ledger.ack(1, 1) == 0
    assert ledger.ack(7, 9) == 0
    assert ledger.unacked == 1


def test_a_keepalive_waits_for_the_events_before_it() -> None:
    """Its position is acked from the start, and still passes nothing unacked."""
    ledger = filled(1)
    ledger.add_keepalive(rid(5))
    assert ledger.candidate is None
    ledger.ack(1, 1)

    assert candidate(ledger) == rid(5)
    assert ledger.newest_done_event is not None
    assert ledger.newest_done_event.replay_id == rid(1)


def test_keepalives_do_not_pile_up() -> None:
    """An idle stream of any length takes one entry, on either side of the prefix."""
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


def test_a_keepalive_merged_into_a_newer_one_can_still_be_confirmed() -> None:
    """The answer to a commit of the older one forgets the events before it and nothing else."""
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


def test_confirming_forgets_up_to_there() -> None:
    """What is confirmed takes no memory and may be delivered again."""
    ledger = filled(1, 2, 3)
    ledger.ack(1, 2)
    assert ledger.candidate is not None
    ledger.confirm(ledger.candidate.order)

    assert ledger.candidate is None
    assert ledger.newest_done is None
    assert ledger.newest_done_event is None
    assert not ledger.is_known(event(1))
    assert ledger.is_known(event(3))


def test_a_position_must_be_seen_on_the_current_stream() -> None:
    """The service refuses commits of what it has not sent on this stream."""
    ledger = filled(1, 2)
    ledger.ack(1, 2)
    ledger.new_stream()
    assert ledger.candidate is None
    assert ledger.is_known(event(1))
    assert candidate(ledger) == rid(1)
    assert ledger.is_known(event(2))

    assert candidate(ledger) == rid(2)


def test_an_ack_between_streams_is_no_candidate() -> None:
    """Acked on stream 2, seen on stream 1 only: it waits for its redelivery."""
    ledger = filled(1)
    ledger.new_stream()
    ledger.ack(1, 1)
    assert ledger.candidate is None

    assert ledger.is_known(event(1))
    assert candidate(ledger) == rid(1)


def test_a_redelivery_of_an_unacked_event_is_no_candidate() -> None:
    """Being sent again does not make an event done."""
    ledger = filled(1, 2)
    ledger.ack(2, 2)
    ledger.new_stream()
    ledger.is_known(event(1))
    ledger.is_known(event(2))

    assert ledger.candidate is None


def test_an_entry_sent_behind_newer_ones_is_not_committed_over_them() -> None:
    """A service that moved back sends the acked 5 behind the unacked 1: 5 would pass 1."""
    ledger = filled(5)
    ledger.ack(5, 5)
    ledger.new_stream()
    ledger.add((event(1),), 6)
    assert ledger.is_known(event(5))
    assert ledger.candidate is None
    ledger.ack(6, 6)

    assert candidate(ledger) == rid(1)


def test_equal_ids_alone_are_no_redelivery() -> None:
    """Change events may have no id, and a reset stream may use positions again."""
    ledger = Ledger()
    ledger.new_stream()
    ledger.add((event(1, event_id=""),), 1)

    assert not ledger.is_known(event(2, event_id=""))
    assert not ledger.is_known(event(1, event_id="other"))
    assert ledger.is_known(event(1, event_id=""))


def test_where_a_stream_may_begin() -> None:
    """Right after the confirmed position, or right after a given one; nowhere else."""
    ledger = filled(1, 2, 3)
    ledger.ack(1, 2)
    second = ledger.newest_done
    assert second is not None

    assert ledger.begins_right_after(0, event(1))
    assert not ledger.begins_right_after(0, event(2))
    assert not ledger.begins_right_after(0, None)
    assert ledger.begins_right_after(second.order, event(3))
    assert not ledger.begins_right_after(second.order, event(9))


def test_behind_the_end_of_the_ledger_anything_new_may_come() -> None:
    """After everything was committed the stream begins with a new event or a keepalive."""
    ledger = filled(1)
    ledger.add_keepalive(rid(4))
    ledger.ack(1, 1)
    end = ledger.newest_done
    assert end is not None

    assert ledger.begins_right_after(end.order, event(9))
    assert ledger.begins_right_after(end.order, None)
    assert not ledger.begins_right_after(end.order, event(1))


def test_a_position_that_is_used_again_is_another_entry() -> None:
    """After a reset another event may stand where one stood: each is known, acked and forgotten."""
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


def test_small_responses_share_a_run() -> None:
    """What a ledger holds is counted in hundreds, however few events came at a time."""
    ledger = filled(*range(1, 2 * FULL + 2))
    assert len(ledger._runs) == 3
    ledger.ack(1, FULL)
    ledger.confirm(FULL - 1)
    assert len(ledger._runs) == 3
    ledger.confirm(FULL)
    assert len(ledger._runs) == 2
