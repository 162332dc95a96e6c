"""The reread queue of a mirror, which contains only open entries.

An entry is a reason to read one or more records again from the org (`reads.Entry`). It is durable
before the row that it concerns is changed, and is removed only after a read that closes it has been
merged. So a crash can leave an extra entry, but never lose one. A step (tables/steps.py) changes
the table at most twice, with the version numbers 2 * step and 2 * step + 1. Callers decide
which entries to add; a read removes those that it closes (`reads.heals`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.rest.grants import Held
from sfpubsub.spark.mirror.absences import Loss, kept
from sfpubsub.spark.mirror.bounded import bounded
from sfpubsub.spark.mirror.reads import Entry, Read, heals
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.runtime.sql import sql_text
from sfpubsub.spark.tables.queue import MIRROR, QUEUE, QUEUE_NAME
from sfpubsub.spark.tables.records import Cue, Reason
from sfpubsub.spark.tables.target import Target, parquet_of

# `asked` is the step that added an entry not caused by an event, otherwise 0: see `Entry`.
# `added_at` only tells people how old an entry is; nothing is decided by it.
ENTRIES = pa.schema([*QUEUE, ("asked", pa.int64()), ("added_at", TIME)])

# Name of the stored fact that lists the gaps of the stream for which rereads were requested.
_GAPS = "gaps"

# Name of the stored fact about the channel's members.
_SELECTED = "selected"
# Names of the stored facts about the user's rights, and about rows deleted by absence, by object.
_RIGHTS, _LOSSES = "rights", "losses"


class MirrorQueue:
    """The reread queue of one mirror. Not thread-safe.

    The rows are cached, because no other writer changes the table. Reading even a small table
    takes half a second. Their number is bounded (bounded.py).

    Args:
        target: Location of the tables.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(self, target: Target, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._table = target.table(QUEUE_NAME)
        self._rows: list[dict[str, Any]] | None = None
        self._entries: dict[str, list[Entry]] | None = None

    def make(self) -> None:
        """Create the table if it does not exist."""
        if not self._table.exists():
            self._table.make(ENTRIES, {"kind": MIRROR, _GAPS: "[]"}, merged=True)
            self._rows = []

    def gaps(self) -> list[str]:
        """Return the names of the gaps for which rereads were requested."""
        return list(json.loads(self._table.facts()[_GAPS]))

    def keep_gaps(self, names: Sequence[str]) -> None:
        """Store the names of the gaps for which rereads were requested."""
        self._keep({_GAPS: json.dumps(list(names))})

    def selected(self) -> dict[str, str | None]:
        """Return what is known about the channel's members, by object; see `selection.compared`."""
        return dict(json.loads(self._table.facts().get(_SELECTED, "{}")))

    def keep_selected(self, known: Mapping[str, str | None]) -> None:
        """Store what is known about the channel's members, by object."""
        self._keep({_SELECTED: json.dumps(dict(known))})

    def rights(self) -> dict[str, Held]:
        """Return what is known about the user's right to see every record, by object."""
        found = json.loads(self._table.facts().get(_RIGHTS, "{}"))
        return {name: Held.from_json(each) for name, each in found.items()}

    def keep_rights(self, held: Mapping[str, Held], gaps: Sequence[str] = ()) -> None:
        """Store what is known about the user's right to see every record, by object.

        Args:
            held: What is known, of all objects.
            gaps: Names of gaps that an interruption of the right has caused. They need no reread of
                other objects (see `gaps`).
        """
        facts = {_RIGHTS: json.dumps({name: each.to_json() for name, each in held.items()})}
        if gaps:
            facts[_GAPS] = json.dumps(list(dict.fromkeys([*self.gaps(), *gaps])))
        self._keep(facts)

    def losses(self, entity: str) -> list[Loss]:
        """Return the rows of an object that were deleted by absence, or parked, by step."""
        found = json.loads(self._table.facts().get(_LOSSES, "{}"))
        return [Loss(*each) for each in found.get(entity, ())]

    def keep_loss(self, entity: str, loss: Loss) -> None:
        """Store the rows that a step deletes by absence, or parks, before it changes the rows.

        Losses that no longer count are removed.
        """
        found = json.loads(self._table.facts().get(_LOSSES, "{}"))
        left = [each for each in kept(self.losses(entity), loss.at) if each.step != loss.step]
        found[entity] = [[each.step, each.at, each.rows] for each in (*left, loss)]
        self._keep({_LOSSES: json.dumps(found)})

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
        self._table.delete(condition, 2 * step + 1)
        self._rows = left

    def _keep(self, changed: Mapping[str, str]) -> None:
        self._table.make(ENTRIES, {**self._table.facts(), **changed})

    def add(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Add the entries of a step, unless they were already added."""
        if not rows:
            return
        kept = sorted(
            bounded(rows, self._open()), key=lambda row: (row["since_seq"], row["record_id"] or "")
        )
        now = datetime.fromtimestamp(self._wall(), UTC)
        table = pa.Table.from_pylist([{**row, "added_at": now} for row in kept], ENTRIES)
        before, self._rows, self._entries = self._rows, None, None
        if self._table.append([parquet_of(table)], 2 * step) and before is not None:
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
            self._table.append([], 2 * step + 1)  # faster than searching the table
            return
        as_of = read.as_of  # below, the rule of `heals` as SQL
        condition = f"entity_name = {sql_text(entity)}"
        condition += f" AND since_seq <= {as_of.ingest_seq} AND asked <= {as_of.asked}"
        if ids is not None:
            condition += f" AND record_id IN ({', '.join(map(sql_text, sorted(ids)))})"
        self._rows = self._entries = None
        self._table.delete(condition, 2 * step + 1)
        self._rows = left

    def clear(self, entity: str, step: int) -> None:
        """Remove all entries of an object."""
        self._rows = self._entries = None
        self._table.delete(f"entity_name = {sql_text(entity)}", 2 * step + 1)

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
