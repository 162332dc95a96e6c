"""Tests of the AlarmClock, one timer thread for the deadlines of many owners."""

from __future__ import annotations

import threading
import time

import pytest

from sfpubsub.transports.alarm import AlarmClock

from ..conftest import PATIENCE


@pytest.fixture
def alarm():
    """Create an AlarmClock, and close it after the test."""
    clock = AlarmClock(time.monotonic)
    clock.start()
    yield clock
    clock.close()


def test_callbacks_run_in_the_order_of_their_deadlines(alarm):
    """The callback with the earlier deadline runs first, although it was set later."""
    rung: list[str] = []
    done = threading.Event()
    now = time.monotonic()
    alarm.set("late", now + 0.06, lambda: (rung.append("late"), done.set()))
    alarm.set("early", now + 0.02, lambda: rung.append("early"))
    assert done.wait(PATIENCE)
    assert rung == ["early", "late"]


def test_an_owner_has_one_deadline(alarm):
    """A new deadline replaces the owner's previous one, and None removes it."""
    rung: list[str] = []
    done = threading.Event()
    now = time.monotonic()
    alarm.set("a", now + 0.01, lambda: rung.append("replaced"))
    alarm.set("a", now + 0.02, lambda: rung.append("kept"))
    alarm.set("b", now + 0.01, lambda: rung.append("removed"))
    alarm.set("b", None, lambda: None)
    alarm.set("c", now + 0.05, done.set)
    assert done.wait(PATIENCE)
    assert rung == ["kept"]


def test_a_callback_can_set_the_next_deadline(alarm):
    """A callback can set its owner's next deadline, whose callback then runs;
    drivers rely on this.
    """
    done = threading.Event()
    alarm.set("a", 0.0, lambda: alarm.set("a", 0.0, done.set))
    assert done.wait(PATIENCE)


def test_a_callback_that_raises_does_not_stop_the_others(alarm, caplog):
    """An exception in a callback is logged, and the callbacks of other owners still run."""
    done = threading.Event()
    alarm.set("broken", 0.0, lambda: 1 / 0)
    alarm.set("sound", time.monotonic() + 0.02, done.set)
    assert done.wait(PATIENCE)
    assert "internal error in a timer callback" in caplog.text


def test_an_infinite_deadline_is_allowed(alarm):
    """An infinite deadline does not prevent another owner's callback from running."""
    done = threading.Event()
    alarm.set("never", float("inf"), done.set)
    alarm.set("soon", time.monotonic() + 0.01, done.set)
    assert done.wait(PATIENCE)


def test_no_callback_runs_after_close():
    """Closing ends the thread, drops the deadlines, and ignores those set later."""
    alarm = AlarmClock(time.monotonic)
    alarm.start()
    rung: list[int] = []
    alarm.set("a", time.monotonic() + 3600, lambda: rung.append(1))
    alarm.close()
    alarm.set("a", 0.0, lambda: rung.append(2))
    assert not any(thread.name == "sfpubsub-alarm" for thread in threading.enumerate())
    assert rung == []


def test_what_is_posted_runs_in_order_before_later_deadlines(alarm):
    """Callbacks that are posted run in the thread at once, in order, whatever deadlines wait."""
    ran: list[object] = []
    done = threading.Event()
    alarm.set("later", time.monotonic() + 3600, lambda: ran.append("later"))
    alarm.post(lambda: ran.append(1))
    alarm.post(lambda: ran.append(alarm.is_current))
    alarm.post(done.set)
    assert done.wait(PATIENCE)
    assert ran == [1, True]
    assert not alarm.is_current


def test_closing_does_not_wait_forever_for_a_callback(alarm, monkeypatch, caplog):
    """A callback that does not return delays close() for a limited time, and is logged."""
    monkeypatch.setattr("sfpubsub.transports.alarm._CLOSE_TIMEOUT", 0.05)
    entered, released = threading.Event(), threading.Event()
    alarm.post(lambda: (entered.set(), released.wait(PATIENCE)))
    assert entered.wait(PATIENCE)
    alarm.close()
    assert "did not return" in caplog.text
    released.set()
