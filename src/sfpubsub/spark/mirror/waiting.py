"""Why an object of a mirror waits, and since when.

An object may wait for several reasons at once. While it waits, its rows stay as they are, no
absence counts as a deletion, and events are still written to the raw table. This module is pure: no
I/O, no clock, no threads. It does not decide when a reason begins or ends.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sfpubsub.spark.mirror.deadlines import Deadlines


class Why(enum.StrEnum):
    """A reason why an object waits."""

    RIGHTS = "rights"
    """The user may not be able to see every record, so reads prove nothing."""
    GONE = "gone"
    """The object does not exist in the org, or the user cannot see it."""
    DESELECTED = "deselected"
    """The channel no longer delivers the object's events."""
    READ = "read"
    """A read failed, and is repeated after a back-off."""


# Reasons that hold back reads of the object. An object whose events are not delivered can be read.
_NO_READS = frozenset({Why.RIGHTS, Why.GONE, Why.READ})


@dataclass(frozen=True)
class Wait:
    """One reason why an object waits."""

    since: float
    """When the reason began, in seconds since the epoch."""
    text: str
    """What happened and what to do, as a lower-case sentence."""


class Waiting:
    """The reasons why the objects of one mirror wait. Not thread-safe.

    Args:
        time: The present moment.
    """

    def __init__(self, time: Deadlines) -> None:
        self._time = time
        self._waits: dict[str, dict[Why, Wait]] = {}

    def begin(self, entity: str, why: Why, text: str) -> bool:
        """Record that an object waits; a reason that is known keeps its time.

        Args:
            entity: The object.
            why: The reason.
            text: What happened and what to do.

        Returns:
            Whether the reason is new.
        """
        own = self._waits.setdefault(entity, {})
        known = own.get(why)
        own[why] = Wait(self._time.now.wall if known is None else known.since, text)
        return known is None

    def end(self, entity: str, why: Why) -> bool:
        """Record that a reason no longer applies; return whether it did before."""
        return self._waits.get(entity, {}).pop(why, None) is not None

    def forget(self, entity: str) -> None:
        """Remove all reasons of an object that is no longer mirrored."""
        self._waits.pop(entity, None)

    def of(self, entity: str) -> Mapping[Why, Wait]:
        """Return the reasons why an object waits now; empty if it does not wait."""
        return dict(self._waits.get(entity, {}))

    def may_read(self, entity: str) -> bool:
        """Return whether nothing holds back reads of an object."""
        return _NO_READS.isdisjoint(self._waits.get(entity, {}))
