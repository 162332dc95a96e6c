"""The queue of what is to be read from the org again: the table `_reread`.

One row per reason, never changed: a reader of records works through the queue and keeps its own
account. Its table is also what says that a target has current tables, and whether it has history
tables. Decides nothing about records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.tables.records import ObjectCue
from sfpubsub.spark.tables.target import Target, parquet_of

_log = logging.getLogger("sfpubsub.spark")

QUEUE_NAME = "_reread"

QUEUE = pa.schema(
    [
        ("entity_name", pa.string()),
        ("record_id", pa.string()),  # null, or a prefix and an asterisk, for records of an object
        ("reason", pa.string()),
        ("change_type", pa.string()),
        ("commit_timestamp", TIME),
        ("since_seq", pa.int64()),  # of the event: a read of what was so after it is recent enough
        ("step", pa.int64()),
    ]
)

# Metadata kept with the table: its kind, whether there are history tables, and when commit numbers
# restarted, in milliseconds since 1970 UTC.
_KIND, _HISTORY, _EPOCHS = "kind", "history", "number_epochs"

# The kind of a mirror's queue.
MIRROR = "mirror"


class Queue:
    """The queue of one target. Not thread-safe."""

    def __init__(self, target: Target) -> None:
        self._table = target.table(QUEUE_NAME)

    def exists(self) -> bool:
        """Whether the target has current tables."""
        return self._table.exists()

    def is_of_mirror(self) -> bool:
        """Whether a mirror keeps it, which takes out what is done with."""
        return self._table.facts().get(_KIND) == MIRROR

    def has_history(self) -> bool:
        """Whether it has history tables, too."""
        return self._table.facts().get(_HISTORY) == "true"

    def step(self) -> int:
        """Return the newest step that had cues, or a later one."""
        return self._table.step()

    def make(self, *, with_history: bool) -> None:
        """Make the table, or make it new."""
        self._table.make(QUEUE, _facts(with_history=with_history, epochs=[]))

    def clear(self, step: int) -> None:
        """Remove all cues."""
        self._table.delete("true", step)

    def add(self, cues: Sequence[dict[str, Any]], step: int) -> None:
        """Add the cues of a step, unless they are there."""
        # Without cues no commit is needed: none come, either, when a step is done again, of which
        # some objects' tables are left out then.
        if cues:
            rows = sorted(cues, key=lambda row: (row["since_seq"], row["record_id"] or ""))
            self._table.append([parquet_of(pa.Table.from_pylist(rows, QUEUE))], step)

    def note(self, moves: Iterable[tuple[int, int]]) -> None:
        """Note that commit numbers have restarted, and say so, once for each move of the org.

        Args:
            moves: Commit timestamps of records' commits before and after, in milliseconds.
        """
        facts = self._table.facts()
        known: list[int] = json.loads(facts[_EPOCHS])
        new = new_epochs(known, moves)
        if new:
            with_history = facts[_HISTORY] == "true"
            self._table.make(QUEUE, _facts(with_history=with_history, epochs=[*known, *new]))
        for epoch in new:
            _log.warning(
                "commit numbers have restarted, at commit timestamp %d: the org was moved to "
                "another instance; changes are ordered by time, and nothing is to be done",
                epoch,
            )


def new_epochs(known: Sequence[int], moves: Iterable[tuple[int, int]]) -> list[int]:
    """Return when commit numbers have restarted, as far as that is not known yet.

    Args:
        known: Commit timestamps in milliseconds.
        moves: See `Queue.note`. A move shows at each record's first commit after it, however late.
    """
    new: list[int] = []
    for before, after in sorted(moves, key=lambda move: move[1]):
        if not any(before < epoch <= after for epoch in (*known, *new)):
            new.append(after)
    return new


def _facts(*, with_history: bool, epochs: Sequence[int]) -> dict[str, str]:
    history = "true" if with_history else "false"
    return {_KIND: "queue", _HISTORY: history, _EPOCHS: json.dumps(list(epochs))}


def object_row(entity: str, about: ObjectCue, step: int) -> dict[str, Any]:
    """Return the queue's row for a cue about all records of an object."""
    return {
        "entity_name": entity,
        "record_id": f"{about.prefix}*" if about.prefix else None,
        "reason": about.cue.reason,
        "change_type": about.cue.change_type,
        "commit_timestamp": about.cue.commit_timestamp,
        "since_seq": about.cue.ingest_seq,
        "step": step,
    }
