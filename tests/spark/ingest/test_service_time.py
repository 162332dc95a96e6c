"""How far this machine's clock is believed: times are passed in."""

from __future__ import annotations

import pytest

from sfpubsub.spark.ingest.service_time import ServiceTime

HOUR = 3600.0
DAY = 24 * HOUR
NOW = 1_795_215_600.0


class Times:
    """A wall clock and a steady one, which tests set."""

    def __init__(self) -> None:
        self.now = NOW
        self.steady = 50.0

    def service_time(self) -> ServiceTime:
        return ServiceTime(lambda: self.now, lambda: self.steady)


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.mark.parametrize(
    "newest", [None, NOW, NOW - 100 * HOUR, NOW - 145 * HOUR, NOW + HOUR, 0.0, -62_135_596_800.0]
)
def test_a_backlog_is_no_wrong_clock(times: Times, newest: float | None, caplog):
    """Nor is an event whose date was not set: what the service may deliver proves nothing."""
    assert times.service_time().at_delivery(newest) == NOW
    assert not caplog.records


def test_what_the_service_would_not_keep_so_long_contradicts_the_clock(times: Times, caplog):
    """Without a time of the service's own: the newest event is the best that is known."""
    service = times.service_time()
    old = NOW - 146 * HOUR
    assert service.at_delivery(old) == old
    assert service.at_delivery(old + 10.0) == old + 10.0
    assert len(caplog.records) == 1, "said once"
    assert service.at_delivery(NOW) == NOW
    assert service.at_delivery(old) == old
    assert len(caplog.records) == 2, "and again when it happens again"


@pytest.mark.parametrize(("ahead", "is_believed"), [(3599.0, True), (3601.0, False)])
def test_a_clock_an_hour_ahead_of_the_services_is_not_believed(
    times: Times, ahead: float, is_believed: bool, caplog
):
    """The service says its time with each commit; since then as much has passed as is measured."""
    service = times.service_time()
    service.record(NOW)
    times.steady += 600.0
    service.record(NOW)  # the same commit
    times.now = NOW + 600.0 + ahead
    expected = times.now if is_believed else NOW + 600.0
    assert service.at_delivery(NOW - DAY) == expected, "however old the events are"
    assert service.read() == expected
    assert len(caplog.records) == (not is_believed)


def test_a_newer_word_of_the_service_counts(times: Times):
    """A clock that is set right is believed again."""
    service = times.service_time()
    service.record(NOW)
    times.now = NOW + 365 * DAY
    assert service.read() == NOW
    times.steady += 30 * DAY
    service.record(NOW + 364 * DAY + 23.5 * HOUR)
    assert service.read() == times.now


def test_a_clock_that_is_behind_is_taken_as_it_is(times: Times):
    """It makes the window longer, and nothing worse."""
    service = times.service_time()
    service.record(NOW + DAY)
    assert service.at_delivery(NOW + DAY) == NOW
