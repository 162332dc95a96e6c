"""Bayeux messages: what is sent, and what an answer says. No I/O, no clock, no state.

The rules are those of the Bayeux protocol 1.0 and of Salesforce's Streaming API on top of it:
replay positions travel in ``ext.replay``, and the true reason of a refusal may stand in
``ext.sfdc.failureReason``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"
SUBSCRIBE = "/meta/subscribe"
UNSUBSCRIBE = "/meta/unsubscribe"
DISCONNECT = "/meta/disconnect"

# The largest request that is sent, in bytes; at 32,768 the service answers "413::Maximum Request
# Size Exceeded".
MAX_REQUEST = 32_767

_ERROR = re.compile(r"(\d{3}):([^:]*):(.*)", re.DOTALL)

Message = dict[str, Any]


@dataclass(frozen=True)
class Advice:
    """What the server wants of its client. Each answer changes the parts that it names."""

    interval: float = 0.0
    """Seconds to wait before the next connect; milliseconds on the wire."""
    timeout: float | None = None
    """Seconds that the server may hold a connect; None while it has not said."""
    is_shared: bool = False
    """Whether the server sees several clients behind the cookies: then it holds no connect."""

    def merged(self, given: object) -> Advice:
        """Return this advice with the parts that an answer's ``advice`` names."""
        if not isinstance(given, Mapping):
            return self
        interval, timeout = _seconds(given.get("interval")), _seconds(given.get("timeout"))
        is_shared = given.get("multiple-clients", self.is_shared) is True
        return replace(
            self,
            interval=self.interval if interval is None else interval,
            timeout=self.timeout if timeout is None else timeout,
            is_shared=is_shared,
        )


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


@dataclass(frozen=True)
class Refusal:
    """An answer that says no."""

    response: Message
    """The whole answer."""
    error: str
    """Its ``error``, such as ``403::Unknown client``."""
    code: int | None
    """The three digits; None if the error is not of that form."""
    args: tuple[str, ...]
    """What stands between the colons, split at commas."""
    text: str
    """What stands behind them; the whole error if it is not of that form."""
    reason: Refusal | None = None
    """What ``ext.sfdc.failureReason`` says, which is closer to the cause."""

    @property
    def true(self) -> Refusal:
        """The reason where there is one, else this."""
        return self.reason or self

    @property
    def codes(self) -> tuple[int | None, int | None]:
        """The code of the reason and that of the error."""
        return self.true.code, self.code

    @property
    def reconnect(self) -> str | None:
        """What the answer advises: ``retry``, ``handshake``, ``none``; None if it does not say.

        An unknown word counts as ``none``.
        """
        return reconnect_of(self.response)


def refusal_of(response: Message) -> Refusal:
    """Read an answer that says no."""
    reason: Any = response
    for part in ("ext", "sfdc", "failureReason"):
        reason = reason.get(part, "") if isinstance(reason, Mapping) else ""
    found = _parsed(response, response.get("error"))
    if isinstance(reason, str) and reason:
        return replace(found, reason=_parsed(response, reason))
    return found


def _parsed(response: Message, error: object) -> Refusal:
    text = error if isinstance(error, str) else ""
    found = _ERROR.fullmatch(text)
    if found is None:
        return Refusal(response, text, None, (), text)
    args = tuple(found[2].split(",")) if found[2] else ()
    return Refusal(response, text, int(found[1]), args, found[3])


def reconnect_of(response: Message) -> str | None:
    """Return what an answer's advice says of reconnecting; None if it says nothing."""
    advice = response.get("advice")
    word = advice.get("reconnect") if isinstance(advice, Mapping) else None
    if word is None:
        return None
    return word if word in ("retry", "handshake") else "none"


# What is sent.


def handshake(number: str) -> Message:
    """Return a handshake; the only message of its request."""
    return {
        "channel": HANDSHAKE,
        "id": number,
        "version": "1.0",
        "minimumVersion": "1.0",
        "supportedConnectionTypes": ["long-polling"],
        "ext": {"replay": True},
    }


def connect(number: str, client_id: str, *, at_once: bool) -> Message:
    """Return a connect; *at_once* asks the server not to hold it."""
    message: Message = {
        "channel": CONNECT,
        "id": number,
        "clientId": client_id,
        "connectionType": "long-polling",
    }
    return {**message, "advice": {"timeout": 0}} if at_once else message


def subscribe(number: str, client_id: str, name: str, path: str, position: int) -> Message:
    """Return a subscribe: *name* may have a filter, *path*, which the position goes with, not."""
    return {
        "channel": SUBSCRIBE,
        "id": number,
        "clientId": client_id,
        "subscription": name,
        "ext": {"replay": {path: position}},
    }


def unsubscribe(number: str, client_id: str, name: str) -> Message:
    """Return an unsubscribe."""
    return {"channel": UNSUBSCRIBE, "id": number, "clientId": client_id, "subscription": name}


def disconnect(number: str, client_id: str) -> Message:
    """Return a disconnect."""
    return {"channel": DISCONNECT, "id": number, "clientId": client_id}
