"""The queue of records to reread from the org: the table `_reread`.

The queue has one row per reason. Rows are never changed: a program that rereads the records works
through the queue and stores its own progress. Rows are removed only by a rebuild, or by a mirror.
The table exists if the target has current tables, and its metadata records whether there are
history tables. Other modules decide which records to reread.
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
        # null for all records of the object; a prefix and an asterisk for all ids with that prefix.
        ("record_id", pa.string()),
        ("reason", pa.string()),
        ("change_type", pa.string()),
        ("commit_timestamp", TIME),
        # ``ingest_seq`` of the event. A read of any later state is recent enough.
        ("since_seq", pa.int64()),
        ("step", pa.int64()),
    ]
)

# Metadata kept with the table: its kind, whether there are history tables, and when commit numbers
# restarted, in milliseconds since the epoch.
_KIND, _HISTORY, _EPOCHS = "kind", "history", "number_epochs"

# The kind of a mirror's queue.
MIRROR = "mirror"


class Queue:
    """The reread queue of one target, stored in its table `_reread`. Not thread-safe."""

    def __init__(self, target: Target) -> None:
        self._table = target.table(QUEUE_NAME)

    def exists(self) -> bool:
        """Return whether the queue exists, that is, whether the target has current tables."""
        return self._table.exists()

    def is_of_mirror(self) -> bool:
        """Return whether the queue belongs to a mirror, which removes processed rows."""
        return self._table.facts().get(_KIND) == MIRROR

    def has_history(self) -> bool:
        """Return whether the target also has history tables."""
        return self._table.facts().get(_HISTORY) == "true"

    def step(self) -> int:
        """Return the newest step that added rows to the queue or removed rows from it."""
        return self._table.step()

    def make(self, *, with_history: bool) -> None:
        """Create the table, or reset the metadata of the existing one.

        The metadata then contains no restarts of the commit numbers (see `note`).
        """
        self._table.make(QUEUE, _facts(with_history=with_history, epochs=[]))

    def clear(self, step: int) -> None:
        """Remove all rows from the queue, as part of step number *step*."""
        self._table.delete("true", step)

    def add(self, cues: Sequence[dict[str, Any]], step: int) -> None:
        """Add the rows of a step to the queue, unless they have already been added."""
        # Without cues, no commit is needed. A repeated step, which skips finished objects, produces
        # no cues for them.
        if cues:
            rows = sorted(cues, key=lambda row: (row["since_seq"], row["record_id"] or ""))
            self._table.append([parquet_of(pa.Table.from_pylist(rows, QUEUE))], step)

    def note(self, moves: Iterable[tuple[int, int]]) -> None:
        """Detect restarts of the commit numbers; record and log those not recorded before.

        Commit numbers restart when the org is migrated to another instance.

        Args:
            moves: Pairs of commit timestamps, in milliseconds since the epoch: a record's last
                commit before a restart, and its first one afterwards.
        """
        facts = self._table.facts()
        known: list[int] = json.loads(facts[_EPOCHS])
        new = new_epochs(known, moves)
        if new:
            with_history = facts[_HISTORY] == "true"
            self._table.make(QUEUE, _facts(with_history=with_history, epochs=[*known, *new]))
        for epoch in new:
            _log.warning(
                "commit numbers restarted at commit timestamp %d, because the org was migrated to "
                "another instance; changes are ordered by time, so no action is needed",
                epoch,
            )


def new_epochs(known: Sequence[int], moves: Iterable[tuple[int, int]]) -> list[int]:
    """Return the restarts of the commit numbers that are not recorded yet, oldest first.

    A restart shows when a commit of a record has a lower number than the record's previous commit.
    It is recorded as the timestamp of the earliest commit that showed it, in milliseconds since
    the epoch. Other records show the same restart in their own next commits, possibly much later.
    So a pair in *moves* is a new restart only if no recorded restart is between its timestamps.

    Args:
        known: The recorded restarts.
        moves: For each record with a lower commit number, the timestamps of the commits before and
            after the restart; see `Queue.note`.
    """
    new: list[int] = []
    for before, after in sorted(moves, key=lambda move: move[1]):
        if not any(before < epoch <= after for epoch in (*known, *new)):
            new.append(after)
    return new


def _facts(*, with_history: bool, epochs: Sequence[int]) -> dict[str, str]:
    history = "true" if with_history else "false"
    return {_KIND: "queue", _HISTORY: history, _EPOCHS: json.dumps(list(epochs))}


def object_row(entity: str | None, about: ObjectCue, step: int) -> dict[str, Any]:
    """Return the queue row for a reason to reread many records of an object.

    The row stands for the records whose ids begin with ``about.prefix``, or for all records of the
    object if the prefix is empty. If *entity* is None, the object is not known.
    """
    return {
        "entity_name": entity,
        "record_id": f"{about.prefix}*" if about.prefix else None,
        "reason": about.cue.reason,
        "change_type": about.cue.change_type,
        "commit_timestamp": about.cue.commit_timestamp,
        "since_seq": about.cue.ingest_seq,
        "step": step,
    }
