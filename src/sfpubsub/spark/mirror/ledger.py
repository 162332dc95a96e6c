"""What a mirror has done so far, as the plans of its steps tell it.

The plans are durable before the steps are done, and each step is finished by the next process; so
what they say is what is, or will be before anything else is done. Reads, and writes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import functions as f

from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.notes import Merge, Note, Sweep, note_of
from sfpubsub.spark.mirror.reads import Read
from sfpubsub.spark.tables.steps import STEPS_NAME
from sfpubsub.spark.tables.target import Target


@dataclass
class Account:
    """What was done about one object."""

    merged: int = 0
    """Number of the newest piece of the log that was merged."""
    newest: Read | None = None
    """The newest read of all of the object that was merged as a whole."""
    read_at: float | None = None
    """When that was, in seconds since 1970 UTC."""
    selected: tuple[str, ...] = ()
    """What it has selected."""
    swept_at: float | None = None
    """When the ids were compared last."""

    def is_through(self, last: Marker) -> bool:
        """Whether a read of which every piece was merged is done with.

        Args:
            last: Of its last piece.
        """
        if last.kind != "object" or not last.is_last:
            return True
        return self.newest is not None and self.newest.as_of == last.as_of

    def take(self, note: Note) -> None:
        """Learn of the next step."""
        if isinstance(note, Merge):
            self.merged = max(self.merged, note.last)
            if note.is_last:
                self.newest, self.read_at = note.read, note.at
                self.selected = note.selected
        elif isinstance(note, Sweep):
            self.merged = max(self.merged, note.last)
            self.swept_at = note.at


class Ledger:
    """The accounts of one target, by object. Not thread-safe."""

    def __init__(self, target: Target) -> None:
        self._accounts: dict[str, Account] = {}
        self._steps = steps = target.table(STEPS_NAME)
        if not steps.exists():
            return
        plan = f.col("plan")
        parts = [f.get_json_object(plan, f"$.note.{name}") for name in ("entity", "do", "is_last")]
        newest = steps.read().where("kind = 'beside'").groupBy(*parts)
        rows = newest.agg(f.max_by("plan", "step").alias("plan"), f.max("step").alias("step"))
        for row in rows.orderBy("step").collect():
            self.take(note_of(json.loads(row["plan"])["note"]))

    def calls(self, since: float) -> list[tuple[float, int]]:
        """Return when requests were made of the org, and how many.

        Args:
            since: Only those after this time, in seconds since 1970 UTC.
        """
        if not self._steps.exists():
            return []
        plan = f.col("plan")
        at, calls = (f.get_json_object(plan, f"$.note.{name}") for name in ("at", "calls"))
        rows = self._steps.read().where("kind = 'beside'")
        rows = rows.select(at.cast("double").alias("at"), calls.cast("long").alias("calls"))
        found = rows.where((f.col("at") > since) & (f.col("calls") > 0)).collect()
        return [(row["at"], row["calls"]) for row in found]

    def of(self, entity: str) -> Account:
        """Return an object's account."""
        return self._accounts.setdefault(entity, Account())

    def take(self, note: Note) -> None:
        """Learn of the next step."""
        self.of(note.entity).take(note)
