"""Where a plain subscription goes on."""

from __future__ import annotations

from sfpubsub.protocol.resume import Resume
from sfpubsub.types import Gap, StartPosition
from tests.protocol.scripted import NAME, rid

LATEST, EARLIEST = StartPosition.latest(), StartPosition.earliest()


def test_a_stream_resumes_after_the_last_received_position() -> None:
    """Never at the start again, which would double or skip events."""
    resume = Resume(NAME, LATEST, None)
    assert resume.position == LATEST
    assert resume.last is None
    resume.received(rid(4))

    assert resume.position == StartPosition.after(rid(4))
    assert resume.last == rid(4)


def test_a_drop_before_a_latest_start_was_anchored_is_a_gap_once() -> None:
    """Events published meanwhile are missed, and that is said."""
    resume = Resume(NAME, LATEST, None)

    assert resume.dropped() == Gap("unanchored", NAME)
    assert resume.dropped() is None


def test_a_drop_behind_a_position_is_no_gap() -> None:
    """An anchored stream misses nothing; neither does one from EARLIEST."""
    anchored = Resume(NAME, LATEST, None)
    anchored.received(rid(1))

    assert anchored.dropped() is None
    assert Resume(NAME, EARLIEST, None).dropped() is None


def test_a_refused_position_is_a_gap_with_the_services_words() -> None:
    """What, from where, why, with error code and rpc id."""
    resume = Resume(NAME, StartPosition.after(rid(7)), None)

    gap, go_on = resume.rejected("code", "rpc")

    assert gap == Gap("rejected", NAME, rid(7), error_code="code", rpc_id="rpc")
    assert not go_on


def test_a_fallback_is_where_it_goes_on() -> None:
    """With a fallback the refused position is never sent again."""
    resume = Resume(NAME, StartPosition.after(rid(7)), LATEST)
    _, go_on = resume.rejected(None, None)

    assert go_on
    assert resume.position == LATEST
    assert resume.dropped() is None, "part of the gap that was reported"


def test_a_refused_preset_has_no_fallback() -> None:
    """LATEST and EARLIEST cannot expire; trying them again would go on for ever."""
    _, go_on = Resume(NAME, EARLIEST, LATEST).rejected(None, None)

    assert not go_on


def test_a_refused_fallback_is_not_sent_again() -> None:
    """A fallback to a position that is refused as well must not loop."""
    resume = Resume(NAME, StartPosition.after(rid(7)), StartPosition.after(rid(8)))
    assert resume.rejected(None, None)[1]

    assert not resume.rejected(None, None)[1]
