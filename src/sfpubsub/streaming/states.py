"""The states of a channel: all transitions in one table.

`TRANSITIONS` contains every transition. This module does not define what happens in a state.

A channel is WANTED as soon as the application subscribes, and SUBSCRIBING while the request is in
flight. Once the server has confirmed it, it is ACTIVE. If the session ends, it is LOST until it is
subscribed again in the next session. If the application unsubscribes, it is LEAVING, then
UNSUBSCRIBING while that request is in flight, and LEFT at the end. A channel that is LEFT is kept,
because it remembers where it stopped.

If the application changes its mind while a request is in flight, the reply to that request comes in
a state that does not expect it:

- The caller gives up while SUBSCRIBING: the channel is WITHDRAWN, and a confirmation must be
  undone.
- The application subscribes again before the reply to the last request: the channel is WANTED, and
  that reply is ignored, because another subscribe request follows.
- The application also gives that up: the channel is LEFT, and a confirmation must be undone.

The table contains exactly the pairs of a state and a signal that can occur. Any other pair raises
an error and leaves the state unchanged.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """The states of a channel, as described at the top of this module."""

    WANTED = "wanted"
    SUBSCRIBING = "subscribing"
    ACTIVE = "active"
    LOST = "lost"
    LEAVING = "leaving"
    UNSUBSCRIBING = "unsubscribing"
    WITHDRAWN = "withdrawn"
    LEFT = "left"


class Signal(enum.Enum):
    """The triggers of state transitions."""

    WANT = "want"
    """The application subscribes."""
    LEAVE = "leave"
    """The application unsubscribes, or its subscribe call has ended with an error."""
    SENT = "sent"
    """The request for this channel was sent."""
    SUBSCRIBED = "subscribed"
    """The server has confirmed a subscribe request."""
    UNSUBSCRIBED = "unsubscribed"
    """The server has confirmed an unsubscribe request."""
    REFUSED = "refused"
    """The server has refused a subscribe request."""
    MOVED = "moved"
    """The server has refused the position, and there is another one to start at."""
    KEPT = "kept"
    """The server has refused an unsubscribe request."""
    SESSION_LOST = "session lost"
    """The session with the server has ended."""


# A channel whose last request is overtaken by the application: only a confirmed subscribe matters.
_OVERTAKEN = {
    Signal.UNSUBSCRIBED: State.LEFT,
    Signal.REFUSED: State.LEFT,
    Signal.KEPT: State.LEFT,
    Signal.SUBSCRIBED: State.LEAVING,
    Signal.SESSION_LOST: State.LEFT,
    Signal.LEAVE: State.LEFT,
    Signal.WANT: State.WANTED,
}

TRANSITIONS: dict[State, dict[Signal, State]] = {
    State.WANTED: {
        Signal.SENT: State.SUBSCRIBING,
        Signal.LEAVE: State.LEFT,
        Signal.SUBSCRIBED: State.WANTED,
        Signal.UNSUBSCRIBED: State.WANTED,
        Signal.REFUSED: State.WANTED,
        Signal.KEPT: State.WANTED,
        Signal.SESSION_LOST: State.WANTED,
    },
    State.SUBSCRIBING: {
        Signal.SUBSCRIBED: State.ACTIVE,
        Signal.REFUSED: State.LEFT,
        Signal.MOVED: State.WANTED,
        Signal.LEAVE: State.WITHDRAWN,
        Signal.SESSION_LOST: State.WANTED,
    },
    State.ACTIVE: {
        Signal.LEAVE: State.LEAVING,
        Signal.SESSION_LOST: State.LOST,
    },
    State.LOST: {
        Signal.SENT: State.SUBSCRIBING,
        Signal.LEAVE: State.LEFT,
        Signal.SESSION_LOST: State.LOST,
    },
    State.LEAVING: {
        Signal.SENT: State.UNSUBSCRIBING,
        Signal.WANT: State.WANTED,
        Signal.LEAVE: State.LEAVING,
        Signal.SESSION_LOST: State.LEFT,
    },
    State.UNSUBSCRIBING: {
        Signal.UNSUBSCRIBED: State.LEFT,
        Signal.KEPT: State.ACTIVE,
        Signal.WANT: State.WANTED,
        Signal.LEAVE: State.UNSUBSCRIBING,
        Signal.SESSION_LOST: State.LEFT,
    },
    State.WITHDRAWN: {
        Signal.SUBSCRIBED: State.LEAVING,
        Signal.REFUSED: State.LEFT,
        Signal.WANT: State.WANTED,
        Signal.LEAVE: State.WITHDRAWN,
        Signal.SESSION_LOST: State.LEFT,
    },
    State.LEFT: _OVERTAKEN,
}

WANTED = frozenset({State.WANTED, State.SUBSCRIBING, State.ACTIVE, State.LOST})
"""The application wants the channel's events."""

SETTLED = frozenset({State.ACTIVE, State.LEFT})
"""Nothing is to be sent for the channel, and no reply is expected."""

SUBSCRIBES = frozenset({State.WANTED, State.LOST})
"""A subscribe request is to be sent."""

ACCEPTING = frozenset({State.ACTIVE, State.LOST, State.LEAVING, State.UNSUBSCRIBING, State.LEFT})
"""Events are delivered: from the server's confirmation until the next subscribe request is sent."""

WAITING = frozenset({State.SUBSCRIBING, State.WITHDRAWN})
"""Events are held back until the reply to the subscribe request, which may come with older ones."""


def step(state: State, signal: Signal) -> State:
    """Return the state that follows *state* on *signal*.

    Raises:
        AssertionError: *signal* is not allowed in *state*, which is a bug in this package.
    """
    try:
        return TRANSITIONS[state][signal]
    except KeyError:
        raise AssertionError(
            f"bug in sfpubsub: a channel that is {state.value} cannot handle {signal.value}"
        ) from None
