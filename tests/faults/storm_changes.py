"""What an administrator does to the org in a storm: rights, objects, fields, channels, and fields
that no event carries. Some of it begins with a blow and ends before the next one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from sfpubsub.emulator.server import EmulatorServer
from tests.faults.storm_org import MIRROR_USER, OBJECTS, PERMISSION_SET, event_of
from tests.faults.storm_writer import Writer

# The object whose fields change, and the number of records whose derived fields change at once.
_CHANGING = "Order__c"
_DERIVED = 30

# Field types that follow one another. The values of some records fit the next type, others do not.
_TYPES = (
    {"type": "double", "scale": 2},
    {"type": "double", "scale": 4},
    {"type": "string", "length": 40},
)

Undo = Callable[[], None]


class OrgChanges:
    """Changes the org in the thread of a writer. Used by one thread.

    Args:
        emulator: The org.
        writer: The writer, which must not change what is gone.
        rng: Chooses the objects and fields.

    Attributes:
        made: Number of changes, by kind; a change that begins and ends is counted at its end.
    """

    def __init__(self, emulator: EmulatorServer, writer: Writer, rng: random.Random) -> None:
        self._emulator = emulator
        self._writer = writer
        self._rng = rng
        self._fields: dict[str, int] = {}  # by name: the place in `_TYPES`
        self._added = 0
        self._undo: Undo | None = None
        self.made: Counter[str] = Counter()

    def begin(self, kind: str) -> None:
        """Make a change of one of `KINDS`."""
        self.end()
        undo: Undo | None = KINDS[kind](self)
        if undo is None:
            self.made[kind] += 1
            return

        def ended() -> None:
            undo()
            self.made[kind] += 1

        self._undo = ended

    def end(self) -> None:
        """End the change that has begun; do nothing if there is none."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    # Kinds of changes. Each returns what ends it, or None.

    def _rights(self) -> Undo:
        """Withdraw View All for one object, or for all of them, from the mirror's user."""
        rights = self._emulator.rights
        lost = {self._rng.choice([*OBJECTS, ""])}
        left = [] if lost == {""} else sorted(set(OBJECTS) - lost)
        if self._rng.random() < 0.5:
            rights.put_permission_set(PERMISSION_SET, view_all=left)

            def back() -> None:
                rights.put_permission_set(PERMISSION_SET, view_all=OBJECTS)

            return back
        rights.unassign(MIRROR_USER, PERMISSION_SET)
        return lambda: rights.assign(MIRROR_USER, PERMISSION_SET)

    def _object(self) -> Undo:
        """Remove an object from the org, or hide it from the mirror's user."""
        records, name = self._emulator.records, self._rng.choice(OBJECTS)
        if self._rng.random() < 0.5:
            records.visibility.hide(MIRROR_USER, name)
            return lambda: records.visibility.show(MIRROR_USER, name)
        self._writer.absent.add(name)
        records.remove_object(name)

        def back() -> None:
            records.restore_object(name)
            self._writer.absent.remove(name)

        return back

    def _deselect(self) -> Undo:
        """Take an object's events off the channel."""
        channels, event = self._emulator.event_channels, event_of(self._rng.choice(OBJECTS))
        (member,) = [one for one in channels.members("ChangeEvents") if one.entity == event]
        channels.remove(member.member_id)

        def back() -> None:
            channels.add(member.developer_name, "ChangeEvents", event)

        return back

    def _add_field(self) -> None:
        self._added += 1
        name = f"Storm_{self._added}__c"
        self._fields[name] = 0
        self._put(name)

    def _change_field(self) -> None:
        """Give a field that was added the next type."""
        if not self._fields:
            self._add_field()
        name = self._rng.choice(sorted(self._fields))
        self._fields[name] = (self._fields[name] + 1) % len(_TYPES)
        self._put(name)

    def _remove_field(self) -> Undo:
        """Remove a field that was added, which comes back without its values; or hide it from the
        mirror's user.
        """
        if not self._fields:
            self._add_field()
        records, name = self._emulator.records, self._rng.choice(sorted(self._fields))
        if self._rng.random() < 0.5:
            records.visibility.hide(MIRROR_USER, _CHANGING, name)
            return lambda: records.visibility.show(MIRROR_USER, _CHANGING, name)
        records.put_object(records.describe(_CHANGING).without_field(name))
        self._writer.learn(_CHANGING)
        return lambda: self._put(name)

    def _derive(self) -> None:
        """Change fields that no event carries."""
        for name in ("Account", "Contact"):
            for record_id in self._writer.some(name, _DERIVED):
                day = f"2026-{self._rng.randint(1, 12):02}-{self._rng.randint(1, 28):02}"
                given = {"LastActivityDate": day, "PhotoUrl": f"/photo/{self._rng.randrange(9)}"}
                self._emulator.records.derive(name, record_id, given)

    def _put(self, name: str) -> None:
        records = self._emulator.records
        of = records.describe(_CHANGING)
        records.put_object(
            of.with_field({"name": name, **_TYPES[self._fields[name]]}), convert=True
        )
        self._writer.learn(_CHANGING)


KINDS: dict[str, Callable[[OrgChanges], Undo | None]] = {
    "rights": OrgChanges._rights,
    "object": OrgChanges._object,
    "deselect": OrgChanges._deselect,
    "add_field": OrgChanges._add_field,
    "change_field": OrgChanges._change_field,
    "remove_field": OrgChanges._remove_field,
    "derive": OrgChanges._derive,
}
