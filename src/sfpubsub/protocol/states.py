"""The life of a subscription: every transition, as one table.

House rules: all transitions are in `TRANSITIONS`; this file does not know what a state does.

A subscription outlives its streams. It is made in NEW. One stream's life:

- OPENING: a call was started and has brought nothing yet. Only its first response shows that the
  service accepts it, so that, and not the start of the call, makes it STREAMING and refills every
  budget of retries. A service that accepts calls and then refuses them cannot be told from a
  healthy one any earlier.
- STREAMING: responses come, credit and commits go.
- WAITING: no stream; a random delay runs before the next one. Reasons: the stream broke, was
  silent for too long (STALLED), the managed slot is held by another connection (BUSY), or the
  position was refused and another one was chosen (MOVED).
- RENEWING: no stream; the session expired and a new one is being fetched. One that comes while the
  service still has to be given time is POSTPONED.
- PAUSED: no stream; the application holds so much unread that the stream was given up. It opens
  again when there is ROOM.

The end has two ways. ABORT is at once, from anywhere. DRAIN is orderly: DRAINING commits what was
acked and waits for the answer, CLOSING has said that nothing more is asked for and waits for the
service to end the stream. SAVE is a DRAIN that finds acked events which no stream has shown for a
commit: one stream is opened for them, after a session that is still being fetched (SAVING). A
stream that ends while it is drained ends the subscription. FATAL is an end that no retry mends; the
subscription's error says why. Nothing follows CLOSED.

The table holds exactly the pairs that can happen. Words of a call that is no longer the current one
may come at any time; they are known by their stream's number and never become a signal. Any other
pair raises and leaves the state as it was.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from sfpubsub.errors import LocalProtocolError


class State(enum.Enum):
    """Where a subscription is in its life."""

    # Type checkers know that of Enum.
    if not TYPE_CHECKING:  # pragma: no branch
        # Several look-ups by state for each response; the one of Enum is written in Python.
        __hash__ = object.__hash__

    NEW = "new"
    OPENING = "opening"
    STREAMING = "streaming"
    WAITING = "waiting"
    RENEWING = "renewing"
    PAUSED = "paused"
    SAVING = "saving"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"


class Signal(enum.Enum):
    """What triggers a transition."""

    if not TYPE_CHECKING:  # pragma: no branch
        __hash__ = object.__hash__  # as for State

    START = "start"
    RESPONSE = "response"
    BROKEN = "broken"
    BUSY = "busy"
    EXPIRED = "expired"
    MOVED = "moved"
    STALLED = "stalled"
    OVERFULL = "overfull"
    ROOM = "room"
    RENEWED = "renewed"
    POSTPONED = "postponed"
    DUE = "due"
    DRAIN = "drain"
    SAVE = "save"
    SETTLED = "settled"
    ENDED = "ended"
    FATAL = "fatal"
    ABORT = "abort"


_OPEN = {
    Signal.RESPONSE: State.STREAMING,
    Signal.BROKEN: State.WAITING,
    Signal.BUSY: State.WAITING,
    Signal.MOVED: State.WAITING,
    Signal.STALLED: State.WAITING,
    Signal.EXPIRED: State.RENEWING,
    Signal.FATAL: State.CLOSED,
    Signal.ABORT: State.CLOSED,
}

TRANSITIONS: dict[State, dict[Signal, State]] = {
    State.NEW: {
        Signal.START: State.OPENING,
        Signal.DRAIN: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.OPENING: {**_OPEN, Signal.DRAIN: State.CLOSING, Signal.SAVE: State.DRAINING},
    State.STREAMING: {**_OPEN, Signal.OVERFULL: State.PAUSED, Signal.DRAIN: State.DRAINING},
    State.WAITING: {
        Signal.DUE: State.OPENING,
        Signal.DRAIN: State.CLOSED,
        Signal.SAVE: State.DRAINING,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.RENEWING: {
        Signal.RENEWED: State.OPENING,
        Signal.POSTPONED: State.WAITING,
        Signal.BROKEN: State.WAITING,
        Signal.DRAIN: State.CLOSED,
        Signal.SAVE: State.SAVING,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.PAUSED: {
        Signal.ROOM: State.OPENING,
        Signal.DRAIN: State.CLOSED,
        Signal.SAVE: State.DRAINING,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.SAVING: {
        Signal.RENEWED: State.DRAINING,
        Signal.ENDED: State.CLOSED,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.DRAINING: {
        Signal.RESPONSE: State.DRAINING,
        Signal.SETTLED: State.CLOSING,
        Signal.ENDED: State.CLOSED,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.CLOSING: {
        Signal.RESPONSE: State.CLOSING,
        Signal.ENDED: State.CLOSED,
        Signal.FATAL: State.CLOSED,
        Signal.ABORT: State.CLOSED,
    },
    State.CLOSED: {},
}

# States in which a call is alive.
ALIVE = frozenset({State.OPENING, State.STREAMING, State.DRAINING, State.CLOSING})


def step(state: State, signal: Signal) -> State:
    """Return the next state.

    Raises:
        LocalProtocolError: The table has no such transition.
    """
    try:
        return TRANSITIONS[state][signal]
    except KeyError:
        raise LocalProtocolError(
            f"a subscription in state {state.value} cannot handle {signal.value}"
        ) from None
