"""The table of states: every pair is in it, or is refused."""

from __future__ import annotations

import itertools

import pytest

from sfpubsub.errors import LocalProtocolError
from sfpubsub.protocol.states import ALIVE, TRANSITIONS, Signal, State, step
from tests.protocol.scripted import NAME, SubscriptionProtocol

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
    with pytest.raises(LocalProtocolError, match=f"{state.value} cannot take {signal.value}"):
        protocol._step(signal)

    assert protocol.state is state


def test_every_state_has_its_row() -> None:
    """No state is forgotten in the table."""
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", State)
def test_abort_ends_every_state(state: State) -> None:
    """The application can always end a subscription."""
    assert step(state, Signal.ABORT) is State.CLOSED


def test_the_end_is_the_end() -> None:
    """Nothing opens a closed subscription again."""
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}
    assert Signal.START not in TRANSITIONS[State.CLOSED]


def test_every_state_can_be_reached_and_left() -> None:
    """The table has no island and no trap."""
    reached = {State.NEW} | {to for row in TRANSITIONS.values() for to in row.values()}

    assert reached == set(State)
    for state in set(State) - {State.CLOSED}:
        assert set(TRANSITIONS[state].values()) - {state}


def test_a_call_is_alive_exactly_where_a_response_is_legal() -> None:
    """Words of a stream are heard in these states and in no other but the closed one."""
    assert {state for state, row in TRANSITIONS.items() if Signal.RESPONSE in row} == {
        *ALIVE,
        State.CLOSED,
    }
