"""Credit: never more than 100 outstanding, never none for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.protocol.window import Window


def opened(room: int = 100) -> Window:
    window = Window()
    window.open(room)
    return window


def test_opening_asks_for_the_whole_window() -> None:
    """A stream begins with all the credit the service allows."""
    assert Window().open(100) == 100


def test_opening_without_room_asks_for_one() -> None:
    """The first request must ask for something, and for no more than that without room."""
    assert Window().open(0) == 1


def test_credit_is_returned_from_fifty_owed_events_on() -> None:
    """A busy stream costs one request for fifty events."""
    window = opened()
    window.received(49, 51)
    assert window.grant(100, 100) == 0
    window.received(1, 50)

    assert window.grant(100, 100) == 50
    assert window.outstanding == 100


def test_credit_is_returned_at_once_when_nothing_is_outstanding() -> None:
    """Less than fifty owed must not leave a stream standing still."""
    window = opened(0)
    window.received(1, 0)

    assert window.grant(100, 100) == 100


def test_held_credit_is_not_returned() -> None:
    """Without room nothing is asked for, but by the reserve."""
    window = opened()
    window.received(100, 0)

    assert window.grant(0, 0) == 0
    assert window.starving
    assert window.reserve() == 1
    assert not window.starving
    assert window.reserve() == 0


def test_a_service_that_sends_too_much_leaves_no_negative_credit() -> None:
    """More than asked for costs memory only; the next grant is still at most the window."""
    window = opened(0)
    window.received(5, 0)

    assert window.grant(100, 100) == 100


def test_commit_answers_carry_no_figure() -> None:
    """The pending figure of a commit answer may be left out, and must not look like starving."""
    window = opened()
    window.received(0, None)

    assert not window.starving


def test_lost_credit_is_found_by_the_answer_to_the_reserve() -> None:
    """Credit that the service lost would otherwise be missed for ever."""
    window = opened()
    window.received(40, 0)
    assert window.grant(100, 100) == 0
    assert window.starving
    assert window.reserve() == 1
    window.received(1, 0)

    assert window.outstanding == 1
    assert window.grant(100, 100) == 99


def test_a_request_on_its_way_is_no_disagreement() -> None:
    """A figure from before the reserve arrived is believed with one more, not one less."""
    window = opened()
    window.received(51, 49)
    assert window.grant(100, 100) == 51
    window.received(49, 0)  # sent before the 51 arrived
    assert window.reserve() == 1
    window.received(0, 52)  # and the 51 and the 1 have arrived

    assert window.outstanding == 52


def test_a_grant_behind_the_reserve_leaves_the_next_figure_unbelieved() -> None:
    """The figure knows nothing of the grant; believing it would ask for more than 100."""
    window = opened()
    window.received(95, 0)
    assert window.grant(0, 0) == 0
    assert window.reserve() == 1
    assert window.grant(100, 100) == 94
    window.received(0, 5)  # sent before either arrived

    assert window.outstanding == 100
    assert window.grant(100, 100) == 0


def test_the_reserve_never_counts_more_than_the_window() -> None:
    """With a full window that the service denies, one still goes, and the service clamps it."""
    window = opened()
    window.received(0, 0)
    assert window.starving

    assert window.reserve() == 1
    assert window.outstanding == 100


@pytest.mark.parametrize(("room", "owed"), [(100, 50), (60, 30), (7, 3), (2, 1), (1, 1)])
def test_less_room_is_filled_up_from_its_half_on(room: int, owed: int) -> None:
    """Large events come a few at a time; a request for each would be many, for all too late."""
    window = opened(room)
    window.received(owed - 1, 50)
    assert window.grant(room, room) == 0
    window.received(1, 50)

    assert window.grant(room, room) == owed
    assert window.outstanding == room


def test_a_reader_that_is_behind_makes_no_request_for_each_event_it_reads() -> None:
    """Each makes room for one; half of a window is asked for at a time, as on a busy stream."""
    window = opened()
    window.received(100, 0)
    requests = [request for room in range(1, 101) if (request := window.grant(room, 100))]

    assert requests == [50, 50]


def test_room_that_shrinks_takes_nothing_back() -> None:
    """What was asked for may still come; no more is asked for until it has."""
    window = opened(100)
    assert window.grant(20, 20) == 0
    window.received(80, 20)
    assert window.grant(20, 20) == 0
    window.received(10, 10)

    assert window.grant(20, 20) == 10


@given(
    st.lists(st.tuples(st.integers(0, 120), st.none() | st.integers(0, 100), st.integers(0, 150)))
)
def test_the_window_is_never_exceeded(steps: list[tuple[int, int | None, int]]) -> None:
    """Whatever the service says, we count at most 100, and an idle stream is never forgotten."""
    window = opened()
    for count, pending, room in steps:
        window.received(count, pending)
        window.grant(room, room)
        if not room:
            window.reserve()
        assert 0 < window.outstanding <= 100


@given(outstanding=st.integers(1, 100), room=st.integers(0, 200))
def test_with_ample_credit_nothing_is_granted_whatever_the_room(
    outstanding: int, room: int
) -> None:
    """So the room need not be looked at; and a window that is not ample may always be granted."""
    window = opened(outstanding)
    if window.ample:
        assert window.grant(room, room) == 0
    else:
        assert window.grant(100, 100) > 0
