"""Apply the changes of one record, one by one, to its known state.

This module is pure: no Spark, no Arrow, no I/O, no clock. Changes are applied in order of arrival,
so the result depends only on the raw rows, not on how the engine groups them into steps. Invariant:
a record whose fields may differ from the org's is marked (`Record.reread_reason`) until a change
describes it completely or deletes it. This does not apply to fields that no event reports, such as
formula fields.

**Order.** Which of two changes is newer is decided by commit timestamp, then commit number, then
sequence number, then arrival. Numbers are comparable only within one database instance, and restart
at lower values when the org is migrated to another instance (Change Data Capture guide,
ChangeEventHeader). So they are used only to order changes of the same millisecond, which come from
one instance. A change that arrives after a newer one is late: it is not applied, and the record has
to be reread.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sfpubsub.avro.change_events import TextDiff

# Earlier than any commit timestamp; used for a change without a representable one.
_NEVER = datetime.min.replace(tzinfo=UTC)

# The change types that contain every field.
_WHOLE = ("CREATE", "UNDELETE")

# Whether a record is deleted after a gap event, by gap type. Unknown types leave it unchanged.
_DELETED = {"GAP_CREATE": False, "GAP_UPDATE": False, "GAP_UNDELETE": False, "GAP_DELETE": True}


class Reason(enum.StrEnum):
    """Reason for rereading a record, or all records of an object, from the org."""

    GAP = "gap"
    """An event did not report what changed, or changed a field that has no column."""
    OVERFLOW = "overflow"
    """A transaction changed more records than the service reported."""
    DIFF = "diff"
    """Only the diff of a text was sent, and the old text is unknown."""
    MISSING_BASE = "missing_base"
    """The record was updated, but its other fields are unknown."""
    LATE = "late"
    """A change arrived after a newer one."""
    ASKED = "asked"
    """A reread was requested, or the object is read for the first time."""
    FORMULA = "formula"
    """Fields that no event reports, such as formula fields, need a refresh."""
    UNREPORTED = "unreported"
    """The record was created by an event, and the object has fields that no event reports."""
    UNTOLD = "untold"
    """An event changed a row that was read after it, so a change without an event came between."""
    UNFIT = "unfit"
    """An event has a value that does not fit its column, or may have replaced such a value."""
    SWEEP = "sweep"
    """The org returned a record that the table does not contain, or did not return one that it
    contains.
    """
    ABSENT = "absent"
    """A read did not return the record, although no event has deleted it: a second one decides."""
    PARKED = "parked"
    """Two reads did not return the record, but too many others were missing, too: it is deleted
    only if a user confirms that.
    """
    CONFIRMED = "confirmed"
    """A user has confirmed that the missing record may be deleted, if it is still missing."""

    @property
    def casts_doubt(self) -> bool:
        """Whether fields reported by events may have wrong values until the record is reread."""
        harmless = (Reason.ASKED, Reason.FORMULA, Reason.UNREPORTED, Reason.SWEEP)
        return self not in harmless and not self.is_about_absence

    @property
    def is_about_absence(self) -> bool:
        """Whether only the record's existence is in question, not its values."""
        return self in (Reason.ABSENT, Reason.PARKED, Reason.CONFIRMED)


@dataclass(frozen=True)
class Fields:
    """Maps event fields to a table's columns. Sent to executors."""

    columns: tuple[str, ...]
    """Names of the columns that contain fields."""
    places: Mapping[str, tuple[int, ...]]
    """Column indexes by field name. A field whose type has changed has several columns, one of
    which contains the value.
    """
    parts: Mapping[str, Mapping[int, tuple[tuple[str, ...], ...]]]
    """For names such as ``Parent.Child``: paths within the structs of the parent's columns, by
    column index.
    """
    unreported: tuple[int, ...] = ()
    """Indexes of columns that reads of the org fill, but no event. Only a mirror has any."""
    hidden: tuple[int, ...] = ()
    """Indexes of columns of fields that the org does not describe, because they were removed or
    hidden: no event empties them by lacking a value. Only a mirror has any.
    """

    @classmethod
    def of(
        cls, columns: Sequence[str], versions: Iterable[Mapping[str, tuple[str, ...]]]
    ) -> Fields:
        """Combine the field locations of all schemas of an event type.

        Args:
            columns: Names of the columns that contain fields.
            versions: The result of `paths_of` for each schema.
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
        """Indexes of columns that are filled only by reads, such as those of formula fields."""
        named = {number for numbers in self.places.values() for number in numbers}
        return tuple(number for number in range(len(self.columns)) if number not in named)

    def copy(self, name: str, values: list[Any], new: Sequence[Any]) -> None:
        """Copy the value of a field, or of a field's component, from *new* to *values*."""
        parts = self.parts[name] if "." in name else None
        for column in self.places[name.partition(".")[0]]:
            if parts is None:
                values[column] = none_if_empty(new[column])
            else:
                paths = parts.get(column, ())
                values[column] = _with_parts(values[column], new[column], paths)


def _with_parts(old: Any, new: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return *old* with the components at *paths* replaced by those of *new*.

    Return None if *paths* is empty: the field's value then has another type, and is in the column
    for that type.
    """
    if not paths:
        return None
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
    """Return *value*, or None for a compound value whose components are all null.

    An event represents an empty compound value either as null or as a struct of nulls.
    """
    if isinstance(value, dict) and all(none_if_empty(part) is None for part in value.values()):
        return None
    return value


@dataclass(frozen=True, slots=True)
class Change:
    """The change that one event makes to one record."""

    change_type: str
    commit_timestamp: datetime | None
    commit_number: int | None
    sequence_number: int | None
    ingest_seq: int
    values: Sequence[Any]
    """Values in the order of `Fields.columns`; never modified."""
    changed: Sequence[str] = ()
    """Names of the fields that an UPDATE changed or set to null; parts as ``Parent.Child``."""
    diffs: Sequence[str] = ()
    """Those fields in `changed` whose text was sent as a diff."""
    unfit: bool = False
    """Whether one of `values` did not fit its column, and is null instead. Only in a mirror."""

    @property
    def order(self) -> tuple[datetime, int, int]:
        """Sort key of changes: the commit's timestamp and number, then the sequence number.

        The order of arrival breaks ties. An unknown value sorts before all others.
        """
        return _order(self.commit_timestamp, self.commit_number, self.sequence_number)


@dataclass(frozen=True, slots=True)
class Record:
    """The known state of one record: a row of a current table."""

    values: Sequence[Any]
    """Values in the order of `Fields.columns`; never modified. For a deleted record, its last
    values.
    """
    is_deleted: bool
    is_complete: bool
    """Whether an event or a read of the record has supplied every field; in a mirror, also those
    that no event reports. If `reread_reason` is set, the values may still be outdated.
    """
    reread_reason: Reason | None
    """Why the record must be reread from the org: the first reason since an event or a read last
    described the whole record. None if no reread is needed.
    """
    commit_timestamp: datetime | None
    """Taken from the newest applied event, like the following fields."""
    commit_number: int | None
    sequence_number: int | None
    ingest_seq: int
    change_type: str

    @property
    def order(self) -> tuple[datetime, int, int]:
        """See `Change.order`."""
        return _order(self.commit_timestamp, self.commit_number, self.sequence_number)

    @property
    def is_sound(self) -> bool:
        """Whether all values are known and up to date, if the record exists."""
        reason = self.reread_reason
        return self.is_complete and (reason is None or reason.is_about_absence)


@dataclass(frozen=True, slots=True)
class Cue:
    """A reason to reread one or more records from the org; a row of the reread queue (queue.py)."""

    reason: Reason
    change_type: str | None
    commit_timestamp: datetime | None
    ingest_seq: int
    """``ingest_seq`` of the event that caused the cue. A read of any later state is
    recent enough.
    """


@dataclass(frozen=True, slots=True)
class ObjectCue:
    """A `Cue` for all records of an object whose ids begin with *prefix*.

    An empty prefix stands for all records of the object.
    """

    prefix: str
    cue: Cue

    @classmethod
    def of(cls, record_id: str | None, change: Cue) -> ObjectCue | None:
        """Return a cue for all records that *record_id* stands for; None if it is a record's id.

        For an overflow event, return a cue for all records of the object, whatever the id is.

        Args:
            record_id: One of the event's record ids, or a prefix such as ``001*``; None if the
                event has no ids, which stands for all records of the object.
            change: A cue for the event, with the reason `Reason.GAP`.
        """
        if change.change_type == "GAP_OVERFLOW":
            return cls("", replace(change, reason=Reason.OVERFLOW))
        if record_id is None or record_id.endswith("*"):
            return cls((record_id or "").rstrip("*"), change)
        return None


def _order(
    timestamp: datetime | None, number: int | None, sequence: int | None
) -> tuple[datetime, int, int]:
    # Unknown values sort before known ones; numbers are not negative.
    return (
        _NEVER if timestamp is None else timestamp,
        -1 if number is None else number,
        -1 if sequence is None else sequence,
    )


@dataclass(slots=True)
class Fold:
    """Applies the changes of one record, one by one. Not thread-safe.

    Args:
        fields: Positions of fields in `Record.values`.
        record: The previously known state; None for a new record.
        since: If *record* was read from the org, it includes all changes whose `Change.order` is
            below this value, so such a change is late. None otherwise.
        until: If *record* was read from the org, it may include changes committed up to this time,
            so a diff in such a change is skipped if it does not apply. None otherwise.
    """

    fields: Fields
    record: Record | None
    since: tuple[datetime, int, int] | None = None
    until: datetime | None = None
    cues: list[Cue] = field(default_factory=list)
    """Reasons to reread the record that were found so far, in order of arrival."""
    versions: list[Record] = field(default_factory=list)
    """The record after each applied change, in order of arrival."""
    renumbered: list[tuple[datetime, datetime]] = field(default_factory=list)
    """Times of the commits before and after each decrease of the commit numbers. The cause is a
    migration of the org to another instance: commits of one record are serialized, so no other
    cause is possible.
    """

    def apply(self, change: Change) -> None:
        """Apply the next change, in order of arrival.

        A late change is not applied, but marks the record for rereading.
        """
        old = self.record
        if self._is_late(change):
            self.doubt(Reason.LATE, change)
            return
        if old is not None and _is_renumbered(old, change):
            self.renumbered.append((old.order[0], change.order[0]))
        self.record, doubt = self._after(change)
        if change.unfit:
            self.record, doubt = replace(self.record, is_complete=False), doubt or Reason.UNFIT
        if doubt is not None:
            self.doubt(doubt, change)
        self.versions.append(self.record)

    def mark(self, about_all: Cue) -> None:
        """Mark the record for rereading, with the reason of the cue *about_all*.

        If the record is already marked, it keeps its first reason. A record whose state is unknown
        needs no mark, because the cue also has its own row in the reread queue.
        """
        if self.record is not None and self.record.reread_reason is None:
            self.record = replace(self.record, reread_reason=about_all.reason)

    def doubt(self, reason: Reason, change: Change) -> None:
        """Queue a reread of the record because of a change."""
        cue = Cue(reason, change.change_type, change.commit_timestamp, change.ingest_seq)
        self.cues.append(cue)
        if reason.casts_doubt:
            self.mark(cue)

    def _after(self, change: Change) -> tuple[Record, Reason | None]:
        """Return the record after a change, and why it must be reread (None if it need not be)."""
        old, kind = self.record, change.change_type
        if kind in _WHOLE:
            values = [none_if_empty(value) for value in change.values]
            for number in self.fields.unnamed:
                values[number] = None if old is None else old.values[number]
            for number in self.fields.hidden:
                if old is not None and values[number] is None:
                    values[number] = old.values[number]
            # A complete row, also of a deleted record, has these fields from a read.
            is_complete = not self.fields.unreported or (old is not None and old.is_complete)
            doubt = None if is_complete else Reason.UNREPORTED
            return _record(change, values, is_complete=is_complete), doubt
        if kind == "UPDATE":
            return self._updated(change)
        last = [None] * len(self.fields.columns) if old is None else old.values
        if kind == "DELETE":
            # A deleted record cannot be reread, so nothing more will become known.
            sound = old is not None and old.is_sound
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
                fits = self._apply_diff(name, values, change.values)
                if not fits and not self._may_be_in_read(change):
                    doubt = doubt or Reason.DIFF
            elif name in self.fields:
                self.fields.copy(name, values, change.values)
            else:
                doubt = doubt or Reason.GAP
        if old is None or old.is_deleted:
            # It is unknown how a deleted record was restored, and with which fields.
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

    def _apply_diff(self, name: str, values: list[Any], new: Sequence[Any]) -> bool:
        """Apply the text diff of a field; return whether the new text is known."""
        is_known = False
        for column in self.fields.places.get(name, ()):
            old, text = values[column], new[column]
            diff = TextDiff.parse(text) if isinstance(text, str) else None
            if diff is not None:
                text = diff.apply(old) if isinstance(old, str) else None
                is_known |= text is not None
                values[column] = old if text is None else text
            else:  # the whole text, or a column of another type
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
    """Return the record after a change.

    If *before* is given, the result keeps the completeness and the reread reason of *before*.
    """
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
