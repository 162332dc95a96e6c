"""Tests of the state table: each pair of state and signal in it can occur, and others are
rejected.
"""

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
def test_every_pair_is_in_the_table_or_raises(state: State, signal: Signal) -> None:
    """A signal that is illegal in a state raises an error that names both, and the state does not
    change.
    """
    protocol = SubscriptionProtocol(NAME)
    protocol.state = state
    if signal in TRANSITIONS[state]:
        protocol._step(signal)
        assert protocol.state is TRANSITIONS[state][signal]
        return
    with pytest.raises(LocalProtocolError, match=f"{state.value} cannot handle {signal.value}"):
        protocol._step(signal)

    assert protocol.state is state


def test_every_state_has_a_row() -> None:
    """The table of transitions has a row for each state."""
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", [each for each in State if each is not State.CLOSED])
def test_abort_closes_from_every_state(state: State) -> None:
    """An abort leads from every other state to CLOSED."""
    assert step(state, Signal.ABORT) is State.CLOSED


def test_closed_is_final() -> None:
    """No signal is legal in the state CLOSED."""
    assert TRANSITIONS[State.CLOSED] == {}


def test_every_state_can_be_left() -> None:
    """Every state except CLOSED has a signal that leads to another state."""
    for state in set(State) - {State.CLOSED}:
        assert set(TRANSITIONS[state].values()) - {state}


def test_alive_states_are_those_that_accept_responses() -> None:
    """`ALIVE` contains exactly the states in which a response is legal."""
    assert {state for state, row in TRANSITIONS.items() if Signal.RESPONSE in row} == ALIVE


# How the application, the service or the passing of time causes each pair.


class Recorded(SubscriptionProtocol):
    """Records each pair of state and signal that occurs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.pairs: list[tuple[State, Signal]] = []
        super().__init__(*args, **options)

    def _step(self, signal: Signal) -> State:
        """Record the current state with the signal, then process the signal as usual."""
        self.pairs.append((self.state, signal))
        return super()._step(signal)


class RecordedScript(Script):
    """A test script whose subscription is a `Recorded`, which records pairs of state and signal."""

    make = Recorded


def opening() -> Script:
    """Return a plain subscription whose stream is being opened."""
    script = RecordedScript(StartPosition.earliest(), limits=Limits(max_bytes=10))
    script.start()
    return script


def streaming() -> Script:
    """Return a plain subscription that has read one event."""
    script = opening()
    script.read(events(1))
    return script


def waiting() -> Script:
    """Return a plain subscription that is waiting to reopen its stream."""
    script = streaming()
    script.end(failure())
    return script


def renewing() -> Script:
    """Return a plain subscription that is waiting for a new session."""
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    return script


def paused() -> Script:
    """Return a plain subscription whose stream was closed for lack of memory."""
    script = streaming()
    script.respond(events(2, 3, size=10))
    return script


def managed() -> Script:
    """Return a streaming managed subscription that has sent the commit of an acked event."""
    script = RecordedScript()
    script.start()
    script.read(events(1))
    script.ack(1)
    return script


def unsaved() -> Script:
    """Return a subscription that has an acked, uncommitted event and is reopening its stream."""
    script = managed()
    script.end(failure())
    script.wait(60.0)
    return script


def unsaved_waiting() -> Script:
    """Return a subscription that has an acked event and is waiting to reopen its stream."""
    script = managed()
    script.end(failure())
    return script


def unsaved_renewing() -> Script:
    """Return a subscription that has an acked event and is waiting for a new session."""
    script = managed()
    script.end(failure(FailureKind.REAUTHENTICATE))
    return script


def unsaved_paused() -> Script:
    """Return a subscription with an acked event, whose stream was closed for lack of memory."""
    script = RecordedScript(limits=Limits(max_bytes=10))
    script.start()
    script.read(events(1))
    script.respond(events(2, 3, size=10))
    script.ack(1)
    return script


def saving() -> Script:
    """Return a draining subscription that needs a new session to commit an acked event."""
    script = unsaved_renewing()
    script.drain()
    return script


def draining() -> Script:
    """Return a draining subscription that is waiting for the response to its commit."""
    script = managed()
    script.drain()
    return script


def closing() -> Script:
    """Return a plain subscription that is waiting for its half-closed stream to end."""
    script = streaming()
    script.drain()
    return script


def closed() -> Script:
    """Return a subscription that was aborted."""
    script = opening()
    script.did(script.protocol.abort())
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
    Signal.RENEWED: lambda script: script.did(script.protocol.session_renewed(script.now)),
    Signal.POSTPONED: lambda script: script.did(script.protocol.session_renewed(script.now)),
    Signal.DUE: lambda script: script.wait(60.0),
    Signal.DRAIN: lambda script: script.drain(),
    Signal.SAVE: lambda script: script.drain(),
    Signal.SETTLED: lambda script: script.wait(10.0),
    Signal.ENDED: lambda script: script.end(None),
    Signal.FATAL: lambda script: script.did(script.protocol.crashed(StreamError("a fault"))),
    Signal.ABORT: lambda script: script.did(script.protocol.abort()),
}

REFUSED = failure(FailureKind.POSITION_REJECTED, ReplayIdRejectedError("corrupted"))


def refused(script: Script) -> None:
    """Reject the start position of a subscription that can fall back to EARLIEST."""
    script.protocol._resume = Resume(NAME, StartPosition.after(rid(7)), StartPosition.earliest())  # type: ignore[attr-defined]
    script.end(REFUSED)


def fail_renewal(script: Script) -> None:
    """Make the renewal of the session fail with a retryable error."""
    script.did(script.protocol.renewal_failed(failure(), script.now, 0.5))


def renewing_again() -> Script:
    """Return a subscription whose renewed session was also rejected."""
    script = renewing()
    script.did(script.protocol.session_renewed(script.now))
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
    (State.RENEWING, Signal.BROKEN): fail_renewal,
    (State.SAVING, Signal.ENDED): fail_renewal,
}


@pytest.mark.parametrize(
    ("state", "signal"),
    [
        pytest.param(state, signal, id=f"{state.value}-{signal.value}")
        for state, row in TRANSITIONS.items()
        for signal in row
    ],
)
def test_every_pair_in_the_table_can_occur(state: State, signal: Signal) -> None:
    """Each pair of state and signal in the table can be produced."""
    script = (MAKE_FOR.get((state, signal)) or MAKE[state])()
    assert script.protocol.state is state
    before = len(script.protocol.pairs)  # type: ignore[attr-defined]
    cause = SPECIAL.get((state, signal)) or CAUSE[signal]
    cause(script)

    assert (state, signal) in script.protocol.pairs[before:]  # type: ignore[attr-defined]
