"""Types and functions for the Bayeux protocol 1.0, with the additions of the Streaming API.

The types include the events that applications receive, and the commands of the state machine
(protocol.py). The functions read Bayeux messages. This module is pure: no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sfpubsub.errors import RemoteProtocolError, SfPubSubError
from sfpubsub.types import Gap

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"
SUBSCRIBE = "/meta/subscribe"
UNSUBSCRIBE = "/meta/unsubscribe"
DISCONNECT = "/meta/disconnect"

# Maximum size of a request in bytes; at 32,768 the service responds "413::Maximum Request Size
# Exceeded".
MAX_REQUEST = 32_767

# Longest time accepted in a server's advice, in milliseconds: a day. Salesforce holds a connect for
# 110 s. A limit is needed because JSON numbers may include Infinity.
_LONGEST = 86_400_000

_NO_MESSAGES = "JSON that is not a list of Bayeux messages"

Message = dict[str, Any]

Answer: TypeAlias = tuple[list[Message], dict[tuple[str, str], Message]]
"""The events of a response, and its replies by channel and id."""


class Lane(enum.Enum):
    """A sequence of requests with at most one in flight.

    `POLL` is for connect requests, `ASK` for all others.
    """

    POLL = "poll"
    ASK = "ask"


@dataclass(eq=False)
class Send:
    """Command to send a request. The driver returns it to the protocol with the outcome."""

    lane: Lane
    messages: Sequence[Message]
    body: str
    """The messages as JSON."""
    timeout: float
    """Seconds allowed for each read of the response."""
    due: float
    """When the protocol cancels the request, in seconds of its clock; infinite once it is
    cancelled. Includes time for fetching a session first, if one may be needed.
    """
    refused: Any = None
    """The last session that the server refused, if any; the request must use another one."""
    session: Any = None
    """The session that the request was sent with; set by the transport."""
    is_cut: bool = False
    """Whether the request is cancelled. Replies to it are then ignored, but events that come with
    them are delivered. If it has not been sent yet, it is not sent.
    """


@dataclass(frozen=True)
class Cut:
    """Command to cancel a request by breaking its connection, so that it ends with an error."""

    request: Send


# Commands of the protocol, which the driver executes in order; it reports a gap to the application.
Command: TypeAlias = Send | Cut | Gap


class Call:
    """An operation that a caller waits for: open, subscribe or unsubscribe."""

    error: SfPubSubError | None = None
    is_done: bool = False

    def settle(self, error: SfPubSubError | None = None) -> None:
        """Mark the call as done, and also as failed if *error* is given."""
        self.error = error
        self.is_done = True  # set last: other threads read it


def path_of(channel: str) -> str:
    """Return a channel's name without its filter."""
    return channel.partition("?")[0]


def part_of(value: Any, *names: str) -> Any:
    """Return the value under nested keys of a message, or None if a key is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def replay_id_of(event: Message) -> int | None:
    """Return an event's replay id, or None if it has no valid one."""
    try:
        number = event["data"]["event"]["replayId"]
    except (KeyError, TypeError):
        return None
    return number if type(number) is int and number >= 0 else None  # isinstance accepts a bool


class StreamingMessage(NamedTuple):  # cheap to make, and there are many
    """A PushTopic event, generic event, platform event or change event."""

    raw: dict[str, Any]
    """The whole Bayeux message."""
    subscription: str
    """The channel as subscribed, including its filter; the key in the replay store."""
    replay_id: int | None
    """The event's position in its channel; None if the server did not send one."""
    delivery_seq: int
    """Sequence number of arrival in this client, starting at 1."""

    @property
    def channel(self) -> str:
        """The channel without its filter."""
        return path_of(self.raw["channel"])

    @property
    def data(self) -> Any:
        """The event's data as the server sent it; contains ``sobject`` or ``payload``."""
        return self.raw["data"]

    @property
    def type(self) -> str | None:
        """The kind of change of a PushTopic event: ``created``, ``updated``, ``deleted`` or
        ``undeleted``; None for other events.
        """
        found: str | None = part_of(self.raw, "data", "event", "type")
        return found

    @property
    def sobject(self) -> Any:
        """The record's fields in a PushTopic event; None for other events.

        If the record was deleted, ``Id`` is the only field.
        """
        return part_of(self.raw, "data", "sobject")

    @property
    def payload(self) -> Any:
        """The text of a generic event, or the fields of a platform or change event; None for
        PushTopic events.
        """
        return part_of(self.raw, "data", "payload")

    @property
    def created_date(self) -> str | None:
        """When the event was created, in the server's format; None if the server does not send it.

        PushTopic, generic and platform events have an ISO date; change events have milliseconds
        since the epoch.
        """
        found = part_of(self.raw, "data", "event", "createdDate")
        if found is None:
            found = part_of(self.payload, "ChangeEventHeader", "commitTimestamp")
        if found is None:
            found = part_of(self.payload, "CreatedDate")
        return None if found is None else str(found)


def advice_of(reply: Message) -> dict[str, Any]:
    """Return the valid parts of a reply's advice, with times in seconds.

    The keys are ``interval``, ``timeout`` and ``reconnect``. An unknown ``reconnect`` becomes
    ``none``. If ``multiple-clients`` is true, ``timeout`` is 0, because the server then responds to
    connect requests immediately.
    """
    given, found = reply.get("advice"), {}
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in ("interval", "timeout"):
            if type(value) in (int, float) and 0 <= value <= _LONGEST:
                found[key] = value / 1000
        elif key == "reconnect":
            found[key] = value if value in ("retry", "handshake") else "none"
    if part_of(reply, "advice", "multiple-clients") is True:
        found["timeout"] = 0.0
    return found


def sorted_out(messages: Any) -> Answer | RemoteProtocolError:
    """Split a response into events and replies, or return an error if it is not valid Bayeux.

    Message ids are not used to distinguish them, because some servers send events with ids.
    """
    events: list[Message] = []
    replies: dict[tuple[str, str], Message] = {}
    if not isinstance(messages, list):
        return broken(_NO_MESSAGES)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("channel"), str):
            return broken(_NO_MESSAGES)
        if "data" in message and "successful" not in message:
            events.append(message)
        else:
            replies[message["channel"], str(message.get("id"))] = message
    return events, replies


def masked(value: Any, secret: str) -> Any:
    """Return a JSON value with *secret* replaced by ``***`` in all texts, except keys."""
    if isinstance(value, str):
        return value.replace(secret, "***")
    if isinstance(value, dict):
        return {key: masked(item, secret) for key, item in value.items()}
    return [masked(item, secret) for item in value] if isinstance(value, list) else value


def broken(what: str) -> RemoteProtocolError:
    """Return the error for a response that is not valid Bayeux.

    Args:
        what: What the server sent, for the error message.
    """
    # Proxies and restarting servers send such responses, so a retry may succeed.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
