"""What the tables of a mirror tell about earlier events and steps."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.notes import note_of
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.tables.steps import STEPS_NAME

if TYPE_CHECKING:
    from sfpubsub.spark.mirror.tables import MirrorTables

Order = tuple[datetime, int, int]

_ORDER = ("commit_timestamp", "commit_number", "sequence_number")


class Since:
    """Finds the position of an object's last event in the org's order of changes (`Read.since`).

    The result for each object is cached, so a call usually scans only the events that were added
    since the previous call. Not thread-safe.
    """

    def __init__(self, tables: MirrorTables) -> None:
        self._tables = tables
        self._known: dict[str, tuple[int, Order | None]] = {}

    def of(self, entity: str, last: int) -> Order | None:
        """Return the greatest `Change.order` of an object's events; None if no event has one.

        Args:
            entity: The object.
            last: Only events up to the raw row with this ``ingest_seq`` are included.
        """
        seq, known = self._known.get(entity, (-1, None))
        if last < seq:  # for a read that an earlier process began
            return self._greatest(entity, -1, last)
        found = self._greatest(entity, seq, last)
        greatest = max((each for each in (known, found) if each is not None), default=None)
        self._known[entity] = last, greatest
        return greatest

    def _greatest(self, entity: str, after: int, last: int) -> Order | None:
        typed = self._tables.objects[entity].typed
        if last <= after or not typed.exists():
            return None
        rows = typed.read().where((f.col("ingest_seq") > after) & (f.col("ingest_seq") <= last))
        order = f.struct(*_ORDER)
        found = to_arrow(rows.agg(f.max(order).alias("order"))).to_pylist()[0]["order"]
        if found is None or found["commit_timestamp"] is None:
            return None
        number, sequence = found["commit_number"], found["sequence_number"]
        return (
            found["commit_timestamp"],
            -1 if number is None else number,
            -1 if sequence is None else sequence,
        )


def stored_progress(target: Target) -> dict[str, ObjectProgress]:
    """Read the progress of each object from the plans of the steps.

    A plan is durable before its step is performed, and the next process finishes an incomplete step
    first, so the plans describe work that is done, or will be done before any other work.
    """
    found: dict[str, ObjectProgress] = {}
    steps = target.table(STEPS_NAME)
    if steps.exists():
        newest = steps.read().where("subject IS NOT NULL").groupBy("subject")
        rows = newest.agg(f.max_by("plan", "step").alias("plan"), f.max("step").alias("step"))
        for row in rows.orderBy("step").collect():
            note = note_of(json.loads(row["plan"])["note"])
            found.setdefault(note.entity, ObjectProgress()).take(note)
    return found
