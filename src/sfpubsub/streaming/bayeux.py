"""Bayeux messages, the requests that carry them, and the calls that wait for them. No I/O.

The rules are those of the Bayeux protocol 1.0 and of Salesforce's Streaming API on top of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sfpubsub.errors import RemoteProtocolError, SfPubSubError
from sfpubsub.types import Gap

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"
SUBSCRIBE = "/meta/subscribe"
UNSUBSCRIBE = "/meta/unsubscribe"
DISCONNECT = "/meta/disconnect"

# The largest request that is sent, in bytes; at 32,768 the service answers "413::Maximum Request
# Size Exceeded".
MAX_REQUEST = 32_767

# The longest time that a server's advice is believed, in milliseconds: a day. Salesforce holds a
# connect for 110 s; Infinity is a number as well.
_LONGEST = 86_400_000

_NO_MESSAGE = "something that is not a message"

Message = dict[str, Any]

Answer: TypeAlias = tuple[list[Message], dict[tuple[str, str], Message]]
"""The events of an answer, and its replies by channel and id."""


class Lane(enum.Enum):
    """Two requests may be in flight: one connect, and one of everything else."""

    POLL = "poll"
    ASK = "ask"


@dataclass(eq=False)
class Send:
    """A request: send it, and hand its answer or its failure back together with this."""

    lane: Lane
    messages: Sequence[Message]
    body: str
    """The messages as JSON."""
    timeout: float
    """Seconds that the exchange may take."""
    due: float
    """When the protocol cuts it; later than the timeout if a session must be fetched first."""
    refused: Any = None
    """The session that the server refused: send the request with another one."""
    session: Any = None
    """The session it was sent with. The transport says so."""
    is_cut: bool = False
    """Whether its answer no longer matters. One that is not on its way yet stays unsent."""


@dataclass(frozen=True)
class Cut:
    """Break the connection of a request; its failure is reported like any other."""

    request: Send


# What the protocol wants done, in order; a gap is to be reported.
Command: TypeAlias = Send | Cut | Gap


class Call:
    """What a caller waits for: an opening, a subscribe or an unsubscribe."""

    error: SfPubSubError | None = None
    is_done: bool = False

    def settle(self, error: SfPubSubError | None = None) -> None:
        """Say that it is done, or why it cannot be."""
        self.error = error
        self.is_done = True  # last: other threads look at it


def advice_of(reply: Message) -> dict[str, Any]:
    """Return what an answer advises, as far as it has the form; times in seconds.

    The keys are those of the wire. A ``reconnect`` that is unknown counts as ``none``.
    """
    given, found = reply.get("advice"), {}
    for key, value in given.items() if isinstance(given, Mapping) else ():
        if key in ("interval", "timeout"):
            if type(value) in (int, float) and 0 <= value <= _LONGEST:
                found[key] = value / 1000
        elif key == "multiple-clients":
            found[key] = value is True
        elif key == "reconnect":
            found[key] = value if value in ("retry", "handshake") else "none"
    return found


def sorted_out(messages: Any) -> Answer | RemoteProtocolError:
    """Return what an answer's messages are; or why it is not Bayeux.

    Ids alone are no help: some servers give events their own.
    """
    events: list[Message] = []
    replies: dict[tuple[str, str], Message] = {}
    if type(messages) is not list:
        return broken("no list of messages")
    try:
        for message in messages:
            if type(message["channel"]) is not str:
                return broken(_NO_MESSAGE)
            if "data" in message and "successful" not in message:
                events.append(message)
            else:
                replies[message["channel"], str(message.get("id"))] = message
    except (TypeError, KeyError):
        return broken(_NO_MESSAGE)
    return events, replies


def broken(what: str) -> RemoteProtocolError:
    """Return the error for an answer that is not Bayeux."""
    # Proxies and restarting servers send such things: worth another try.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
