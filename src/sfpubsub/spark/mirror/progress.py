"""The progress of each object of a mirror, which follows from the notes of its steps.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.notes import Merge, Note, Remove, Sweep
from sfpubsub.spark.records.reads import Read


@dataclass
class ObjectProgress:
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
    through: float | None = None
    """The org's time up to which changes were read: `Marker.through` of the newest read."""
    changes_at: float | None = None
    """When the last read of changed records, or of all, began, in seconds since the epoch."""
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
            if note.through is not None:
                self.read_through(note.through, note.began)
            if note.is_last:
                self.newest, self.read_at, self.is_removed = note.read, note.at, False
                self.selected, self.records = note.selected, note.records
                self.filled = note.filled
        elif isinstance(note, Sweep):
            self.merged = max(self.merged, note.last)
            self.swept_at, self.records = note.at, note.records
        elif isinstance(note, Remove):
            self.newest = self.read_at = self.swept_at = self.records = None
            self.through = self.changes_at = None
            self.selected, self.is_removed = (), True

    def read_through(self, through: float, began: float | None) -> None:
        """Record that all changes were read that were visible in the org at some time.

        Args:
            through: That time, by the org's clock.
            began: When the read began, in seconds since the epoch.
        """
        self.through, self.changes_at = max(self.through or through, through), began
