"""One deadline, one timer: it always rings for something, and never spins."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.protocol.commands import OpenStream
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import StartPosition
from tests.protocol.scripted import (
    Script,
    answer,
    commits,
    events,
    failure,
    keepalive,
    of,
    streaming,
)

EARLIEST = StartPosition.earliest()


def test_there_is_no_alarm_before_the_start_and_after_the_end() -> None:
    """Nothing is due."""
    script = Script()
    assert script.protocol.deadline() is None
    script.start()
    script._did(script.protocol.abort())

    assert script.protocol.deadline() is None
    assert script.protocol.timer(1e9, 0.5) == []


def test_the_timer_does_one_thing_at_a_time() -> None:
    """Late by an hour, each ring handles one alarm, and the deadline tells of the next."""
    script = streaming(connection_timeout=5000.0)
    script.end(failure())
    script.now += 3600.0

    assert of(OpenStream, script.protocol.timer(script.now, 0.5))
    assert script.protocol.state is State.OPENING
    assert script.protocol.deadline() is not None
    assert script.protocol.deadline() > script.now  # type: ignore[operator]


@pytest.mark.parametrize("start", [None, EARLIEST], ids=["managed", "plain"])
def test_a_silent_service_never_makes_it_spin(start: StartPosition | None) -> None:
    """A day without a word: it tries again at a human pace."""
    script = streaming(start)
    opened = of(OpenStream, script.wait(86_400.0))

    assert 100 < len(opened) < 400


def test_times_of_zero_do_not_spin() -> None:
    """Tests scale times down, in the end to nothing; each alarm still rings once."""
    times = Timings(
        keepalive=0.0,
        keepalive_margin=0.0,
        reserve=0.0,
        commit_timeout=0.0,
        drain_timeout=0.0,
        close_timeout=0.0,
        unacked_stall=0.0,
    )
    script = Script(EARLIEST, timings=times, limits=Limits(max_pending_count=1))
    script.start()
    script.drain()
    script.wait(0.0)

    assert script.finish is not None


def test_the_alarms_of_a_stream_end_with_it() -> None:
    """While waiting only the reopening is due, not the commit or the watchdog of the old call."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    script.end(failure(FailureKind.SLOT_HELD), jitter=0.999)

    assert script.protocol.deadline() == pytest.approx(script.now + 0.5, abs=0.01)


def test_renewing_waits_for_the_session_alone() -> None:
    """The driver reports the session, or that there is none."""
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))

    assert script.protocol.deadline() is None


def test_the_first_due_alarm_is_the_deadline() -> None:
    """Of the answer, the watchdog and the reserve, the nearest."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    assert script.protocol.deadline() == script.now + 30.0
    script.respond(answer(request))

    assert script.protocol.deadline() == script.now + 300.0


def test_giving_up_comes_before_opening_again() -> None:
    """With both due there is no last attempt behind the timeout."""
    script = streaming(EARLIEST, connection_timeout=1.0)
    script.end(failure(), jitter=0.999)
    script.now += 60.0
    script.wait(0.0)

    assert script.finish is not None
    assert script.stream == 1


def test_responses_move_the_watchdog() -> None:
    """A stream that says something every 270 s lives for ever."""
    script = streaming(EARLIEST)
    for number in range(50):
        assert script.wait(270.0) == []
        script.respond(keepalive(10 + number))

    assert script.stream == 1
