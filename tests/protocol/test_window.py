"""Tests of the window, i.e. the credit: at most 100 requested events, and never 0 for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.protocol.window import Window


def opened(room: int = 100) -> Window:
    """Return a window whose stream was opened with room for *room* events."""
    window = Window()
    window.open(room)
    return window


def test_open_requests_all_events_there_is_room_for() -> None:
    """A new stream requests 100 events at once if there is room for them."""
    assert Window().open(100) == 100


def test_open_without_room_requests_one_event() -> None:
    """Even without room, a new stream requests one event, since it cannot open with 0."""
    assert Window().open(0) == 1


def test_credit_is_returned_once_fifty_events_are_received() -> None:
    """Events are requested again only after 50 were received, so that a busy stream needs few
    requests.
    """
    window = opened()
    window.received(49, 51)
    assert window.grant(100, 100) == 0
    window.received(1, 50)

    assert window.grant(100, 100) == 50
    assert window.outstanding == 100


def test_credit_is_returned_at_once_if_none_is_outstanding() -> None:
    """If nothing is outstanding, events are requested at once, even if fewer than 50 were
    received.
    """
    window = opened(0)
    window.received(1, 0)

    assert window.grant(100, 100) == 100


def test_no_credit_without_room_except_the_reserve() -> None:
    """Without room, nothing is requested but the reserve, one event that keeps the stream open."""
    window = opened()
    window.received(100, 0)

    assert window.grant(0, 0) == 0
    assert window.starving
    assert window.reserve() == 1
    assert not window.starving
    assert window.reserve() == 0


def test_excess_events_leave_no_negative_credit() -> None:
    """If the service sends more events than requested, the next request is still for at most
    100.
    """
    window = opened(0)
    window.received(5, 0)

    assert window.grant(100, 100) == 100


def test_commit_answer_without_pending_count_is_not_starving() -> None:
    """A response without a pending count is not taken to mean that no events are pending."""
    window = opened()
    window.received(0, None)

    assert not window.starving


def test_lost_credit_is_detected_by_the_reserve() -> None:
    """If credit was lost, the response to the reserve (a request for one event that keeps the
    stream open) corrects the number of outstanding events.
    """
    window = opened()
    window.received(40, 0)
    assert window.grant(100, 100) == 0
    assert window.starving
    assert window.reserve() == 1
    window.received(1, 0)

    assert window.outstanding == 1
    assert window.grant(100, 100) == 99


def test_request_in_transit_is_not_lost_credit() -> None:
    """A pending count of 0 that was sent before the last request arrived does not mean lost credit.

    The next pending count includes that request, so its events still count as outstanding.
    """
    window = opened()
    window.received(51, 49)
    assert window.grant(100, 100) == 51
    window.received(49, 0)  # sent before the 51 arrived
    assert window.reserve() == 1
    window.received(0, 52)  # and the 51 and the 1 have arrived

    assert window.outstanding == 52


def test_pending_count_is_ignored_after_a_grant() -> None:
    """A pending count received after a further request may not include that request, so it is
    ignored.

    Otherwise, more than 100 events would be requested.
    """
    window = opened()
    window.received(95, 0)
    assert window.grant(0, 0) == 0
    assert window.reserve() == 1
    assert window.grant(100, 100) == 94
    window.received(0, 5)  # sent before either arrived

    assert window.outstanding == 100
    assert window.grant(100, 100) == 0


def test_reserve_keeps_the_count_within_the_window() -> None:
    """The reserve is a request for one event that keeps the stream open.

    If it is sent while 100 events are outstanding, their count stays at 100.
    """
    window = opened()
    window.received(0, 0)
    assert window.starving

    assert window.reserve() == 1
    assert window.outstanding == 100


@pytest.mark.parametrize(("room", "owed"), [(100, 50), (60, 30), (7, 3), (2, 1), (1, 1)])
def test_small_room_is_refilled_once_half_is_received(room: int, owed: int) -> None:
    """With room for fewer than 100 events, half of them must arrive before more are requested."""
    window = opened(room)
    window.received(owed - 1, 50)
    assert window.grant(room, room) == 0
    window.received(1, 50)

    assert window.grant(room, room) == owed
    assert window.outstanding == room


def test_slow_reader_does_not_cause_a_request_per_event() -> None:
    """If each read makes room for one event, 50 events are requested at a time."""
    window = opened()
    window.received(100, 0)
    requests = [request for room in range(1, 101) if (request := window.grant(room, 100))]

    assert requests == [50, 50]


def test_shrinking_room_delays_further_requests() -> None:
    """If the room shrinks below the number of outstanding events, nothing is requested until enough
    of them have arrived.
    """
    window = opened(100)
    assert window.grant(20, 20) == 0
    window.received(80, 20)
    assert window.grant(20, 20) == 0
    window.received(10, 10)

    assert window.grant(20, 20) == 10


@given(
    st.lists(st.tuples(st.integers(0, 120), st.none() | st.integers(0, 100), st.integers(0, 150)))
)
def test_outstanding_events_stay_between_1_and_100(
    steps: list[tuple[int, int | None, int]],
) -> None:
    """The number of outstanding events stays between 1 and 100, whatever space the queue has left
    and whatever pending count the service reports.
    """
    window = opened()
    for count, pending, room in steps:
        window.received(count, pending)
        window.grant(room, room)
        if not room:
            window.reserve()
        assert 0 < window.outstanding <= 100


@given(outstanding=st.integers(1, 100), room=st.integers(0, 200))
def test_ample_credit_prevents_requests_for_any_room(outstanding: int, room: int) -> None:
    """While `Window.ample` is true, nothing is requested, however much room there is.

    While it is false, events are requested if there is room for 100.
    """
    window = opened(outstanding)
    if window.ample:
        assert window.grant(room, room) == 0
    else:
        assert window.grant(100, 100) > 0
