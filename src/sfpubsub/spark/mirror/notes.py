"""Notes: the instructions for those steps of a mirror that process no raw rows.

The plan of such a step stores its note (`StepPlan.note` in tables/steps.py). The note contains
everything that the outcome of the step depends on, except the tables. The next process can
therefore repeat an interrupted step. This module is pure: no Spark, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sfpubsub.spark.records.fold import Reason
from sfpubsub.spark.records.reads import AsOf, Read


@dataclass(frozen=True)
class Merge:
    """Instruction (*note*) for a step that merges pieces of one read from the read log (log.py).

    After all pieces of a read of a whole object, one more note, with `is_last`, handles the records
    that the read did not return: they may have been deleted.
    """

    entity: str
    kind: str
    """Kind of the read; see `Marker.kind`."""
    first: int
    last: int
    """`first` and `last` are the numbers of the first and the last piece."""
    read: Read
    """The read. Its `until` is used only with `is_last`; otherwise each row has its own."""
    newest: Read | None
    """The newest read of the whole object that was merged completely; None before the first."""
    is_last: bool
    applied_seq: int
    """``ingest_seq`` of the newest raw row that was applied."""
    at: float
    """When the step was planned, in seconds since the epoch."""
    size: int = 0
    """Number of rows in the pieces."""
    ids: tuple[str, str] | None = None
    """Lowest and highest id of the rows in the pieces; None if they are not known."""
    filled: Mapping[str, int] = field(default_factory=dict)
    """The columns that the read fills; see `Marker.filled`."""
    selected: tuple[str, ...] = ()
    """With `is_last`: the fields that the read selected."""
    records: int | None = None
    """With `is_last`: number of records that the read returned, without deleted ones."""
    through: float | None = None
    """With the last piece of a read of changed records, and with `is_last`: `Marker.through`."""
    began: float | None = None
    """Set with `through`: `Marker.at`."""
    has_events: bool = True
    """Whether events tell about changes of the object, too."""

    def to_note(self) -> dict[str, Any]:
        """Convert the note to the dictionary that the step's plan stores (`StepPlan.note`)."""
        return {
            **vars(self),
            "do": "merge",
            "read": _read_note(self.read),
            "newest": None if self.newest is None else _read_note(self.newest),
        }


@dataclass(frozen=True)
class Ask:
    """Instruction (*note*) for a step that adds entries to the reread queue.

    It is not used for entries that are caused by an event.
    """

    entity: str
    record_ids: tuple[str, ...] | None
    """Ids of the records; None for all records of the object."""
    reason: Reason
    applied_seq: int
    """``ingest_seq`` of the newest raw row that was applied."""
    at: float
    forgets_absences: bool = False
    """Whether absences that were found before no longer count, because the user's right to see
    every record was interrupted.
    """

    def to_note(self) -> dict[str, Any]:
        """Convert the note to the dictionary that the step's plan stores (`StepPlan.note`)."""
        return {**vars(self), "do": "ask", "reason": str(self.reason)}


@dataclass(frozen=True)
class Sweep:
    """A note for a step that compares a table's record ids with the result of a sweep.

    A sweep is a read of the ids of all records of an object in the org.
    """

    entity: str
    first: int
    last: int
    applied_seq: int
    at: float
    records: int | None = None
    """Number of ids that the sweep returned."""

    def to_note(self) -> dict[str, Any]:
        """Convert the note to the dictionary that the step's plan stores (`StepPlan.note`)."""
        return {**vars(self), "do": "sweep"}


@dataclass(frozen=True)
class Remove:
    """A note for a step that ends the mirroring of an object.

    Its rows stay, and its entries in the reread queue are removed.
    """

    entity: str
    at: float
    calls: int = 0

    def to_note(self) -> dict[str, Any]:
        """Convert the note to the dictionary that the step's plan stores (`StepPlan.note`)."""
        return {**vars(self), "do": "remove"}


Note = Merge | Ask | Sweep | Remove


def subject_of(note: Note) -> str:
    """Return the subject of a note's step (`StepPlan.subject`).

    The progress of an object (`ObjectProgress`) follows from the newest note of each subject.
    """
    found = note.to_note()
    kind = " end" if found.get("is_last") else ""
    if found.get("kind") == "changes":
        kind = " changes"
    return f"{found['do']}{kind} {note.entity}"


def note_of(found: Mapping[str, Any]) -> Note:
    """Convert a dictionary stored in a step's plan (`StepPlan.note`) to a note."""
    values = {name: value for name, value in found.items() if name != "do"}
    if found["do"] == "merge":
        values["read"] = _read_of(values["read"])
        values["selected"] = tuple(values["selected"])
        values["ids"] = None if values["ids"] is None else tuple(values["ids"])
        values["newest"] = None if values["newest"] is None else _read_of(values["newest"])
        return Merge(**values)
    if found["do"] == "ask":
        ids = values["record_ids"]
        values["record_ids"] = None if ids is None else tuple(ids)
        values["reason"] = Reason(values["reason"])
        return Ask(**values)
    if found["do"] == "remove":
        return Remove(**values)
    return Sweep(**values)


def _read_note(read: Read) -> dict[str, Any]:
    return {
        "as_of": [read.as_of.ingest_seq, read.as_of.asked],
        "since": None if read.since is None else [read.since[0].isoformat(), *read.since[1:]],
        "until": None if read.until is None else read.until.isoformat(),
    }


def _read_of(found: Mapping[str, Any]) -> Read:
    since, until = found["since"], found["until"]
    return Read(
        AsOf(*found["as_of"]),
        None if since is None else (datetime.fromisoformat(since[0]), since[1], since[2]),
        None if until is None else datetime.fromisoformat(until),
    )
