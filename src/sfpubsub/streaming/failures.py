"""What a refusal of the Streaming API means: which of our errors it is, and what to do next.

Two tables. The second is driven by ``advice.reconnect`` first and by the code second, because codes
are overloaded: 401 is a bad token at Salesforce and an unknown client elsewhere, 403 an unknown
client, a forbidden channel or a limit.
"""

from __future__ import annotations

import enum
import re
from typing import Any

from sfpubsub.errors import (
    AuthenticationError,
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
from sfpubsub.streaming.bayeux import Message, Refusal

_UNKNOWN = r"unknown client|has not completed handshake|session_unknown"
_LIMIT = r"\blimit\b"

# Code, words of its text, our error, what to do. The first row that fits. Salesforce documentation,
# Streaming API error codes; the number of spaces in the texts differs between its pages.
_ERRORS: tuple[tuple[int, str, type[SfPubSubError], str], ...] = (
    (
        400,
        r"replayid .*was invalid",
        ReplayIdRejectedError,
        "its event is older than the service keeps, or the stream was reset: name a "
        "replay_fallback, or start over with -2 (all retained events) or -1 (new ones)",
    ),
    (400, r"does not exist", TopicNotFoundError, "check the channel's name and the user's access"),
    (400, r"api version", ConfigurationError, "set SFPUBSUB_STREAMING_API_VERSION"),
    (
        400,
        r"cookie|connection type",
        RemoteProtocolError,
        "something between here and the org drops cookies or changes requests",
    ),
    (400, r"", LocalProtocolError, "check the channel's name"),
    (401, _UNKNOWN, StreamUnavailableError, "the session with the server has ended"),
    (401, r"", SessionExpiredError, "the access token is not accepted: sign in anew"),
    (402, r"", StreamUnavailableError, "the session with the server has ended"),
    (403, _UNKNOWN, StreamUnavailableError, "the session with the server has ended"),
    (403, _LIMIT, QuotaExceededError, "an allocation of the org is used up: try again later"),
    (403, r"", PermissionDeniedError, "check what the user may read, and the channel's name"),
    (404, r"vary only by case", LocalProtocolError, "spell the channel as it was made"),
    (404, r"", TopicNotFoundError, "check the channel's name"),
    (413, r"", LocalProtocolError, "the request is too large: use a shorter filter"),
    (503, r"", StreamUnavailableError, "the server is too busy: it asks for a few minutes"),
)


class BayeuxError(StreamError):
    """A refusal as the server said it; the cause of the error that is raised for it.

    Args:
        response: The whole answer.
        error: Its ``error``, verbatim.
        error_code: The three digits of it.
        error_args: What stands between its colons.
        error_message: What stands behind them.
    """

    def __init__(
        self,
        response: Message,
        error: str,
        error_code: int | None,
        error_args: list[str],
        error_message: str,
    ) -> None:
        super().__init__(error or "no reason given", error_code=_text(error_code))
        self.response = response
        self.error = error
        self.error_args = error_args
        self.error_message = error_message


def error_for(what: str, refusal: Refusal, **details: Any) -> SfPubSubError:
    """Return the error for a refusal, with the server's own words as its cause.

    Args:
        what: What was refused, for the message.
        refusal: The answer; its reason decides where it has one.
        details: More for a `ReplayIdRejectedError`.
    """
    true = refusal.true
    kind, cure = _kind(true)
    said = true.error if true is refusal else f"{true.error} ({refusal.error})"
    message = f"{what} was refused: {said[:400] or 'no reason given'}; {cure}"
    if not issubclass(kind, ReplayIdRejectedError):
        details = {}
    error = kind(message, error_code=_text(true.code), **details)
    error.__cause__ = BayeuxError(
        refusal.response, refusal.error, refusal.code, list(refusal.args), refusal.text
    )
    return error


def _kind(refusal: Refusal) -> tuple[type[SfPubSubError], str]:
    for code, words, kind, cure in _ERRORS:
        if refusal.code == code and re.search(words, refusal.text, re.IGNORECASE | re.DOTALL):
            return kind, cure
    return StreamError, "see the cause"


def _text(code: int | None) -> str | None:
    return None if code is None else str(code)


def is_replay_refused(refusal: Refusal) -> bool:
    """Whether the position was refused: the one refusal that a fallback is for."""
    return _kind(refusal)[0] is ReplayIdRejectedError


def twice_refused(error: SfPubSubError) -> AuthenticationError:
    """Return the error for a session that is refused although it was just renewed."""
    failure = AuthenticationError(f"a renewed session is refused as well: {error}")
    failure.__cause__ = error
    return failure


class Next(enum.Enum):
    """What to do after a handshake or connect was refused."""

    RETRY = "send it again after a delay"
    HANDSHAKE = "make another session with the server; the token is good"
    RENEW = "renew the token once, then make another session"
    WAIT = "the server is busy or a limit is reached: make another session after a long delay"
    STOP = "tell the user"


def what_next(refusal: Refusal) -> Next:
    """Decide by the advice first, then by the code; the reason goes before the error."""
    if refusal.true.code == 503:
        return Next.WAIT  # the error beside it may say 401, and a sign-in would be wasted
    if refusal.reconnect is not None and refusal.reconnect != "none":
        return Next(Next.RETRY if refusal.reconnect == "retry" else Next.HANDSHAKE)
    if refusal.reconnect is None and _is_unknown(refusal):
        return Next.HANDSHAKE
    if 401 in refusal.codes:
        return Next.RENEW
    return Next.WAIT if _kind(refusal.true)[0] is QuotaExceededError else Next.STOP


def concerns_session(refusal: Refusal) -> bool:
    """Whether a refused subscribe is about the session and not about its channel."""
    next_step = what_next(refusal)
    busy = next_step is Next.WAIT and refusal.true.code == 503
    return busy or next_step in (Next.HANDSHAKE, Next.RENEW)


def _is_unknown(refusal: Refusal) -> bool:
    return any(re.search(_UNKNOWN, item.text, re.IGNORECASE) for item in (refusal, refusal.true))
