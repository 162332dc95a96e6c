"""The history of a mirror, read from the plans of its steps.

A step is a unit of work of the engine (tables/steps.py): for a mirror, it applies events or carries
out a `notes.Note`. Its plan is durable before it runs, and the next process finishes an incomplete
step first. So the plans describe work that is done, or that will be done before any other work.
This module never writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import functions as f

from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.notes import Merge, Note, Remove, Sweep, note_of
from sfpubsub.spark.records.reads import Read
from sfpubsub.spark.tables.steps import STEPS_NAME


@dataclass
class Account:
    """The progress of one object: its last merged read and its last comparison with the org."""

    merged: int = 0
    """Number of the newest log piece that was merged."""
    newest: Read | None = None
    """The newest read of the whole object that was merged completely; None before the first."""
    read_at: float | None = None
    """Time when `newest` was merged, in seconds since the epoch."""
    selected: tuple[str, ...] = ()
    """Fields that `newest` selected."""
    filled: Mapping[str, int] = field(default_factory=dict)
    """Columns that `newest` filled; see `Marker.filled`."""
    swept_at: float | None = None
    """Time of the last comparison of ids, in seconds since the epoch; None before the first."""
    records: int | None = None
    """Number of live records that the last read of all records or ids returned."""

    is_removed: bool = False
    """Whether the object was removed from the mirror, and not read since. Its rows are outdated."""

    def is_through(self, last: Marker) -> bool:
        """Return whether a read's closing step is done, not needed, or not due yet.

        A read of the whole object needs this step after its final piece, to handle the records that
        the read did not return. Call this method only if all stored pieces have been merged.

        Args:
            last: Marker of the read's newest piece.
        """
        if last.kind != "object" or not last.is_last:
            return True
        return self.newest is not None and self.newest.as_of == last.as_of

    def take(self, note: Note) -> None:
        """Update the progress from a note (`notes.Note`). Pass notes in step order."""
        if isinstance(note, Merge):
            self.merged = max(self.merged, note.last)
            if note.is_last:
                self.newest, self.read_at, self.is_removed = note.read, note.at, False
                self.selected, self.records = note.selected, note.records
                self.filled = note.filled
        elif isinstance(note, Sweep):
            self.merged = max(self.merged, note.last)
            self.swept_at, self.records = note.at, note.records
        elif isinstance(note, Remove):
            self.newest = self.read_at = self.swept_at = self.records = None
            self.selected, self.is_removed = (), True


class Ledger:
    """The progress (`Account`) of each object in one target. Not thread-safe."""

    def __init__(self, target: Target) -> None:
        self._accounts: dict[str, Account] = {}
        steps = target.table(STEPS_NAME)
        if not steps.exists():
            return
        newest = steps.read().where("subject IS NOT NULL").groupBy("subject")
        rows = newest.agg(f.max_by("plan", "step").alias("plan"), f.max("step").alias("step"))
        for row in rows.orderBy("step").collect():
            self.take(note_of(json.loads(row["plan"])["note"]))

    def of(self, entity: str) -> Account:
        """Return the progress of an object; an empty `Account` if no step has recorded any."""
        return self._accounts.setdefault(entity, Account())

    def take(self, note: Note) -> None:
        """Update the progress of the object that *note* names.

        Pass the notes in step order.
        """
        self.of(note.entity).take(note)
