"""Tests of the detection of stuck steps and loops, and of the monitor's own thread."""

from __future__ import annotations

import logging
import threading

import pytest

from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.steps import SHOWN, Done, Steps

from ..conftest import until
from .support import NOW, Clock, Subscription


@pytest.fixture
def hanging():
    """Run a thread that blocks in `a_write_that_hangs`, with a secret argument, until the end of
    the test.
    """
    release, begun = threading.Event(), threading.Event()

    def a_write_that_hangs(secret: str) -> None:
        begun.set()
        release.wait()

    thread = threading.Thread(target=a_write_that_hangs, args=("planted",), name="write orders")
    thread.start()
    begun.wait()
    yield
    release.set()
    thread.join()


def test_stuck_step_logs_the_stacks_of_all_threads_once(hanging, caplog):
    """While a step is stuck, the blocked thread and function are logged once, without arguments.

    If the step gets stuck again later, they are logged again.
    """
    steps = Steps()
    steps.report_stuck({"write of orders": 600.0}, 600.0)
    assert caplog.records == []
    steps.report_stuck({"write of orders": 601.0}, 600.0)
    steps.report_stuck({"write of orders": 602.0}, 600.0)
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.ERROR
    assert "write of orders: running for 601 s" in text
    assert "thread write orders:" in text
    assert "a_write_that_hangs" in text
    assert "planted" not in text
    steps.report_stuck({"write of orders": None}, 600.0)
    steps.report_stuck({"write of orders": 601.0}, 600.0)
    assert len(caplog.records) == 2


def test_stuck_loop_is_logged(caplog):
    """A subscription's loop that has not iterated for over 600 s is logged even if no step is
    running.
    """
    clock = Clock()
    monitor = Monitor("test", clock=clock)
    monitor.follow("topic", "T", Subscription()).turn()
    clock.now += 601
    monitor.update()
    assert "the loop of T: running for 601 s" in caplog.text


def test_monitor_counts_and_keeps_log_records_while_it_runs():
    """The monitor counts warnings and errors while it runs, and keeps the first line of each.

    Records of lower levels, or logged after it has stopped, are ignored.
    """
    looked = threading.Event()
    with Monitor("test", clock=Clock()) as monitor:
        monitor.on_update(looked.set)
        logging.getLogger("sfpubsub.client").warning("%s\nand more", "it is slow")
        logging.getLogger("sfpubsub.client").info("not kept")
        until(looked.is_set)
    logging.getLogger("sfpubsub.client").warning("after the end")
    assert [(each.level, each.text) for each in monitor.logged] == [("warning", "it is slow")]
    samples = [each for each in monitor.registry.collect() if each.metric is Metric.LOG_RECORDS]
    assert {dict(each.labels)["level"]: each.value for each in samples} == {
        "warning": 1,
        "error": 0,
    }


def test_failure_of_the_monitor_is_only_logged(caplog):
    """An exception in the monitor's thread is only logged, and `/health` reports no problem."""

    def breaks() -> None:
        raise ZeroDivisionError

    with Monitor("test", clock=Clock()) as monitor:
        monitor.on_update(breaks)
        until(lambda: "the monitor failed" in caplog.text)
    assert monitor.problems() == []


def test_latest_steps_are_kept_newest_first():
    """Only as many finished steps are kept as the monitor's page displays, newest first."""
    steps = Steps()
    for number in range(SHOWN + 5):
        steps.ended(Done("write", NOW + number, 0.1, str(number)))
    assert [done.text for done in steps.done()][:2] == ["24", "23"]
    assert len(steps.done()) == SHOWN
