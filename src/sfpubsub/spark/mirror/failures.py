"""Decide what an error of a request to the org stops, and for how long.

An error of one object stops only reads of that object. Only if nobody is signed in or a table
cannot be written, or because of a bug, an error ends the mirror.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

import logging

from sfpubsub.backoff import Backoff
from sfpubsub.errors import QuotaExceededError, SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror.deadlines import Deadlines
from sfpubsub.spark.mirror.waiting import Waiting, Why

_log = logging.getLogger("sfpubsub.spark")

# First and longest delay before a retry, in seconds; the delay doubles each time. The longest is
# short compared with the 72 h for which the service retains events.
_RETRY_FIRST, _RETRY_MOST = 10.0, 600.0

# First and longest delay, in seconds, before the org is asked again about an object that it does
# not have. Each costs a call.
_LOOK_FIRST, _LOOK_MOST = 60.0, 3600.0

_HELP = (
    "its rows stay as they are, and it is read again once the org has it; to stop mirroring it, "
    "run sfpubsub mirror signal --remove {}"
)


def can_resume(error: BaseException) -> bool:
    """Return whether a read that ended with this error may go on where it stopped.

    Otherwise, to resume it would repeat the error, so a new read has to begin.
    """
    return scope_of(error) is Scope.ORG or bool(getattr(error, "retryable", False))


class RequestBackoff:
    """Exponential backoff for requests to the org. Not thread-safe.

    Args:
        time: The present moment.
        first: First delay in seconds.
        most: Longest delay in seconds.
    """

    def __init__(
        self, time: Deadlines, first: float = _RETRY_FIRST, most: float = _RETRY_MOST
    ) -> None:
        self._time = time
        self._most = most
        self._backoff = Backoff(first, most)
        self._until = float("-inf")

    @property
    def is_over(self) -> bool:
        """Whether requests are allowed again."""
        return self._time.is_past(self._until)

    def after(self, error: BaseException) -> float:
        """Start the backoff after *error*, and return its length in seconds."""
        seconds = self._backoff.next()
        if isinstance(error, QuotaExceededError) and not error.retryable:
            seconds = self._most  # the daily allowance recovers over 24 hours
        self._until = self._time.now.clock + seconds
        return seconds

    def reset(self) -> None:
        """Reset the backoff after a success."""
        self._backoff.reset()


class Failures:
    """Holds back requests to the org after errors, and records why. Not thread-safe.

    Args:
        waiting: Where the reasons of each object are recorded.
        time: The present moment.
    """

    def __init__(self, waiting: Waiting, time: Deadlines) -> None:
        self._waiting = waiting
        self._time = time
        self._org = RequestBackoff(time)
        self._own: dict[str, RequestBackoff] = {}
        self._looks: dict[str, RequestBackoff] = {}
        self._reason = ""

    def failed(self, entity: str, error: SfPubSubError) -> Scope:
        """Record an error of a request about an object, and begin a back-off.

        Args:
            entity: The object.
            error: The error. Its scope must not be `Scope.MIRROR`.

        Returns:
            What the error stops.
        """
        scope = scope_of(error)
        if scope is Scope.GONE:
            look = self._looks.get(entity) or RequestBackoff(self._time, _LOOK_FIRST, _LOOK_MOST)
            self._looks[entity] = look
            look.after(error)
            text = f"{entity} does not exist in the org, or the user cannot see it: "
            text += _HELP.format(entity)
            if self._waiting.begin(entity, Why.GONE, text):
                _log.warning("%s (%s)", text, error)
        elif scope is Scope.OBJECT:
            seconds = self._own.setdefault(entity, RequestBackoff(self._time)).after(error)
            text = (
                f"the next read of {entity} begins in {seconds:.0f} s, because one failed: {error}"
            )
            self._waiting.begin(entity, Why.READ, text)
            _log.warning("%s", text)
        else:
            self.failed_all(error)
        return scope

    def failed_all(self, error: SfPubSubError) -> None:
        """Record an error that holds back all requests; see `failed`."""
        seconds = self._org.after(error)
        self._reason = f"requests to the org are retried in {seconds:.0f} s: {error}"
        _log.warning("%s", self._reason)

    def succeeded(self, entity: str) -> None:
        """Record that a read of an object succeeded."""
        self._org.reset()
        self._own.pop(entity, None)
        self._waiting.end(entity, Why.READ)

    @property
    def may_ask(self) -> bool:
        """Whether requests to the org are not held back altogether."""
        return self._org.is_over

    @property
    def reason(self) -> str | None:
        """Why all requests are held back now; None if they are not."""
        return None if self.may_ask else self._reason

    def may_read(self, entity: str) -> bool:
        """Return whether nothing holds back reads of an object. End its back-off if it is over."""
        own = self._own.get(entity)
        if own is not None and own.is_over:
            self._waiting.end(entity, Why.READ)
        return self._waiting.may_read(entity)

    def may_look(self, entity: str) -> bool:
        """Return whether the org may be asked now whether it has an object."""
        waits = (self._looks.get(entity), self._own.get(entity))
        return all(each is None or each.is_over for each in waits)

    def is_there(self, entity: str) -> bool:
        """Record that the org has an object, and return whether it was gone."""
        self._looks.pop(entity, None)
        return self._waiting.end(entity, Why.GONE)

    def forget(self, entity: str) -> None:
        """Remove all records of an object that is no longer mirrored."""
        self._own.pop(entity, None)
        self._looks.pop(entity, None)
        self._waiting.forget(entity)
