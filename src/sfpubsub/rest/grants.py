"""What lets a user see every record of an object, and whether it held without interruption.

A record that the org does not return may be deleted, or hidden from the user. Only a user with View
All can tell the difference. The right is checked from time to time, so the question is what held in
between: a withdrawal and a new grant leave another row, or another modification time, in the org's
tables of permissions. This module is pure: no I/O, no clock. `OrgReader.grants` asks the org.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Seconds between checks. The service stops delivering events to a user without the right within ten
# minutes (Pub/Sub API guide, considerations), so this usually finds it before the events stop. A
# check costs one API call with View All Data, and two with View All for single objects.
CHECK_EVERY = 300.0

# A source that has no visible row: the org says that the user has View All Data, but not why.
UNTRACED = "view all data"


@dataclass(frozen=True)
class Grant:
    """What gives a user the right to see every record of an object, at one moment."""

    sources: tuple[str, ...] = ()
    """The identity of each source of the right: a hash of the ids and the modification times of the
    rows that give it. Sorted; empty if the user is not known to have the right.
    """

    @classmethod
    def of(cls, sources: Iterable[str]) -> Grant:
        """Return the grant with these sources, in any order."""
        return cls(tuple(sorted(set(sources))))

    def __bool__(self) -> bool:
        return bool(self.sources)

    def continues(self, earlier: Grant) -> bool:
        """Return whether the right held from *earlier* until now.

        It did if at least one source is the same, because a source that was withdrawn and given
        again has another identity.
        """
        return not set(self.sources).isdisjoint(earlier.sources)


class Finding(enum.Enum):
    """What a check of the right says, compared with the check before it."""

    HELD = enum.auto()
    """The right is there, and held since the last check, if there was one."""
    LOST = enum.auto()
    """The right was there at the last check, and was withdrawn since. Perhaps it was given again:
    the next check says so.
    """
    MISSING = enum.auto()
    """The right is still not there."""
    BACK = enum.auto()
    """The right is there again."""


@dataclass(frozen=True)
class Held:
    """What is known about the right for one object, after the last check. Must survive restarts."""

    grant: Grant = Grant()
    """The right as last seen; empty since it was seen missing."""
    epoch: int = 0
    """Number of times that the right was interrupted. What was seen in two different epochs says
    nothing about the time in between.
    """

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for `from_json`."""
        return {"sources": list(self.grant.sources), "epoch": self.epoch}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Held:
        """Parse the result of `to_json`."""
        return cls(Grant.of(found["sources"]), int(found["epoch"]))


def checked(held: Held | None, now: Grant) -> tuple[Finding, Held]:
    """Compare a check with what was known.

    Args:
        held: What was known; None before the first check.
        now: The result of the check.

    Returns:
        What the check says, and what is known from now on.
    """
    if held is None:
        return (Finding.HELD if now else Finding.MISSING), Held(now)
    if not held.grant:
        return (Finding.BACK if now else Finding.MISSING), replace(held, grant=now)
    if now.continues(held.grant):
        return Finding.HELD, replace(held, grant=now)
    return Finding.LOST, Held(Grant(), held.epoch + 1)


def sources_of(
    assignments: Iterable[Mapping[str, Any]], permissions: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Return the sources of the right to see every record of an object (`Grant.sources`).

    A permission set group has a permission set of its own, with the aggregated permissions of the
    group. That set is the parent of the group's rows (Object Reference, PermissionSetGroup).

    Args:
        assignments: The user's rows of PermissionSetAssignment. A profile is a permission set, too.
        permissions: Rows of ObjectPermissions for the object, of any user.
    """
    granting = [row for row in permissions if row.get("PermissionsViewAllRecords") is True]
    found = []
    for held in assignments:
        permission_set = _related(held, "PermissionSet")
        if permission_set.get("PermissionsViewAllData") is True:
            found.append(_identity(held, permission_set))
        own = {held.get("PermissionSetId"), held.get("PermissionSetGroupId")} - {None}
        for row in granting:
            group = _related(row, "Parent").get("PermissionSetGroupId")
            if row.get("ParentId") in own or group in own:
                found.append(_identity(held, row))
    return found


def grants_everything(assignments: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of a user's permission sets has View All Data."""
    return any(
        _related(row, "PermissionSet").get("PermissionsViewAllData") is True for row in assignments
    )


def _related(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}


def _identity(*rows: Mapping[str, Any]) -> str:
    parts = [[row.get("Id"), row.get("SystemModstamp")] for row in rows]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def missing_rights(objects: Sequence[str]) -> str:
    """Return the message about objects of which the user may not see every record."""
    return (
        f"the user may not be able to see every record of {', '.join(objects)}, and hidden records "
        f"cannot be told from deleted ones: grant the user View All for these objects in a "
        f"permission set, or View All Data"
    )
