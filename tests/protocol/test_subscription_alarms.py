"""Tests of the subscription's single timer, which always has a reason and is never due forever."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.protocol.commands import CancelStream, Finish, OpenStream, ReportOutage
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


def test_no_deadline_before_start_and_after_close() -> None:
    """A subscription has no deadline before it starts or after it ends.

    A timer call after its end has no effect.
    """
    script = Script()
    assert script.protocol.deadline() is None
    script.start()
    script.did(script.protocol.abort())

    assert script.protocol.deadline() is None
    assert script.protocol.timer(1e9, 0.5) == []


def test_late_timer_handles_one_alarm_at_a_time() -> None:
    """A timer call that is an hour late only reopens the stream and sets a future deadline."""
    script = streaming(connection_timeout=5000.0)
    script.end(failure())
    script.now += 3600.0

    assert of(OpenStream, script.protocol.timer(script.now, 0.5))
    assert script.protocol.state is State.OPENING
    assert script.protocol.deadline() is not None
    assert script.protocol.deadline() > script.now  # type: ignore[operator]


@pytest.mark.parametrize("start", [None, EARLIEST], ids=["managed", "plain"])
def test_silent_service_is_retried_at_a_moderate_rate(start: StartPosition | None) -> None:
    """If the service stays silent for a day, only 100 to 400 streams are opened."""
    script = streaming(start)
    opened = of(OpenStream, script.wait(86_400.0))

    assert 100 < len(opened) < 400


def test_zero_timings_do_not_loop_forever() -> None:
    """With the times of all alarms set to 0, the first timer call after `drain` cancels the stream
    and ends the subscription.
    """
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

    assert script.protocol.timer(script.now, 0.5) == [CancelStream(1), Finish(None)]
    assert script.protocol.deadline() is None


def test_alarms_of_a_stream_end_with_it() -> None:
    """After a stream has ended, its alarms are dropped, and only the reopening has a deadline."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    script.end(failure(FailureKind.SLOT_HELD), jitter=0.999)

    assert script.protocol.deadline() == pytest.approx(script.now + 0.5, abs=0.01)


def test_session_renewal_has_no_deadline_but_is_reported() -> None:
    """A session renewal has no deadline, because the driver always reports its result.

    If it takes 10 s, that is a warning, which is repeated.
    """
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    (first, second, third) = of(ReportOutage, script.wait(300.0))

    assert first.is_warning
    assert "10.0 s" in first.text
    assert "60.0 s" in second.text
    assert "5 min" in third.text
    assert script.protocol.state is State.RENEWING


def test_earliest_alarm_is_the_deadline() -> None:
    """The deadline is that of the earliest alarm.

    While a commit has no response, that is 30 s after the commit; afterwards, it is 300 s after
    the last message.
    """
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    assert script.protocol.deadline() == script.now + 30.0
    script.respond(answer(request))

    assert script.protocol.deadline() == script.now + 300.0


def test_connection_timeout_precedes_reopening() -> None:
    """If the connection timeout and a reopening are both due, the subscription ends."""
    script = streaming(EARLIEST, connection_timeout=1.0)
    script.end(failure(), jitter=0.999)
    script.now += 60.0
    script.wait(0.0)

    assert script.finish is not None
    assert script.stream == 1


def test_keepalives_keep_a_stream_open() -> None:
    """A stream that receives a keepalive every 270 s is never considered silent."""
    script = streaming(EARLIEST)
    for number in range(50):
        assert script.wait(270.0) == []
        script.respond(keepalive(10 + number))

    assert script.stream == 1
