"""The state machine of a subscription: all transitions in one table.

`TRANSITIONS` contains every transition. This module does not define what happens in a state.

A subscription opens one stream after another. Its first state is NEW. The other states are:

- OPENING: a call was started, and no response has arrived yet. Only the first response proves that
  the service accepts the call, so only a response changes the state to STREAMING and resets all
  retry budgets. Until then, a service that is about to reject the call looks healthy.
- STREAMING: responses arrive; credit (window.py) and commits are sent.
- WAITING: no stream; a randomised backoff runs before the next one. Reasons: the stream was lost
  (BROKEN) or silent for too long (STALLED), the managed subscription is in use by another
  connection (BUSY), or the position was rejected and replaced (MOVED).
- RENEWING: no stream; the session expired and a new one is being fetched. If the new session
  arrives during a backoff, reopening is POSTPONED.
- PAUSED: no stream; it was closed because the application has too many unread events. It reopens
  when there is ROOM.

A subscription can end in three ways; CLOSED is final:

- ABORT ends it immediately.
- DRAIN is graceful. DRAINING commits the acked events and waits for the response. CLOSING has
  half-closed the stream and waits for the service to end it. If the stream ends in either state, so
  does the subscription. In states other than STREAMING, SAVE replaces DRAIN if there are acked
  events to commit. They can be committed only after a stream has redelivered them, so a stream is
  opened unless one is already opening. SAVING waits for the session that this needs.
- FATAL is a failure that retries cannot fix; the subscription's error states the cause.

The table contains exactly the pairs of a state and a signal that can occur. Any other pair raises
an error and leaves the state unchanged. Messages of an earlier call may arrive at any time; they
are recognised by their stream number and never become a signal.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from sfpubsub.errors import LocalProtocolError


class State(enum.Enum):
    """The states of a subscription, as described at the top of this module."""

    # Hidden from type checkers, which use the hash of Enum.
    if not TYPE_CHECKING:  # pragma: no branch
        # There are several lookups by state per response, and the hash of Enum is implemented in
        # Python.
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
    """The triggers of state transitions."""

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

# States with an active call.
ALIVE = frozenset({State.OPENING, State.STREAMING, State.DRAINING, State.CLOSING})


def step(state: State, signal: Signal) -> State:
    """Return the state that follows *state* on *signal*.

    Raises:
        LocalProtocolError: *signal* is not allowed in *state*.
    """
    try:
        return TRANSITIONS[state][signal]
    except KeyError:
        raise LocalProtocolError(
            f"a subscription in state {state.value} cannot handle {signal.value}"
        ) from None
