"""Which mirrored objects a channel delivers the events of, and what follows when that changes.

A channel delivers the change events of its members. If an object is removed from it, or gets a
filter, the service stops delivering these events within ten minutes, and names no error. So the
members are looked at from time to time. What matters is what held between two looks: a member that
was removed and added again has another id. This module is pure: no I/O, no clock, no threads.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sfpubsub.errors import FilteredObjectError

# Seconds between looks. An org has few members, and each costs one API call.
LOOK_EVERY = 3600.0

# Seconds until the next look after one that failed.
RETRY_EVERY = 300.0

# Seconds after which a change of a channel's members has reached every stream (Pub/Sub API guide,
# considerations: ten minutes).
SETTLING = 600.0


@dataclass(frozen=True)
class Member:
    """An object's event type as a member of a channel."""

    id: str
    """Record id of the member; a member that was removed and added again has a new one."""
    filter_expression: str | None = None
    """Condition for the events to deliver; None for all events."""


@dataclass(frozen=True)
class Selection:
    """The members of the channel that a mirror reads, at one moment."""

    channel: str
    """Name of the channel, such as ``ChangeEvents``."""
    members: Mapping[str, Member]
    """The members by name of the event type, such as ``AccountChangeEvent``."""

    def member(self, entity: str) -> Member | None:
        """Return the member for an object; None if the object is not selected."""
        wanted = event_of(entity).lower()
        found = (each for name, each in self.members.items() if name.lower() == wanted)
        return next(found, None)

    def whole(self, entity: str) -> str | None:
        """Return the id of an object's member; None if not all its events are delivered."""
        member = self.member(entity)
        return None if member is None or member.filter_expression is not None else member.id

    def problem(self, entity: str) -> str | None:
        """Return why not all events of an object are delivered, and what to do; None if all are."""
        member = self.member(entity)
        if member is None:
            return (
                f"{entity} is not selected for change data capture on {self.channel}, so its "
                f"changes are not received: run sfpubsub channel add {self.channel} {entity}"
            )
        if member.filter_expression is not None:
            return (
                f"{self.channel} delivers only the events of {entity} that match the filter "
                f"{member.filter_expression}, so the table would lack changes: remove the filter, "
                f"or mirror from a channel without one"
            )
        return None


class Finding(enum.Enum):
    """What a look says about one object, compared with the look before it."""

    DELIVERED = enum.auto()
    """All events are delivered, and were since the last look, if there was one."""
    LOST = enum.auto()
    """Events were not delivered at some time since the last look. Perhaps they are again: the same
    look, compared with nothing delivered, says so.
    """
    WITHHELD = enum.auto()
    """Not all events are delivered, as at the last look, if there was one."""
    BACK = enum.auto()
    """All events are delivered again."""


def compared(known: Mapping[str, str | None], entity: str, now: str | None) -> Finding:
    """Compare a look with what was known.

    Args:
        known: By object: the id of its member at the last look, or None if not all of its events
            were delivered. An object that was never looked at is omitted. Must survive restarts.
        entity: The object.
        now: What this look found (`Selection.whole`).
    """
    if entity not in known:
        return Finding.WITHHELD if now is None else Finding.DELIVERED
    before = known[entity]
    if before is None:
        return Finding.WITHHELD if now is None else Finding.BACK
    return Finding.DELIVERED if now == before else Finding.LOST


def check_filters(selection: Selection, objects: Iterable[str]) -> None:
    """Check that no filter withholds events of the objects.

    Raises:
        FilteredObjectError: A member has a filter, so the table would be a subset for ever.
    """
    for entity in objects:
        member = selection.member(entity)
        if member is not None and member.filter_expression is not None:
            raise FilteredObjectError(f"{entity} cannot be mirrored: {selection.problem(entity)}")


def event_of(entity: str) -> str:
    """Return the name of an object's change event type."""
    return f"{entity.removesuffix('c') if entity.endswith('__c') else entity}ChangeEvent"


def object_of(event: str) -> str:
    """Return the name of the object whose changes an event type reports."""
    name = event.removesuffix("ChangeEvent")
    return f"{name}c" if name.endswith("__") else name
