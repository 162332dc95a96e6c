"""What a refusal of the Streaming API means: which of our errors it is, and what to do next.

By a table, and by ``advice.reconnect`` before it, because codes are overloaded: 401 is a bad token
at Salesforce and an unknown client elsewhere, 403 an unknown client, a forbidden channel, a limit.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    ReplayIdRejectedError,
    SessionExpiredError,
    SfPubSubError,
    StreamError,
    StreamUnavailableError,
    TopicNotFoundError,
)
from sfpubsub.streaming.bayeux import Message, advice_of
from sfpubsub.types import Gap

_ERROR = re.compile(r"(\d{3}):([^:]*):(.*)", re.DOTALL)
_ENDED = (StreamUnavailableError, "the session with the server has ended")

# What an error begins with, our error, the cure. The first row that fits. Salesforce documentation,
# Streaming API error codes; the number of spaces differs between its pages.
_ERRORS: tuple[tuple[str, type[SfPubSubError], str], ...] = (
    (
        r"400:.*replayid .*was invalid",
        ReplayIdRejectedError,
        "its event is older than the service keeps, or the stream was reset: name a "
        "replay_fallback, or start over with -2 (all retained events) or -1 (new ones)",
    ),
    (r"400:.*does not exist", TopicNotFoundError, "check the channel's name and the user's access"),
    (r"400:.*api version", ConfigurationError, "set SFPUBSUB_STREAMING_API_VERSION"),
    (
        r"400:.*(cookie|connection type)",
        RemoteProtocolError,
        "something between here and the org drops cookies or changes requests",
    ),
    (r"400:", LocalProtocolError, "check the channel's name"),
    (r"40[13]:.*(unknown client|has not completed handshake|session_unknown)", *_ENDED),
    (r"401:", SessionExpiredError, "the access token is not accepted: sign in anew"),
    (r"402:", *_ENDED),
    (r"403:.*\blimit\b", QuotaExceededError, "an allocation of the org is used up: try later"),
    (r"403:", PermissionDeniedError, "check what the user may read, and the channel's name"),
    (r"404:.*vary only by case", LocalProtocolError, "spell the channel as it was made"),
    (r"404:", TopicNotFoundError, "check the channel's name"),
    (r"413:", LocalProtocolError, "the request is too large: use a shorter filter"),
    (r"503:", StreamUnavailableError, "the server is too busy: it asks for a few minutes"),
    (r"", StreamError, "see the cause"),
)


class BayeuxError(StreamError):
    """A refusal as the server said it; the cause of the error that is raised for it.

    Args:
        response: The whole answer.
    """

    def __init__(self, response: Message) -> None:
        said = response.get("error")
        self.response = response
        self.error = said if isinstance(said, str) else ""
        """Such as ``403::Unknown client``; its three digits are the ``error_code``."""
        found = _ERROR.fullmatch(self.error)
        super().__init__(self.error or "no reason given", error_code=found[1] if found else None)
        self.error_args = found[2].split(",") if found and found[2] else []
        """What stands between its colons."""
        self.error_message = found[3] if found else self.error
        """What stands behind them."""

    @property
    def reason(self) -> str:
        """What ``ext.sfdc.failureReason`` says, which is closer to the cause; else the error."""
        found: Any = self.response
        for part in ("ext", "sfdc", "failureReason"):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if found and isinstance(found, str) else self.error


class Next(enum.Enum):
    """What to do after a refusal. The first two are what an advice may say."""

    RETRY = "retry"
    """Send it again after a delay."""
    HANDSHAKE = "handshake"
    """Make another session with the server; the token is good."""
    RENEW = "renew"
    """Renew the token once, then make another session."""
    WAIT = "wait"
    """The server is busy or a limit is reached: make another session after a long delay."""
    STOP = "stop"
    """Tell the user."""


_NEXT = {
    SessionExpiredError: Next.RENEW,
    StreamUnavailableError: Next.HANDSHAKE,
    QuotaExceededError: Next.WAIT,
}


def _row(text: str) -> tuple[type[SfPubSubError], str]:
    flags = re.IGNORECASE | re.DOTALL
    return next((kind, cure) for start, kind, cure in _ERRORS if re.match(start, text, flags))


def error_for(what: str, refusal: BayeuxError, gap: Gap | None = None) -> SfPubSubError:
    """Return the error for a refusal, with the server's own words as its cause.

    Args:
        what: What was refused, for the message.
        refusal: The answer; its reason decides.
        gap: Of a `ReplayIdRejectedError`.
    """
    said = refusal.reason
    kind, cure = _row(said)
    shown = said if said == refusal.error else f"{said} ({refusal.error})"
    message = f"{what} was refused: {shown[:400] or 'no reason given'}; {cure}"
    details: dict[str, Any] = {"gap": gap} if kind is ReplayIdRejectedError else {}
    error = kind(message, error_code=BayeuxError({"error": said}).error_code, **details)
    error.__cause__ = refusal
    return error


def what_next(refusal: BayeuxError) -> Next:
    """Decide by the advice first, then by the code; the reason goes before the error."""
    if refusal.reason.startswith("503:"):
        return Next.WAIT  # the error beside it may say 401, and a sign-in would be wasted
    reconnect = advice_of(refusal.response).get("reconnect")
    if reconnect in ("retry", "handshake"):
        return Next(reconnect)
    steps = [_NEXT.get(_row(said)[0], Next.STOP) for said in (refusal.reason, refusal.error)]
    if Next.HANDSHAKE in steps and reconnect is None:
        return Next.HANDSHAKE
    if Next.RENEW in steps:
        return Next.RENEW
    return Next.WAIT if steps[0] is Next.WAIT else Next.STOP


def concerns_session(refusal: BayeuxError) -> bool:
    """Whether a refused subscribe is about the session and not about its channel."""
    is_busy = refusal.reason.startswith("503:")
    return is_busy or what_next(refusal) in (Next.HANDSHAKE, Next.RENEW)
