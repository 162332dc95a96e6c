"""Bayeux messages, the requests that contain them, and the calls that wait for them. No I/O.

Implements the Bayeux protocol 1.0 and the additions of Salesforce's Streaming API.
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

_NO_MESSAGES = "something that is not a list of messages"

Message = dict[str, Any]

Answer: TypeAlias = tuple[list[Message], dict[tuple[str, str], Message]]
"""The events of a response, and its replies by channel and id."""


class Lane(enum.Enum):
    """Two requests may be in flight at a time: one connect, and one of any other kind."""

    POLL = "poll"
    ASK = "ask"


@dataclass(eq=False)
class Send:
    """A request to send. Its outcome is reported together with it."""

    lane: Lane
    messages: Sequence[Message]
    body: str
    """The messages as JSON."""
    timeout: float
    """Seconds allowed for request and response."""
    due: float
    """When the protocol cancels the request; later than the timeout if a session must be fetched
    first.
    """
    refused: Any = None
    """The session that the server refused; the request must use another one."""
    session: Any = None
    """The session it was sent with; set by the transport."""
    is_cut: bool = False
    """Whether the request is cancelled: its response is ignored, and if it has not been sent yet,
    it is not sent.
    """


@dataclass(frozen=True)
class Cut:
    """Cancel a request by breaking its connection; its failure is reported like any other."""

    request: Send


# Commands of the protocol to the driver, which executes them in order; a gap is reported.
Command: TypeAlias = Send | Cut | Gap


class Call:
    """An operation that a caller waits for: open, subscribe or unsubscribe."""

    error: SfPubSubError | None = None
    is_done: bool = False

    def settle(self, error: SfPubSubError | None = None) -> None:
        """Mark the call as done, or as failed with an error."""
        self.error = error
        self.is_done = True  # set last: other threads read it


def path_of(channel: str) -> str:
    """Return a channel's name without its filter."""
    return channel.partition("?")[0]


def part_of(value: Any, *names: str) -> Any:
    """Return the value under nested keys of a message; None if there is no such value."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class StreamingMessage(NamedTuple):  # cheap to make, and there are many
    """One event: a PushTopic event, generic event, platform event or change event."""

    raw: dict[str, Any]
    """The whole Bayeux message."""
    subscription: str
    """The channel as subscribed, including its filter; the key in the replay store."""
    replay_id: int | None
    """The event's position; None if the server has no replay."""
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
        ``undeleted``.
        """
        found: str | None = part_of(self.raw, "data", "event", "type")
        return found

    @property
    def sobject(self) -> Any:
        """The record's fields in a PushTopic event; only ``Id`` if it was deleted."""
        return part_of(self.raw, "data", "sobject")

    @property
    def payload(self) -> Any:
        """The text of a generic event, or the fields of a platform or change event."""
        return part_of(self.raw, "data", "payload")

    @property
    def created_date(self) -> str | None:
        """When the event was created, in the server's format; None if the server does not send it.

        PushTopic, generic and platform events have an ISO date; change events have milliseconds
        since 1970 UTC.
        """
        found = part_of(self.raw, "data", "event", "createdDate")
        if found is None:
            found = part_of(self.payload, "ChangeEventHeader", "commitTimestamp")
        if found is None:
            found = part_of(self.payload, "CreatedDate")
        return None if found is None else str(found)


def advice_of(reply: Message) -> dict[str, Any]:
    """Return the valid parts of a response's advice, with times in seconds.

    The keys are those of the protocol. An unknown ``reconnect`` is treated as ``none``.
    """
    given, found = reply.get("advice"), {}
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in ("interval", "timeout"):
            if type(value) in (int, float) and 0 <= value <= _LONGEST:
                found[key] = value / 1000
        elif key == "reconnect":
            found[key] = value if value in ("retry", "handshake") else "none"
    if part_of(reply, "advice", "multiple-clients") is True:
        found["timeout"] = 0.0  # the server holds no connect
    return found


def sorted_out(messages: Any) -> Answer | RemoteProtocolError:
    """Split a response into events and replies; return an error if it is not Bayeux.

    Ids cannot distinguish the two: some servers give events ids as well.
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


def broken(what: str) -> RemoteProtocolError:
    """Return the error for a response that is not Bayeux."""
    # Proxies and restarting servers send such responses, so a retry may succeed.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
