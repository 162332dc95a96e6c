"""The table of states: every pair in it happens, and every other one is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sfpubsub.config import Limits
from sfpubsub.errors import LocalProtocolError, ReplayIdRejectedError, StreamError
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.resume import Resume
from sfpubsub.protocol.states import ALIVE, TRANSITIONS, Signal, State, step
from sfpubsub.types import StartPosition
from tests.protocol.scripted import (
    NAME,
    Script,
    SubscriptionProtocol,
    events,
    failure,
    keepalive,
    rid,
)

PAIRS = [
    pytest.param(state, signal, id=f"{state.value}-{signal.value}")
    for state, signal in itertools.product(State, Signal)
]


@pytest.mark.parametrize(("state", "signal"), PAIRS)
def test_every_pair_is_in_the_table_or_refused(state: State, signal: Signal) -> None:
    """An illegal pair raises, names both, and leaves the subscription as it was."""
    protocol = SubscriptionProtocol(NAME)
    protocol.state = state
    if signal in TRANSITIONS[state]:
        protocol._step(signal)
        assert protocol.state is TRANSITIONS[state][signal]
        return
    with pytest.raises(LocalProtocolError, match=f"{state.value} cannot handle {signal.value}"):
        protocol._step(signal)

    assert protocol.state is state


def test_every_state_has_its_row() -> None:
    """No state is forgotten in the table."""
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", [each for each in State if each is not State.CLOSED])
def test_abort_ends_every_state(state: State) -> None:
    """The application can always end a subscription."""
    assert step(state, Signal.ABORT) is State.CLOSED


def test_the_end_is_the_end() -> None:
    """Nothing follows, and nothing opens a closed subscription again."""
    assert TRANSITIONS[State.CLOSED] == {}


def test_every_state_can_be_left() -> None:
    """The table has no trap."""
    for state in set(State) - {State.CLOSED}:
        assert set(TRANSITIONS[state].values()) - {state}


def test_a_call_is_alive_exactly_where_a_response_is_legal() -> None:
    """Words of a stream are heard in these states and in no other."""
    assert {state for state, row in TRANSITIONS.items() if Signal.RESPONSE in row} == ALIVE


# How an application, a service and the time bring each pair about.


class Recorded(SubscriptionProtocol):
    """Remembers the pairs that it went through."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.pairs: list[tuple[State, Signal]] = []
        super().__init__(*args, **options)

    def _step(self, signal: Signal) -> State:
        self.pairs.append((self.state, signal))
        return super()._step(signal)


class RecordedScript(Script):
    """A script of such a subscription."""

    make = Recorded


def opening() -> Script:
    script = RecordedScript(StartPosition.earliest(), limits=Limits(max_bytes=10))
    script.start()
    return script


def streaming() -> Script:
    script = opening()
    script.read(events(1))
    return script


def waiting() -> Script:
    script = streaming()
    script.end(failure())
    return script


def renewing() -> Script:
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    return script


def paused() -> Script:
    script = streaming()
    script.respond(events(2, 3, size=10))
    return script


def managed() -> Script:
    """Streaming, with an acked event whose commit is out."""
    script = RecordedScript()
    script.start()
    script.read(events(1))
    script.ack(1)
    return script


def unsaved() -> Script:
    """Opening again, with an acked event that no stream has shown for a commit."""
    script = managed()
    script.end(failure())
    script.wait(60.0)
    return script


def unsaved_waiting() -> Script:
    script = managed()
    script.end(failure())
    return script


def unsaved_renewing() -> Script:
    script = managed()
    script.end(failure(FailureKind.REAUTHENTICATE))
    return script


def unsaved_paused() -> Script:
    script = RecordedScript(limits=Limits(max_bytes=10))
    script.start()
    script.read(events(1))
    script.respond(events(2, 3, size=10))
    script.ack(1)
    return script


def saving() -> Script:
    script = unsaved_renewing()
    script.drain()
    return script


def draining() -> Script:
    script = managed()
    script.drain()
    return script


def closing() -> Script:
    script = streaming()
    script.drain()
    return script


def closed() -> Script:
    script = opening()
    script._did(script.protocol.abort())
    return script


MAKE: dict[State, Callable[[], Script]] = {
    State.NEW: lambda: RecordedScript(StartPosition.earliest()),
    State.OPENING: opening,
    State.STREAMING: streaming,
    State.WAITING: waiting,
    State.RENEWING: renewing,
    State.PAUSED: paused,
    State.SAVING: saving,
    State.DRAINING: draining,
    State.CLOSING: closing,
}

Cause = Callable[[Script], object]

CAUSE: dict[Signal, Cause] = {
    Signal.START: lambda script: script.start(),
    Signal.RESPONSE: lambda script: script.respond(keepalive(5)),
    Signal.BROKEN: lambda script: script.end(failure()),
    Signal.BUSY: lambda script: script.end(failure(FailureKind.SLOT_HELD)),
    Signal.EXPIRED: lambda script: script.end(failure(FailureKind.REAUTHENTICATE)),
    Signal.STALLED: lambda script: script.wait(300.0),
    Signal.OVERFULL: lambda script: script.respond(events(2, 3, size=10)),
    Signal.ROOM: lambda script: script.take(),
    Signal.RENEWED: lambda script: script._did(script.protocol.session_renewed(script.now)),
    Signal.POSTPONED: lambda script: script._did(script.protocol.session_renewed(script.now)),
    Signal.DUE: lambda script: script.wait(60.0),
    Signal.DRAIN: lambda script: script.drain(),
    Signal.SAVE: lambda script: script.drain(),
    Signal.SETTLED: lambda script: script.wait(10.0),
    Signal.ENDED: lambda script: script.end(None),
    Signal.FATAL: lambda script: script._did(script.protocol.crashed(StreamError("a fault"))),
    Signal.ABORT: lambda script: script._did(script.protocol.abort()),
}

REFUSED = failure(FailureKind.POSITION_REJECTED, ReplayIdRejectedError("corrupted"))


def refused(script: Script) -> None:
    """A position is refused, and there is another one."""
    script.protocol._resume = Resume(NAME, StartPosition.after(rid(7)), StartPosition.earliest())  # type: ignore[attr-defined]
    script.end(REFUSED)


def no_session(script: Script) -> None:
    """The login is down."""
    script._did(script.protocol.renewal_failed(failure(), script.now, 0.5))


def renewing_again() -> Script:
    """The session that was just fetched was refused as well."""
    script = renewing()
    script._did(script.protocol.session_renewed(script.now))
    script.end(failure(FailureKind.REAUTHENTICATE))
    return script


MAKE_FOR: dict[tuple[State, Signal], Callable[[], Script]] = {
    (State.OPENING, Signal.SAVE): unsaved,
    (State.WAITING, Signal.SAVE): unsaved_waiting,
    (State.RENEWING, Signal.SAVE): unsaved_renewing,
    (State.PAUSED, Signal.SAVE): unsaved_paused,
    (State.RENEWING, Signal.POSTPONED): renewing_again,
}

SPECIAL: dict[tuple[State, Signal], Cause] = {
    (State.OPENING, Signal.MOVED): refused,
    (State.STREAMING, Signal.MOVED): refused,
    (State.RENEWING, Signal.BROKEN): no_session,
    (State.SAVING, Signal.ENDED): no_session,
}


@pytest.mark.parametrize(
    ("state", "signal"),
    [
        pytest.param(state, signal, id=f"{state.value}-{signal.value}")
        for state, row in TRANSITIONS.items()
        for signal in row
    ],
)
def test_every_pair_in_the_table_happens(state: State, signal: Signal) -> None:
    """The table is what the code does: no pair is there that inputs cannot bring about."""
    script = (MAKE_FOR.get((state, signal)) or MAKE[state])()
    assert script.protocol.state is state
    before = len(script.protocol.pairs)  # type: ignore[attr-defined]
    cause = SPECIAL.get((state, signal)) or CAUSE[signal]
    cause(script)

    assert (state, signal) in script.protocol.pairs[before:]  # type: ignore[attr-defined]
