"""What Bayeux messages say, as far as it is not about one subscription. No I/O, no clock, no state.

The rules are those of the Bayeux protocol 1.0 and of Salesforce's Streaming API on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"
SUBSCRIBE = "/meta/subscribe"
UNSUBSCRIBE = "/meta/unsubscribe"
DISCONNECT = "/meta/disconnect"

# The largest request that is sent, in bytes; at 32,768 the service answers "413::Maximum Request
# Size Exceeded".
MAX_REQUEST = 32_767

Message = dict[str, Any]

T = TypeVar("T")


@dataclass(frozen=True)
class Advice:
    """What the server wants of its client."""

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
        return Advice(
            _seconds(given.get("interval"), self.interval),
            _seconds(given.get("timeout"), self.timeout),
            given.get("multiple-clients", self.is_shared) is True,
        )


def _seconds(milliseconds: Any, before: T) -> float | T:
    is_time = type(milliseconds) in (int, float) and milliseconds >= 0
    return milliseconds / 1000 if is_time else before


def reconnect_of(response: Message) -> str | None:
    """Return what an answer advises: ``retry``, ``handshake``, ``none``; None if it does not say.

    An unknown word counts as ``none``.
    """
    advice = response.get("advice")
    word = advice.get("reconnect") if isinstance(advice, Mapping) else None
    return word if word in ("retry", "handshake", None) else "none"
