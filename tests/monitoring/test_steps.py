"""A step that hangs tells where; a thread that looks ends nothing."""

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
    """A thread that hangs in a function with a name; it is let go at the end."""
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


def test_a_step_that_hangs_has_the_stacks_of_all_threads_in_the_log_once(hanging, caplog):
    """The function that it hangs in is named, with its thread, and no value of it. The next
    step that hangs is told of again."""
    steps = Steps()
    steps.tell_stuck({"write of orders": 600.0}, 600.0)
    assert caplog.records == []
    steps.tell_stuck({"write of orders": 601.0}, 600.0)
    steps.tell_stuck({"write of orders": 602.0}, 600.0)
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.ERROR
    assert "write of orders: running for 601 s" in text
    assert "thread write orders:" in text
    assert "a_write_that_hangs" in text
    assert "planted" not in text
    steps.tell_stuck({"write of orders": None}, 600.0)
    steps.tell_stuck({"write of orders": 601.0}, 600.0)
    assert len(caplog.records) == 2


def test_a_loop_that_hangs_is_told_of_as_well(caplog):
    """While no step is under way."""
    clock = Clock()
    monitor = Monitor("test", clock=clock)
    monitor.follow("topic", "T", Subscription()).turn()
    clock.now += 601
    monitor.update()
    assert "the loop of T: running for 601 s" in caplog.text


def test_the_thread_looks_until_the_end_and_counts_what_is_logged():
    """Warnings and errors are kept for the page, without what is below their first line."""
    looked = threading.Event()
    with Monitor("test", clock=Clock()) as monitor:
        monitor.on_update(looked.set)
        logging.getLogger("sfpubsub.client").warning("%s\nand more", "it is slow")
        logging.getLogger("sfpubsub.client").info("not kept")
        until(looked.is_set)
    logging.getLogger("sfpubsub.client").warning("after the end")
    assert [(told.level, told.text) for told in monitor.told] == [("warning", "it is slow")]
    samples = [each for each in monitor.registry.collect() if each.metric is Metric.LOG_RECORDS]
    assert {dict(each.labels)["level"]: each.value for each in samples} == {
        "warning": 1,
        "error": 0,
    }


def test_what_looks_does_not_end_what_it_looks_at(caplog):
    """A failure of the monitor itself is logged, and nothing else happens."""

    def breaks() -> None:
        raise ZeroDivisionError

    with Monitor("test", clock=Clock()) as monitor:
        monitor.on_update(breaks)
        until(lambda: "the monitor failed" in caplog.text)
    assert monitor.problems() == []


def test_the_last_steps_are_kept_the_newest_first():
    """So many as the page shows."""
    steps = Steps()
    for number in range(SHOWN + 5):
        steps.ended(Done("write", NOW + number, 0.1, str(number)))
    assert [done.text for done in steps.done()][:2] == ["24", "23"]
    assert len(steps.done()) == SHOWN
