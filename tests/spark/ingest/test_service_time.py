"""Tests of when this machine's clock is trusted, with simulated times."""

from __future__ import annotations

import pytest

from sfpubsub.spark.ingest.service_time import ServiceTime

HOUR = 3600.0
DAY = 24 * HOUR
NOW = 1_795_215_600.0


class Times:
    """A wall clock and a monotonic clock that tests can set."""

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
def test_plausible_or_unset_event_times_do_not_contradict_the_clock(
    times: Times, newest: float | None, caplog
):
    """The service may deliver events that are six days old, and publishers may leave dates unset,
    so neither proves that the clock is wrong, and no warning is logged.
    """
    assert times.service_time().at_delivery(newest) == NOW
    assert not caplog.records


def test_events_older_than_the_retention_contradict_the_clock(times: Times, caplog):
    """The service would not deliver such old events, so the newest event's time is used instead.

    A warning is logged once, and once more if the clock is contradicted again later.
    """
    service = times.service_time()
    old = NOW - 146 * HOUR
    assert service.at_delivery(old) == old
    assert service.at_delivery(old + 10.0) == old + 10.0
    assert len(caplog.records) == 1, "not logged exactly once"
    assert service.at_delivery(NOW) == NOW
    assert service.at_delivery(old) == old
    assert len(caplog.records) == 2, "not logged again"


@pytest.mark.parametrize(("ahead", "is_believed"), [(3599.0, True), (3601.0, False)])
def test_clock_more_than_an_hour_ahead_of_the_service_is_not_trusted(
    times: Times, ahead: float, is_believed: bool, caplog
):
    """If the clock is over an hour ahead of the service's time, it is not used.

    The time is then the service's last reported time plus the time since that report; a warning is
    logged.
    """
    service = times.service_time()
    service.record(NOW)
    times.steady += 600.0
    service.record(NOW)  # the same commit
    times.now = NOW + 600.0 + ahead
    expected = times.now if is_believed else NOW + 600.0
    assert service.at_delivery(NOW - DAY) == expected, "the age of the events had an influence"
    assert service.read() == expected
    assert len(caplog.records) == (not is_believed)


def test_newer_service_time_replaces_an_older_one(times: Times):
    """Once a newer service time agrees with the clock, the clock is trusted again."""
    service = times.service_time()
    service.record(NOW)
    times.now = NOW + 365 * DAY
    assert service.read() == NOW
    times.steady += 30 * DAY
    service.record(NOW + 364 * DAY + 23.5 * HOUR)
    assert service.read() == times.now


def test_clock_that_is_behind_is_not_corrected(times: Times):
    """A clock that is behind merely widens the window of dedupe keys, so its time is used."""
    service = times.service_time()
    service.record(NOW + DAY)
    assert service.at_delivery(NOW + DAY) == NOW
