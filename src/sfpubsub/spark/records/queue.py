"""The queue of records and objects to read from the org again: the table `_reread`.

An entry is a reason to read one or more records again (`reads.Entry`). It is durable before the row
that it concerns is changed, so a crash can leave an extra entry, but never lose one. The table
exists if the target has current tables.

A mirror's queue has only open entries: they are removed after a read that closes them has been
merged. Otherwise nothing is removed, except by a rebuild; a program that reads the records works
through the queue, and stores its own progress. Other modules decide which entries to add.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.formats.target import Target, parquet_of
from sfpubsub.spark.records.bounded import bounded
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.reads import Entry, Read, heals
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.runtime.sql import sql_text

_log = logging.getLogger("sfpubsub.spark")

QUEUE_NAME = "_reread"

ENTRIES = pa.schema(
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
        # The step that added an entry not caused by an event, otherwise 0: see `Entry`.
        ("asked", pa.int64()),
        # It only tells people how old an entry is; nothing is decided by it.
        ("added_at", TIME),
    ]
)

# Facts stored with the table: its kind, whether there are history tables, and when commit numbers
# restarted, in milliseconds since the epoch.
_KIND, _HISTORY, _EPOCHS = "kind", "history", "number_epochs"

# The kind of a mirror's queue, and of any other.
_MIRROR, _OTHER = "mirror", "queue"

# A step first adds entries to the queue, and then removes others.
_ADDED = 0


class RereadQueue:
    """The reread queue of one target. Not thread-safe.

    The rows of a mirror's queue are cached, because no other writer changes the table. Reading even
    a small table takes half a second. Their number is bounded (bounded.py).

    Args:
        target: Location of the tables.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(self, target: Target, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._table = target.table(QUEUE_NAME)
        self._rows: list[dict[str, Any]] | None = None
        self._entries: dict[str, list[Entry]] | None = None
        self._of_mirror: bool | None = None

    def exists(self) -> bool:
        """Return whether the queue exists, that is, whether the target has current tables."""
        return self._table.exists()

    def is_of_mirror(self) -> bool:
        """Return whether the queue belongs to a mirror."""
        if self._of_mirror is None and self._table.exists():
            self._of_mirror = self._table.facts().get(_KIND) == _MIRROR
        return bool(self._of_mirror)

    def has_history(self) -> bool:
        """Return whether the target also has history tables."""
        return self._table.facts().get(_HISTORY) == "true"

    def make(self, *, of_mirror: bool, with_history: bool) -> None:
        """Create the table, or reset its facts, so that no restarts of numbers are known."""
        is_new = not self._table.exists()
        facts = {
            _KIND: _MIRROR if of_mirror else _OTHER,
            _HISTORY: "true" if with_history else "false",
            _EPOCHS: "[]",
        }
        self._table.make(ENTRIES, facts, merged=True)
        self._of_mirror = of_mirror
        if is_new and of_mirror:
            self._rows = []

    def fact(self, name: str, default: str) -> Any:
        """Return the JSON value of a fact stored with the queue, or that of the JSON *default*."""
        return json.loads(self._table.facts().get(name, default))

    def keep(self, changed: Mapping[str, Any]) -> None:
        """Store facts with the queue as JSON, without changing others."""
        texts = {name: json.dumps(value) for name, value in changed.items()}
        self._table.make(ENTRIES, {**self._table.facts(), **texts})

    def has_added(self, step: int) -> bool:
        """Return whether the entries of a step have been added, if it had any."""
        return self._table.has(step, _ADDED)

    def add(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Add the entries of a step, unless they were already added."""
        if not rows:
            return
        if self.is_of_mirror():
            rows = bounded(rows, self._open())
        kept = sorted(rows, key=lambda row: (row["since_seq"], row["record_id"] or ""))
        now = datetime.fromtimestamp(self._wall(), UTC)
        table = pa.Table.from_pylist([{**row, "added_at": now} for row in kept], ENTRIES)
        before, self._rows, self._entries = self._rows, None, None
        if self._table.append([parquet_of(table)], step, _ADDED) and before is not None:
            self._rows = before + table.to_pylist()

    def remove(
        self, entity: str, read: Read, step: int, record_ids: Iterable[str] | None = None
    ) -> None:
        """Remove the entries that a read has closed (`reads.heals`).

        Args:
            entity: The object.
            read: The read.
            step: Number of the step that merged the read's rows.
            record_ids: Records that were read; None for the whole object.
        """
        ids = None if record_ids is None else frozenset(record_ids)
        left = [row for row in self._open() if not _is_closed(row, entity, read, ids)]
        if len(left) == len(self._open()):
            self._table.append([], step)  # faster than searching the table
            return
        as_of = read.as_of  # below, the rule of `heals` as SQL
        condition = f"entity_name = {sql_text(entity)}"
        condition += f" AND since_seq <= {as_of.ingest_seq} AND asked <= {as_of.asked}"
        if ids is not None:
            condition += f" AND record_id IN ({', '.join(map(sql_text, sorted(ids)))})"
        self._rows = self._entries = None
        self._table.delete(condition, step)
        self._rows = left

    def clear(self, step: int, entity: str | None = None) -> None:
        """Remove all entries, or those of an object, as part of a step."""
        self._rows = self._entries = None
        condition = "true" if entity is None else f"entity_name = {sql_text(entity)}"
        self._table.delete(condition, step)

    def parked(self, entity: str) -> list[str]:
        """Return the ids of the records of an object whose deletion waits for a confirmation."""
        reason = str(Reason.PARKED)
        return sorted(
            {
                row["record_id"]
                for row in self._open()
                if row["entity_name"] == entity and row["reason"] == reason and row["record_id"]
            }
        )

    def forget_absences(self, entity: str, step: int) -> None:
        """Remove the entries about absences that earlier reads found, as part of a step."""
        reasons = [str(each) for each in Reason if each.is_about_absence]
        left = [
            row
            for row in self._open()
            if row["entity_name"] != entity or row["reason"] not in reasons
        ]
        if len(left) == len(self._open()):
            return
        condition = f"entity_name = {sql_text(entity)}"
        condition += f" AND reason IN ({', '.join(map(sql_text, reasons))})"
        self._rows = self._entries = None
        self._table.delete(condition, step)
        self._rows = left

    def entries(self) -> dict[str, list[Entry]]:
        """Return all open entries by object, in the order in which they were added.

        Those of parked records are left out: they wait for a user, not for a read.
        """
        if self._entries is None:
            found: dict[str, list[Entry]] = {}
            for row in sorted(self._open(), key=lambda row: (row["step"], row["since_seq"])):
                if row["reason"] != str(Reason.PARKED):
                    found.setdefault(row["entity_name"], []).append(entry_of(row))
            self._entries = found
        return self._entries

    def oldest(self) -> dict[str, float]:
        """Return when the oldest open entry of each object was added, in seconds since the epoch.

        Objects without entries are left out, and so are the entries that `entries` leaves out.
        """
        found: dict[str, float] = {}
        for row in self._open():
            if row["reason"] == str(Reason.PARKED):
                continue
            name, added = row["entity_name"], row["added_at"].timestamp()
            found[name] = min(found.get(name, added), added)
        return found

    def of(self, entity: str, before: int) -> list[dict[str, Any]]:
        """Return the rows of an object's open entries.

        Args:
            entity: The object.
            before: Number of a step. Only entries of earlier steps are returned.
        """
        return [
            row for row in self._open() if row["entity_name"] == entity and row["step"] < before
        ]

    def _open(self) -> list[dict[str, Any]]:
        if self._rows is None:
            self._rows = list(to_arrow(self._table.read()).to_pylist())
        return self._rows

    def note(self, moves: Iterable[tuple[int, int]]) -> None:
        """Detect restarts of the commit numbers; record and log those not recorded before.

        Commit numbers restart when the org is migrated to another instance.

        Args:
            moves: Pairs of commit timestamps, in milliseconds since the epoch: a record's last
                commit before a restart, and its first one afterwards.
        """
        known: list[int] = self.fact(_EPOCHS, "[]")
        new = new_epochs(known, moves)
        if new:
            self.keep({_EPOCHS: [*known, *new]})
        for epoch in new:
            _log.warning(
                "commit numbers restarted at commit timestamp %d, because the org was migrated to "
                "another instance; changes are ordered by time, so no action is needed",
                epoch,
            )


def _is_closed(
    row: Mapping[str, Any], entity: str, read: Read, ids: AbstractSet[str] | None
) -> bool:
    if row["entity_name"] != entity or (ids is not None and row["record_id"] not in ids):
        return False
    return heals(read, entry_of(row))


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Convert a queue row to an entry."""
    reason = Reason(row["reason"])
    cue = Cue(reason, row["change_type"], row["commit_timestamp"], row["since_seq"])
    return Entry(row["record_id"], cue, row["asked"] or 0)


def new_epochs(known: Sequence[int], moves: Iterable[tuple[int, int]]) -> list[int]:
    """Return the restarts of the commit numbers that are not recorded yet, oldest first.

    A restart shows when a commit of a record has a lower number than the record's previous commit.
    It is recorded as the timestamp of the earliest commit that showed it, in milliseconds since
    the epoch. Other records show the same restart in their own next commits, possibly much later.
    So a pair in *moves* is a new restart only if no recorded restart is between its timestamps.

    Args:
        known: The recorded restarts.
        moves: For each record with a lower commit number, the timestamps of the commits before and
            after the restart; see `RereadQueue.note`.
    """
    new: list[int] = []
    for before, after in sorted(moves, key=lambda move: move[1]):
        if not any(before < epoch <= after for epoch in (*known, *new)):
            new.append(after)
    return new
