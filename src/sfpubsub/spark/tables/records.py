"""One record's changes, laid one after the other over what is known of it.

Pure: no Spark, no Arrow, no I/O, no clock. Changes come in order of arrival, so that the result is
a function of the raw rows alone, wherever a step of the engine begins or ends. Invariant: a record
whose fields may differ from the org's says so (`Record.reread_reason`), until a change has said
all of it.

**Order.** A change is newer than another one by commit timestamp, then commit number, then sequence
number, then arrival. Numbers count in one database instance only and start lower when the org is
moved to another one (Change Data Capture guide, ChangeEventHeader), so they decide only between
changes of one millisecond, which are of one instance. A change that arrives after a newer one is
late: it is not laid over, and the record is to be read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sfpubsub.avro.change_events import TextDiff

# A change type of ours, for a change that has vanished from the raw table.
RESTORED = "RESTORED"

# Before any commit timestamp: that of a change whose header has none that a table can hold.
_NEVER = datetime.min.replace(tzinfo=UTC)

# The change types that give every field.
_WHOLE = ("CREATE", "UNDELETE")

# Types that say of a record whether it is deleted; a newer type says nothing that is known.
_DELETED = {"GAP_CREATE": False, "GAP_UPDATE": False, "GAP_UNDELETE": False, "GAP_DELETE": True}


class Reason(enum.StrEnum):
    """Why a record, or all records of an object, must be read from the org again."""

    GAP = "gap"
    """An event did not say what changed."""
    OVERFLOW = "overflow"
    """A transaction changed more records than the service told of."""
    DIFF = "diff"
    """A text of which only the difference was sent, and the old text is not known."""
    MISSING_BASE = "missing_base"
    """An update of a record whose other fields are not known."""
    LATE = "late"
    """A change arrived after a newer one."""
    RESTORED = "restored"
    """Rows of the record are gone: the raw table was restored to an older state."""
    ASKED = "asked"
    """Somebody asked for it, or it is the first read of an object."""
    FORMULA = "formula"
    """Fields that no event names are to be refreshed."""
    SWEEP = "sweep"
    """A list of ids from the org has the record and the table does not, or vice versa."""


@dataclass(frozen=True)
class Fields:
    """Where the fields that events name are in a table's columns. Travels to executors."""

    columns: tuple[str, ...]
    """Names of the columns that hold fields."""
    places: Mapping[str, tuple[int, ...]]
    """Numbers of a field's columns, by the field's name. A field whose type has changed has several
    of them, of which one has the value."""
    parts: Mapping[str, Mapping[int, tuple[tuple[str, ...], ...]]]
    """Of ``Parent.Child``: where it is in the structs of the parent's columns, by their numbers."""

    @classmethod
    def of(
        cls, columns: Sequence[str], versions: Iterable[Mapping[str, tuple[str, ...]]]
    ) -> Fields:
        """Put together where the schemas of an event type have their fields.

        Args:
            columns: Names of the columns that hold fields.
            versions: For each schema, what `paths_of` says of it.
        """
        numbers = {name: number for number, name in enumerate(columns)}
        places: dict[str, dict[int, None]] = {}
        parts: dict[str, dict[int, dict[tuple[str, ...], None]]] = {}
        for paths in versions:
            for name, (column, *inner) in paths.items():
                number = numbers[column]
                if inner:
                    parts.setdefault(name, {}).setdefault(number, {})[tuple(inner)] = None
                else:
                    places.setdefault(name, {})[number] = None
        return cls(
            tuple(columns),
            {name: tuple(found) for name, found in places.items()},
            {
                name: {number: tuple(paths) for number, paths in found.items()}
                for name, found in parts.items()
            },
        )

    def __contains__(self, name: object) -> bool:
        return name in self.places or name in self.parts

    @cached_property
    def unnamed(self) -> tuple[int, ...]:
        """Numbers of the columns that only a read of the record fills, such as formula fields."""
        named = {number for numbers in self.places.values() for number in numbers}
        return tuple(number for number in range(len(self.columns)) if number not in named)

    def lay(self, name: str, values: list[Any], new: Sequence[Any]) -> None:
        """Take the new value of a field, or of a part of one, into *values*."""
        parts = self.parts[name] if "." in name else None
        for column in self.places[name.partition(".")[0]]:
            if parts is None:
                values[column] = none_if_empty(new[column])
            else:
                paths = parts.get(column, ())
                values[column] = _with_parts(values[column], new[column], paths)


def _with_parts(old: Any, new: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return *old* with the parts at *paths* as they are in *new*."""
    if not paths:
        return None  # the field is of another type now
    for path in paths:
        old = _with_part(old, new, path)
    return none_if_empty(old)


def _with_part(old: Any, new: Any, path: tuple[str, ...]) -> Any:
    name, *inner = path
    old_part = old.get(name) if isinstance(old, dict) else None
    new_part = new.get(name) if isinstance(new, dict) else None
    if inner:  # a member of a union, which has one value at a time
        return {name: _with_part(old_part, new_part, tuple(inner))}
    return {**(old if isinstance(old, dict) else {}), name: new_part}


def none_if_empty(value: Any) -> Any:
    """Return None for a compound value without a part that is set: events have both forms."""
    if isinstance(value, dict) and all(none_if_empty(part) is None for part in value.values()):
        return None
    return value


@dataclass(frozen=True, slots=True)
class Change:
    """What one event says of one record."""

    change_type: str
    commit_timestamp: datetime | None
    commit_number: int | None
    sequence_number: int | None
    ingest_seq: int
    values: Sequence[Any]
    """By `Fields.columns`; not changed."""
    changed: Sequence[str] = ()
    """Names of the fields that an UPDATE changed or set to null; parts as ``Parent.Child``."""
    diffs: Sequence[str] = ()
    """Of these, the texts that were sent as a diff."""

    @property
    def order(self) -> tuple[datetime, int, int]:
        """What tells which of two changes is newer, before arrival does."""
        return _order(self.commit_timestamp, self.commit_number, self.sequence_number)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one record: a row of a current table."""

    values: Sequence[Any]
    """By `Fields.columns`; not changed. Of a deleted record its last ones."""
    is_deleted: bool
    is_complete: bool
    """Whether an event, or a read of the record, has given every field."""
    reread_reason: Reason | None
    """Why the record must be read from the org again: the first reason since it was known."""
    commit_timestamp: datetime | None
    """This and the rest: of the newest event that was laid over."""
    commit_number: int | None
    sequence_number: int | None
    ingest_seq: int
    change_type: str

    @property
    def order(self) -> tuple[datetime, int, int]:
        """As of a `Change`."""
        return _order(self.commit_timestamp, self.commit_number, self.sequence_number)


@dataclass(frozen=True, slots=True)
class Cue:
    """A reason to read something from the org again: what the queue has a row for."""

    reason: Reason
    change_type: str | None
    commit_timestamp: datetime | None
    ingest_seq: int
    """Of the event that gave the reason: a read of what was so after it is recent enough."""


@dataclass(frozen=True, slots=True)
class ObjectCue:
    """A cue for all records of an object whose ids begin with *prefix*."""

    prefix: str
    cue: Cue

    @classmethod
    def of(cls, record_id: str | None, change: Cue) -> ObjectCue | None:
        """Return what an event says of all records, or None when it is about one.

        Args:
            record_id: One of those of the event; None when it names none.
            change: With the reason of a gap.
        """
        if change.change_type == "GAP_OVERFLOW":
            return cls("", replace(change, reason=Reason.OVERFLOW))
        if record_id is None or record_id.endswith("*"):
            return cls((record_id or "").rstrip("*"), change)
        return None


def _order(
    timestamp: datetime | None, number: int | None, sequence: int | None
) -> tuple[datetime, int, int]:
    # What is not known is older than what is; numbers are not negative.
    return (
        _NEVER if timestamp is None else timestamp,
        -1 if number is None else number,
        -1 if sequence is None else sequence,
    )


@dataclass(slots=True)
class Fold:
    """The changes of one record, taken one by one. Not thread-safe.

    Args:
        fields: Where fields are in `Record.values`.
        record: What is known before; None for a record that no event was about.
        since: Where *record* began as a row read from the org: changes before this one, by
            `Change.order`, are in it. One that is still to come is late.
        until: Likewise: changes committed up to then may be in it. A diff of such a change that
            does not fit is skipped.
    """

    fields: Fields
    record: Record | None
    since: tuple[datetime, int, int] | None = None
    until: datetime | None = None
    cues: list[Cue] = field(default_factory=list)
    """Reasons to read the record again, in order of arrival."""
    versions: list[Record] = field(default_factory=list)
    """The record after each change that was laid over, in order of arrival."""
    renumbered: list[tuple[datetime, datetime]] = field(default_factory=list)
    """Times of two commits in a row of which the newer one has the lower number: the org was moved
    to another instance. A record's commits wait for one another, so nothing else does that."""

    def apply(self, change: Change) -> None:
        """Take the next change in order of arrival."""
        old = self.record
        if change.change_type == RESTORED:
            self._doubt(Reason.RESTORED, change)
            return
        if self._is_late(change):
            self._doubt(Reason.LATE, change)
            return
        if old is not None and _is_renumbered(old, change):
            self.renumbered.append((old.order[0], change.order[0]))
        self.record, doubt = self._after(change)
        if doubt is not None:
            self._doubt(doubt, change)
        self.versions.append(self.record)

    def mark(self, about_all: Cue) -> None:
        """Take a cue that is about all records of the object, this one among them.

        It is in the queue as itself, and changes nothing of a record that is not known.
        """
        if self.record is not None and self.record.reread_reason is None:
            self.record = replace(self.record, reread_reason=about_all.reason)

    def _doubt(self, reason: Reason, change: Change) -> None:
        cue = Cue(reason, change.change_type, change.commit_timestamp, change.ingest_seq)
        self.cues.append(cue)
        self.mark(cue)

    def _after(self, change: Change) -> tuple[Record, Reason | None]:
        """Return the record that a change leaves, and what it leaves open."""
        old, kind = self.record, change.change_type
        if kind in _WHOLE:
            values = [none_if_empty(value) for value in change.values]
            for number in self.fields.unnamed:
                values[number] = None if old is None else old.values[number]
            return _record(change, values, is_complete=True), None
        if kind == "UPDATE":
            return self._updated(change)
        last = [None] * len(self.fields.columns) if old is None else old.values
        if kind == "DELETE":
            # Nothing is left to be read again, so what is known now is all there will be.
            sound = old is not None and old.is_complete and old.reread_reason is None
            return _record(change, last, is_deleted=True, is_complete=sound), None
        was_deleted = old is not None and old.is_deleted
        is_deleted = _DELETED.get(kind, was_deleted)
        return _record(change, last, is_deleted=is_deleted, before=old), Reason.GAP

    def _updated(self, change: Change) -> tuple[Record, Reason | None]:
        old = self.record
        values = [None] * len(self.fields.columns) if old is None else list(old.values)
        doubt = None
        for name in change.changed:
            if name in change.diffs:
                fits = self._lay_diff(name, values, change.values)
                if not fits and not self._may_be_in_read(change):
                    doubt = doubt or Reason.DIFF
            elif name in self.fields:
                self.fields.lay(name, values, change.values)
            else:
                doubt = doubt or Reason.GAP
        if old is None or old.is_deleted:
            # What brought a deleted record back, and with which fields, is not known.
            return _record(change, values), Reason.MISSING_BASE
        return _record(change, values, before=old), doubt

    def _is_late(self, change: Change) -> bool:
        if self.since is not None and change.order < self.since:
            return True
        return self.record is not None and change.order < self.record.order

    def _may_be_in_read(self, change: Change) -> bool:
        if self.until is None or change.commit_timestamp is None:
            return False
        return change.commit_timestamp <= self.until

    def _lay_diff(self, name: str, values: list[Any], new: Sequence[Any]) -> bool:
        """Apply the text diff of a field; return whether the new text is known."""
        is_known = False
        for column in self.fields.places.get(name, ()):
            old, text = values[column], new[column]
            diff = TextDiff.parse(text) if isinstance(text, str) else None
            if diff is not None:
                text = diff.apply(old) if isinstance(old, str) else None
                is_known |= text is not None
                values[column] = old if text is None else text
            else:  # the text itself, or a column of another type
                is_known |= text is not None
                values[column] = text
        return is_known


def _record(
    change: Change,
    values: Sequence[Any],
    *,
    is_deleted: bool = False,
    is_complete: bool = False,
    before: Record | None = None,
) -> Record:
    """Return the record after a change; *before*, where it counts, has what was left open."""
    return Record(
        values,
        is_deleted,
        is_complete if before is None else before.is_complete,
        None if before is None else before.reread_reason,
        change.commit_timestamp,
        change.commit_number,
        change.sequence_number,
        change.ingest_seq,
        change.change_type,
    )


def _is_renumbered(old: Record, new: Change) -> bool:
    if old.commit_number is None or new.commit_number is None:
        return False
    return new.order[0] > old.order[0] and new.commit_number < old.commit_number
