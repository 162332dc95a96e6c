"""Tests of what monitoring tells about the objects of a mirror."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.page import page
from sfpubsub.monitoring.prometheus import prometheus_text
from sfpubsub.monitoring.server import serve
from sfpubsub.spark.mirror.status import ObjectStatus

from .support import HOUR, NOW, Clock

WAITS = {"rights": "View All is missing: grant it"}


def monitor_of(*objects: ObjectStatus) -> Monitor:
    """Return a monitor of a mirror with the given objects."""
    monitor = Monitor("mirror", clock=Clock())
    monitor.follow_objects(lambda: objects)
    return monitor


def test_unapplied_events_fail_health():
    """A stream without lag does not hide that no event has been applied for 11 minutes."""
    monitor = monitor_of(ObjectStatus("Account", "current", behind=660.0))
    with serve(monitor) as url, pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{url}health")
    with caught.value as answer:
        (problem,) = json.load(answer)["problems"]
    assert problem["situation"] == "behind"
    assert problem["reason"] == "Account: events received 0:11:00 ago are not in the table yet"
    assert "All is well" not in page(monitor)
    assert not monitor_of(ObjectStatus("Account", "current", behind=599.0)).problems()


@pytest.mark.parametrize("reason", ["rights", "gone", "deselected"])
def test_a_wait_that_needs_somebody_fails_health(reason: str):
    """An object that waits until somebody acts in the org fails /health at once, with the text."""
    (problem,) = monitor_of(ObjectStatus("Account", "waiting", {reason: "act"})).problems()
    assert (problem.situation, problem.reason) == ("waiting", "Account: act")


@pytest.mark.parametrize("reason", ["read", "paused"])
def test_a_passing_wait_fails_health_once_events_wait_too_long(reason: str):
    """A back-off or a pause is no problem in itself; it is the reason when events wait too long."""
    waits = {reason: "ends by itself"}
    assert not monitor_of(ObjectStatus("Account", "waiting", waits)).problems()
    (problem,) = monitor_of(ObjectStatus("Account", "waiting", waits, behind=HOUR)).problems()
    assert problem.situation == "behind"
    assert problem.reason.endswith("; ends by itself")


def test_parked_deletions_fail_health():
    """Deletions that wait for a confirmation fail /health, with their number."""
    (problem,) = monitor_of(ObjectStatus("Account", "current", parked_rows=2000)).problems()
    expected = "Account: 2,000 deletions wait for a confirmation"
    assert (problem.situation, problem.reason) == ("waiting", expected)


def test_the_page_has_a_row_for_each_object():
    """The page shows state, records, backlog, queue, oldest entry and last read of each object."""
    busy = ObjectStatus("Contact", "waiting", WAITS, 1234, 90.0, 7, NOW - 120, NOW - HOUR, 3)
    text = page(monitor_of(ObjectStatus("Account"), busy))
    for words in (
        *("Account", "first read", "not known", "no event waits", "none", "never"),
        "View All is missing: grant it; a confirmation of 3 deletions",
        *("Contact", "1,234", "0:01:30", "<td>7</td>", "0:02:00 ago", "1:00:00 ago"),
    ):
        assert words in text, words


def test_metrics_of_each_object():
    """Backlog, queue, parked and repaired rows, times and reasons of waiting are metrics by
    object.
    """
    repaired = {"changed": 2}
    busy = ObjectStatus(
        "Contact", "waiting", WAITS, 1234, 90.0, 7, NOW - 120, NOW - HOUR, 3, repaired
    )
    text = prometheus_text(monitor_of(busy).registry.collect())
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if 'entity="Contact"' in line)
    found = {
        name.partition("{")[0].removeprefix("messaging_salesforce_mirror_"): float(value)
        for name, value in values.items()
        if "reason" not in name and "cause" not in name
    }
    assert found == {
        "behind_seconds": 90.0,
        "queue": 7.0,
        "parked_rows": 3.0,
        "oldest_entry_time_seconds": NOW - 120,
        "last_read_time_seconds": NOW - HOUR,
    }
    reasons = {name: value for name, value in values.items() if "reason" in name}
    causes = [name for name, value in values.items() if "cause" in name and float(value) == 2]
    assert ['cause="changed"' in name for name in causes] == [True]
    assert len(reasons) == 5
    assert [name for name, value in reasons.items() if float(value)] == [
        name for name in reasons if 'reason="rights"' in name
    ]


def test_the_page_of_a_new_run_begins_with_the_run():
    """The page says since when this process runs, not when the time axis of its plots begins."""
    clock = Clock(1_800_000_000.0)  # 08:00:00 UTC
    monitor = Monitor("mirror", clock=clock)
    monitor.follow_objects(lambda: [ObjectStatus("Account")])
    clock.now += 60
    monitor.update()
    assert "Since 08:00 UTC" in page(monitor)
