"""Tests of where a plain subscription resumes after a dropped stream or a rejected position."""

from __future__ import annotations

from sfpubsub.protocol.resume import Resume
from sfpubsub.types import Gap, StartPosition
from tests.protocol.scripted import NAME, rid

LATEST, EARLIEST = StartPosition.latest(), StartPosition.earliest()


def test_stream_resumes_after_the_last_received_position() -> None:
    """A plain subscription resumes after the last received position instead of at its start."""
    resume = Resume(NAME, LATEST, None)
    assert resume.position == LATEST
    assert resume.last is None
    resume.received(rid(4))

    assert resume.position == StartPosition.after(rid(4))
    assert resume.last == rid(4)


def test_drop_before_a_position_at_latest_is_one_gap() -> None:
    """If a stream that starts at LATEST drops before receiving a position, one gap is reported."""
    resume = Resume(NAME, LATEST, None)

    assert resume.dropped() == Gap("unanchored", NAME)
    assert resume.dropped() is None


def test_drop_after_receiving_a_position_reports_no_gap() -> None:
    """If a stream drops after receiving a position, or after starting at EARLIEST, no gap is
    reported.
    """
    anchored = Resume(NAME, LATEST, None)
    anchored.received(rid(1))

    assert anchored.dropped() is None
    assert Resume(NAME, EARLIEST, None).dropped() is None


def test_rejected_position_is_a_gap_with_the_error_code() -> None:
    """A rejected position is reported as a gap with its error code and RPC id.

    Without a fallback, the subscription can't resume.
    """
    resume = Resume(NAME, StartPosition.after(rid(7)), None)

    gap, go_on = resume.rejected("code", "rpc")

    assert gap == Gap("rejected", NAME, rid(7), error_code="code", rpc_id="rpc")
    assert not go_on


def test_rejected_position_resumes_at_the_fallback() -> None:
    """After a rejected position, the subscription resumes at the fallback.

    If the stream then drops, no second gap is reported.
    """
    resume = Resume(NAME, StartPosition.after(rid(7)), LATEST)
    _, go_on = resume.rejected(None, None)

    assert go_on
    assert resume.position == LATEST
    assert resume.dropped() is None, "it belongs to the gap that was reported"


def test_rejected_preset_has_no_fallback() -> None:
    """A rejected LATEST or EARLIEST does not use the fallback, as these presets cannot expire."""
    _, go_on = Resume(NAME, EARLIEST, LATEST).rejected(None, None)

    assert not go_on


def test_rejected_fallback_is_not_retried() -> None:
    """If the fallback is rejected too, the subscription does not resume."""
    resume = Resume(NAME, StartPosition.after(rid(7)), StartPosition.after(rid(8)))
    assert resume.rejected(None, None)[1]

    assert not resume.rejected(None, None)[1]
