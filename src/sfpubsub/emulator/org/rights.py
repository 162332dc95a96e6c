"""Who may see every record: profiles, permission sets, and how they are assigned to users.

Each user has a profile of their own. As in an org, the profile's permissions are in a permission
set that it owns and that is always assigned to the user. View All Data is a permission of a
permission set; View All for one object is a row of ObjectPermissions below it. Each withdrawal and
each new grant changes the id or the SystemModstamp of one of these rows.

The streams of a user need to know what the user could see at an earlier time, so the grants of each
user are stored with the time of each change.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.lexical import DEVELOPER_NAME
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

EVERYTHING = "*"
"""In a set of grants: View All Data, that is, View All for every object."""

_STEP_S = 0.001
"""Two changes of a row are at least this far apart in its SystemModstamp, in seconds: the precision
with which times are returned. Otherwise a withdrawal and a new grant could be invisible.
"""


_TABLES = (
    # profile_of: the user whose profile owns the set; blank for any other set.
    "CREATE TABLE IF NOT EXISTS permission_sets (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " profile_of TEXT NOT NULL, view_all_data INTEGER NOT NULL, made_at REAL NOT NULL,"
    " changed_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS object_permissions (id TEXT PRIMARY KEY, set_id TEXT NOT NULL,"
    " object TEXT NOT NULL, view_all INTEGER NOT NULL, made_at REAL NOT NULL,"
    " changed_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS permission_assignments (id TEXT PRIMARY KEY,"
    " username TEXT NOT NULL, set_id TEXT NOT NULL, made_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS grants (number INTEGER PRIMARY KEY, username TEXT NOT NULL,"
    " at REAL NOT NULL, objects TEXT NOT NULL)",
)

Grants = frozenset[str]
"""The objects for which a user has View All, possibly `EVERYTHING`."""


@dataclass(frozen=True)
class PermissionSet:
    """A permission set. Times are in seconds since the epoch.

    Attributes:
        set_id: 18-character id.
        name: Name.
        profile_of: Username of the user whose profile owns the set; blank for any other set.
        view_all_data: Whether the set grants View All Data.
        made_at: When the set was created.
        changed_at: When the set's own permissions last changed.
    """

    set_id: str
    name: str
    profile_of: str
    view_all_data: bool
    made_at: float
    changed_at: float

    @property
    def profile_id(self) -> str | None:
        """18-character id of the profile that owns the set, or None."""
        return eighteen(f"00eSB{self.set_id[5:15]}") if self.profile_of else None


@dataclass(frozen=True)
class ObjectPermission:
    """The permissions that a permission set grants for one object. Times as in `PermissionSet`."""

    permission_id: str
    set_id: str
    object_name: str
    view_all: bool
    made_at: float
    changed_at: float


@dataclass(frozen=True)
class Assignment:
    """A permission set that a user has. `made_at` is in seconds since the epoch."""

    assignment_id: str
    username: str
    set_id: str
    made_at: float


class Rights:
    """The permission sets of one org, and who has them. Thread-safe.

    Args:
        store: The org's store.
        clock: The org's clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()  # one change at a time
        for table in _TABLES:
            store.run(table)
        # By username: the times of changes, and the grants from each of them on. A value is
        # replaced as a whole, so that streams need no lock.
        self._history: dict[str, tuple[tuple[float, ...], tuple[Grants, ...]]] = {}
        for username, at, objects in store.rows(
            "SELECT username, at, objects FROM grants ORDER BY number"
        ):
            self._note(username, at, frozenset(json.loads(objects)))

    # Changes.

    def set_profile(self, username: str, view_all_data: bool | None) -> None:
        """Set whether a user's profile grants View All Data; None leaves it unchanged, and is True
        for a new user. Call this inside a transaction of the store.
        """
        with self._lock:
            known = [one for one in self.permission_sets() if one.profile_of == username]
            if not known:
                made = self._make(f"X00e_{username}", username, view_all_data is not False)
                self._assign(made, username)
            elif view_all_data is not None:
                self._set_view_all_data(known[0], view_all_data)
            self._remember([username])

    def put_permission_set(
        self,
        name: str,
        *,
        view_all: Collection[str] | None = None,
        view_all_data: bool | None = None,
    ) -> PermissionSet:
        """Create a permission set, or change an existing one; None leaves a value unchanged.

        Args:
            name: Name of the set.
            view_all: The objects for which the set grants View All. The row of an object that is no
                longer among them stays, without View All.
            view_all_data: Whether the set grants View All Data.

        Raises:
            EmulatorProblem: The name is not valid.
        """
        if not DEVELOPER_NAME.fullmatch(name):
            raise EmulatorProblem(
                f"{name!r} is not a name of a permission set: use letters, digits and single"
                " underscores, beginning with a letter"
            )
        with self._lock, self._store.transaction():
            if not any(one.name == name for one in self.permission_sets()):
                self._make(name, "", bool(view_all_data))
            found = self._named(name)
            if view_all_data is not None:
                self._set_view_all_data(found, view_all_data)
            if view_all is not None:
                self._set_objects(found, set(view_all))
            self._remember(
                [one.username for one in self.assignments() if one.set_id == found.set_id]
            )
            return self._named(name)

    def assign(self, username: str, name: str) -> None:
        """Assign a permission set to a user. Do nothing if the user already has it.

        Raises:
            EmulatorProblem: There is no such permission set.
        """
        with self._lock, self._store.transaction():
            found = self._named(name)
            if self._assignment(username, found) is None:
                self._assign(found, username)
                self._remember([username])

    def unassign(self, username: str, name: str) -> None:
        """Take a permission set away from a user. Do nothing if the user does not have it.

        Raises:
            EmulatorProblem: There is no such permission set.
        """
        with self._lock, self._store.transaction():
            held = self._assignment(username, self._named(name))
            if held is not None:
                self._store.run(
                    "DELETE FROM permission_assignments WHERE id = ?", held.assignment_id
                )
                self._remember([username])

    # Reading.

    def permission_sets(self) -> list[PermissionSet]:
        """Return all permission sets, oldest first, including those that profiles own."""
        rows = self._store.rows("SELECT * FROM permission_sets ORDER BY id")
        return [PermissionSet(row[0], row[1], row[2], bool(row[3]), row[4], row[5]) for row in rows]

    def object_permissions(self) -> list[ObjectPermission]:
        """Return the object permissions of all permission sets, oldest first."""
        rows = self._store.rows("SELECT * FROM object_permissions ORDER BY id")
        return [
            ObjectPermission(row[0], row[1], row[2], bool(row[3]), row[4], row[5]) for row in rows
        ]

    def assignments(self) -> list[Assignment]:
        """Return which users have which permission sets, oldest first."""
        rows = self._store.rows("SELECT * FROM permission_assignments ORDER BY id")
        return [Assignment(row[0], row[1], row[2], row[3]) for row in rows]

    def grants(self, username: str) -> Grants:
        """Return the objects for which a user has View All now. A user who is unknown, such as the
        placeholder of `Accounts.holder`, has View All Data.
        """
        return self.history(username)[1][-1]

    def history(self, username: str) -> tuple[Sequence[float], Sequence[Grants]]:
        """Return the times at which a user's grants changed, in seconds since the epoch and in
        order, and the grants from each of these times on. The first grants also hold before.
        """
        return self._history.get(username, ((0.0,), (frozenset({EVERYTHING}),)))

    # Internal. The caller holds the lock, and a transaction of the store is open.

    def _named(self, name: str) -> PermissionSet:
        for one in self.permission_sets():
            if one.name == name:
                return one
        raise EmulatorProblem(f"there is no permission set {name!r}: create it first")

    def _assignment(self, username: str, of: PermissionSet) -> Assignment | None:
        for one in self.assignments():
            if (one.username, one.set_id) == (username, of.set_id):
                return one
        return None

    def _make(self, name: str, profile_of: str, view_all_data: bool) -> PermissionSet:
        now = self._clock.now()
        made = PermissionSet(self._new_id("0PS"), name, profile_of, view_all_data, now, now)
        self._store.run(
            "INSERT INTO permission_sets VALUES (?, ?, ?, ?, ?, ?)",
            *(made.set_id, name, profile_of, view_all_data, now, now),
        )
        return made

    def _assign(self, of: PermissionSet, username: str) -> None:
        self._store.run(
            "INSERT INTO permission_assignments VALUES (?, ?, ?, ?)",
            *(self._new_id("0Pa"), username, of.set_id, self._clock.now()),
        )

    def _set_view_all_data(self, of: PermissionSet, view_all_data: bool) -> None:
        if of.view_all_data != view_all_data:
            self._store.run(
                "UPDATE permission_sets SET view_all_data = ?, changed_at = ? WHERE id = ?",
                *(view_all_data, self._later(of.changed_at), of.set_id),
            )

    def _set_objects(self, of: PermissionSet, view_all: set[str]) -> None:
        rows = {
            one.object_name: one for one in self.object_permissions() if one.set_id == of.set_id
        }
        for name, row in rows.items():
            if row.view_all != (name in view_all):
                self._store.run(
                    "UPDATE object_permissions SET view_all = ?, changed_at = ? WHERE id = ?",
                    *(name in view_all, self._later(row.changed_at), row.permission_id),
                )
        now = self._clock.now()
        for name in sorted(view_all - rows.keys()):
            self._store.run(
                "INSERT INTO object_permissions VALUES (?, ?, ?, 1, ?, ?)",
                *(self._new_id("110"), of.set_id, name, now, now),
            )

    def _later(self, than: float) -> float:
        return max(self._clock.now(), than + _STEP_S)

    def _new_id(self, prefix: str) -> str:
        number = int(self._store.meta("permissions_made", "0")) + 1
        self._store.set_meta("permissions_made", str(number))
        return eighteen(f"{prefix}SB{number:010d}")

    def _remember(self, usernames: Collection[str]) -> None:
        """Store the grants of users, if they have changed."""
        held = _held(self.permission_sets(), self.object_permissions())
        for username in usernames:
            grants = frozenset(
                name
                for one in self.assignments()
                if one.username == username
                for name in held[one.set_id]
            )
            if username not in self._history or self.grants(username) != grants:
                now = self._clock.now()
                self._store.run(
                    "INSERT INTO grants (username, at, objects) VALUES (?, ?, ?)",
                    *(username, now, json.dumps(sorted(grants))),
                )
                self._note(username, now, grants)

    def _note(self, username: str, at: float, grants: Grants) -> None:
        times, found = self._history.get(username, ((), ()))
        self._history[username] = (*times, at), (*found, grants)


def at_time(history: tuple[Sequence[float], Sequence[Grants]], at: float) -> Grants:
    """Return the grants that held at a time, in seconds since the epoch.

    Args:
        history: The value of `Rights.history`.
        at: The time.
    """
    times, grants = history
    return grants[max(0, bisect.bisect_right(times, at) - 1)]


def _held(
    sets: Sequence[PermissionSet], permissions: Sequence[ObjectPermission]
) -> Mapping[str, set[str]]:
    """Return what each permission set grants, by the set's id."""
    held = {one.set_id: {EVERYTHING} if one.view_all_data else set[str]() for one in sets}
    for permission in permissions:
        if permission.view_all:
            held[permission.set_id].add(permission.object_name)
    return held
