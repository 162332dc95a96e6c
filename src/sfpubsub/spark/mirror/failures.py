"""Decide what an error of a request to the org stops, and for how long.

An error of one object stops only reads of that object. Only if nobody is signed in or a table
cannot be written, or because of a bug, an error ends the mirror.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

import logging

from sfpubsub.errors import SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror.agenda import RequestBackoff
from sfpubsub.spark.mirror.waiting import Waiting, Why

_log = logging.getLogger("sfpubsub.spark")

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


class Failures:
    """Holds back requests to the org after errors, and records why. Not thread-safe.

    Args:
        waiting: Where the reasons of each object are recorded.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._org = RequestBackoff()
        self._own: dict[str, RequestBackoff] = {}
        self._looks: dict[str, RequestBackoff] = {}
        self._reason = ""

    def failed(self, entity: str, error: SfPubSubError, clock: float, wall: float) -> Scope:
        """Record an error of a request about an object, and begin a back-off.

        Args:
            entity: The object.
            error: The error. Its scope must not be `Scope.MIRROR`.
            clock: Time on a monotonic clock, in seconds.
            wall: Time in seconds since the epoch.

        Returns:
            What the error stops.
        """
        scope = scope_of(error)
        if scope is Scope.GONE:
            look = self._looks.setdefault(entity, RequestBackoff(_LOOK_FIRST, _LOOK_MOST))
            look.after(error, clock)
            text = f"{entity} does not exist in the org, or the user cannot see it: "
            text += _HELP.format(entity)
            if self._waiting.begin(entity, Why.GONE, text, wall):
                _log.warning("%s (%s)", text, error)
        elif scope is Scope.OBJECT:
            seconds = self._own.setdefault(entity, RequestBackoff()).after(error, clock)
            text = (
                f"the next read of {entity} begins in {seconds:.0f} s, because one failed: {error}"
            )
            self._waiting.begin(entity, Why.READ, text, wall)
            _log.warning("%s", text)
        else:
            self.failed_all(error, clock)
        return scope

    def failed_all(self, error: SfPubSubError, clock: float) -> None:
        """Record an error that holds back all requests; see `failed`."""
        seconds = self._org.after(error, clock)
        self._reason = f"requests to the org are retried in {seconds:.0f} s: {error}"
        _log.warning("%s", self._reason)

    def succeeded(self, entity: str) -> None:
        """Record that a read of an object succeeded."""
        self._org.reset()
        self._own.pop(entity, None)
        self._waiting.end(entity, Why.READ)

    def may_ask(self, clock: float) -> bool:
        """Return whether requests to the org are not held back altogether."""
        return self._org.is_over(clock)

    def reason(self, clock: float) -> str | None:
        """Return why all requests are held back now; None if they are not."""
        return None if self.may_ask(clock) else self._reason

    def may_read(self, entity: str, clock: float) -> bool:
        """Return whether nothing holds back reads of an object. End its back-off if it is over."""
        own = self._own.get(entity)
        if own is not None and own.is_over(clock):
            self._waiting.end(entity, Why.READ)
        return self._waiting.may_read(entity)

    def may_look(self, entity: str, clock: float) -> bool:
        """Return whether the org may be asked now whether it has an object."""
        waits = (self._looks.get(entity), self._own.get(entity))
        return all(each is None or each.is_over(clock) for each in waits)

    def is_there(self, entity: str) -> bool:
        """Record that the org has an object, and return whether it was gone."""
        self._looks.pop(entity, None)
        return self._waiting.end(entity, Why.GONE)

    def forget(self, entity: str) -> None:
        """Remove all records of an object that is no longer mirrored."""
        self._own.pop(entity, None)
        self._looks.pop(entity, None)
        self._waiting.forget(entity)
