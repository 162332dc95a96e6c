"""Tests of when an outage is reported: once if it is short, and then less and less often."""

from __future__ import annotations

import pytest

from sfpubsub.protocol.commands import ReportOutage
from sfpubsub.protocol.outage import Outage
from tests.protocol.scripted import NAME


def warnings(outage: Outage, until: float) -> list[float]:
    """Return when *outage* reminds of itself, up to the time *until*."""
    times = []
    while outage.due_at <= until:
        now = outage.due_at
        (report,) = outage.remind(now)
        assert report.is_warning
        assert outage.due_at > now
        times.append(now)
    return times


def test_break_that_is_over_at_the_first_attempt_is_no_warning() -> None:
    """A stream that is reopened at the first attempt is reported once, at its end, with the length
    and the reason.
    """
    outage = Outage(NAME)
    assert outage.failed("connection reset", 100.0) == []
    assert outage.since == 100.0
    assert outage.over(100.7) == [
        ReportOutage(
            False, f"{NAME} has a stream again, after 0.7 s; the last failure: connection reset"
        )
    ]
    assert outage.since is None
    assert outage.over(100.8) == []
    assert outage.due_at == float("inf")


def test_failed_attempt_is_a_warning() -> None:
    """The second failure is a warning that names the failure; the third is not another one."""
    outage = Outage(NAME)
    outage.failed("connection reset", 100.0)
    assert outage.failed("connection refused", 101.0) == [
        ReportOutage(
            True,
            f"{NAME} has had no stream for 1.0 s, after 2 failed attempts, and tries again; the "
            f"last failure: connection refused",
        )
    ]
    assert outage.failed("connection refused", 102.0) == []
    (end,) = outage.over(103.0)
    assert end.is_warning, "whoever saw the warning also sees that it is over"


def test_ten_seconds_without_an_attempt_are_a_warning() -> None:
    """If nothing could even be tried for 10 s, for instance because signing in takes so long, it is
    a warning.
    """
    outage = Outage(NAME)
    outage.failed("session expired", 100.0)
    assert outage.remind(109.9) == []
    assert outage.due_at == 110.0
    (report,) = outage.remind(110.0)
    assert report.is_warning
    assert "after 1 failed attempt," in report.text


def test_first_failure_after_ten_seconds_is_a_warning() -> None:
    """A first attempt that fails only after 10 s, as behind a firewall, is a warning at once."""
    outage = Outage(NAME)
    (report,) = outage.failed("timed out", 120.0, since=100.0)
    assert report.is_warning
    assert "20.0 s" in report.text


def test_held_slot_is_a_warning_at_once() -> None:
    """The first refusal of a managed subscription that another client holds is a warning."""
    (report,) = Outage(NAME).failed("already active", 100.0, is_held=True)
    assert report.is_warning


def test_warnings_become_rare() -> None:
    """A warning is repeated after 1, 5 and 15 minutes, and then every hour."""
    outage = Outage(NAME)
    outage.failed("down", 1000.0)
    outage.failed("down", 1002.0)
    minutes = [(at - 1000.0) / 60 for at in warnings(outage, 1000.0 + 4 * 3600.0)]
    assert minutes == [1, 5, 15, 60, 120, 180, 240]
    (end,) = outage.over(1000.0 + 4 * 3600.0)
    assert "after 4.0 h" in end.text


def test_warning_that_was_missed_is_given_once() -> None:
    """Several reminders that were due while a stream was being opened become one."""
    outage = Outage(NAME)
    outage.failed("down", 0.0)
    outage.failed("down", 1.0)
    (report,) = outage.failed("down", 400.0)
    assert "7 min" in report.text
    assert outage.due_at == 900.0


@pytest.mark.parametrize("over", [Outage.reset, lambda outage: outage.over(5.0)])
def test_next_outage_is_independent(over) -> None:
    """After an outage, the next break is again no warning."""
    outage = Outage(NAME)
    outage.failed("down", 0.0)
    outage.failed("down", 1.0)
    over(outage)
    assert outage.remind(1e9) == []
    assert outage.failed("down", 10.0) == []
