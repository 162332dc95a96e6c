"""Maps refusals of the Streaming API to errors of this package and to the next step.

Unless the server is busy (503), advice to retry or to open a new session takes precedence over the
table of codes, because codes are overloaded: 401 means an invalid token at Salesforce, but an
unknown client elsewhere; 403 means an unknown client, a forbidden channel, or a limit that was
reached.
"""

from __future__ import annotations

import enum
import re

from sfpubsub import errors
from sfpubsub.streaming.bayeux import Message, advice_of, part_of

_ERROR = re.compile(r"(?:(\d{3}):([^:]*):)?(.*)", re.DOTALL)

_LOST = "the event is no longer retained: set replay_fallback, or use -2 (all) or -1 (new events)"
_CHANGED = "a proxy or firewall on the way to the org drops cookies or changes requests"
_ENDED = (errors.StreamUnavailableError, "the session with the server has ended")

# Pattern for the start of a refusal, the error to raise, and a hint for its message. The first
# match applies. Source: Salesforce documentation, Streaming API error codes; the number of spaces
# differs between its pages.
_ERRORS: tuple[tuple[str, type[errors.SfPubSubError], str], ...] = (
    (r"400:.*replayid .*was invalid", errors.ReplayIdRejectedError, _LOST),
    (r"400:.*does not exist", errors.TopicNotFoundError, "check the name and the user's access"),
    (r"400:.*api version", errors.ConfigurationError, "set SFPUBSUB_STREAMING_API_VERSION"),
    (r"400:.*(cookie|connection type)", errors.RemoteProtocolError, _CHANGED),
    (r"400:", errors.LocalProtocolError, "check the channel's name"),
    (r"402:|40[13]:.*(unknown client|has not completed handshake|session_unknown)", *_ENDED),
    (r"401:", errors.SessionExpiredError, "the access token is not valid: sign in again"),
    (r"403:.*\blimit\b", errors.QuotaExceededError, "a limit is reached: try again later"),
    (r"403:", errors.PermissionDeniedError, "check the user's access, and the channel's name"),
    (r"404:.*vary only by case", errors.LocalProtocolError, "use the channel's exact spelling"),
    (r"404:", errors.TopicNotFoundError, "check the channel's name"),
    (r"413:", errors.LocalProtocolError, "the request is too large: use a shorter filter"),
    (r"503:", errors.StreamUnavailableError, "the server is busy: try again in a few minutes"),
    (r"", errors.StreamError, "see the cause"),
)


class BayeuxError(errors.StreamError):
    """An unsuccessful reply from the server. Callers get it as the ``__cause__`` of an error.

    Args:
        response: The unsuccessful reply.
    """

    def __init__(self, response: Message) -> None:
        said = response.get("error")
        self.response = response
        self.error: str = said if isinstance(said, str) else ""
        """For example ``403::Unknown client``; its three digits are the ``error_code``."""
        code, args, message = _ERROR.findall(self.error)[0]
        super().__init__(self.error or "no reason given", error_code=code or None)
        self.error_args: list[str] = args.split(",") if args else []
        """The part of the error between its colons."""
        self.error_message: str = message
        """The part of the error after the second colon."""

    @property
    def reason(self) -> str:
        """The most specific reason given: ``ext.sfdc.failureReason`` if present, else `error`."""
        found = part_of(self.response, "ext", "sfdc", "failureReason")
        return found if found and isinstance(found, str) else self.error


class Next(enum.Enum):
    """What to do after a refusal. The first two are values of Bayeux's ``advice.reconnect``."""

    RETRY = "retry"
    """Retry the request after a delay."""
    HANDSHAKE = "handshake"
    """Open a new session with the server; the token is valid."""
    RENEW = "renew"
    """Renew the token once, then open a new session."""
    BUSY = "busy"
    """Open a new session after a long delay: the server is overloaded."""
    LIMIT = "limit"
    """Like BUSY, but a limit of the org was reached. If a subscribe was refused, only its channel
    is affected.
    """
    STOP = "stop"
    """Stop and report the error."""


_NEXT = {
    errors.SessionExpiredError: Next.RENEW,
    errors.StreamUnavailableError: Next.HANDSHAKE,
    errors.QuotaExceededError: Next.LIMIT,
}


def _row(text: str) -> tuple[type[errors.SfPubSubError], str]:
    flags = re.IGNORECASE | re.DOTALL
    return next((kind, cure) for start, kind, cure in _ERRORS if re.match(start, text, flags))


def error_for(what: str, refusal: BayeuxError) -> errors.SfPubSubError:
    """Return the error to raise for a refusal, with the refusal as its cause.

    Args:
        what: The refused operation, for the message.
        refusal: The refusal, whose reason determines the class of the error.
    """
    said = refusal.reason
    kind, cure = _row(said)
    shown = said if said == refusal.error else f"{said} ({refusal.error})"
    message = f"{what} was refused: {shown[:400] or 'no reason given'}; {cure}"
    error = kind(message, error_code=BayeuxError({"error": said}).error_code)
    error.__cause__ = refusal
    return error


def what_next(refusal: BayeuxError) -> Next:
    """Return what to do after a refusal.

    If the server is too busy, the result is BUSY, whatever the advice. Otherwise, advice to retry
    or to open a new session is followed. Without such advice, the codes in the failure reason and
    in the error decide.
    """
    if refusal.reason.startswith("503:"):
        return Next.BUSY  # the error may still say 401, and a sign-in would be useless
    reconnect = advice_of(refusal.response).get("reconnect")
    if reconnect in ("retry", "handshake"):
        return Next(reconnect)
    steps = [_NEXT.get(_row(said)[0], Next.STOP) for said in (refusal.reason, refusal.error)]
    if Next.HANDSHAKE in steps and reconnect is None:
        return Next.HANDSHAKE
    if Next.RENEW in steps:
        return Next.RENEW
    return Next.LIMIT if steps[0] is Next.LIMIT else Next.STOP


def concerns_session(refusal: BayeuxError) -> bool:
    """Return whether the refusal of a subscribe request concerns the whole session, not only the
    channel.
    """
    return what_next(refusal) in (Next.HANDSHAKE, Next.RENEW, Next.BUSY)
