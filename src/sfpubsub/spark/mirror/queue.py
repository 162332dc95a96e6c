"""The reread queue of a mirror, which contains only open entries.

An entry is a reason to read one or more records again from the org (`reads.Entry`). It is durable
before the row that it concerns is changed, and is removed only after a read that closes it has been
merged. So a crash can leave an extra entry, but never lose one. A step (tables/steps.py) changes
the table at most twice, with the version numbers 2 * step and 2 * step + 1. This module only stores
the queue: its callers decide which entries to add and remove.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sfpubsub.spark.mirror.reads import AsOf, Entry
from sfpubsub.spark.raw.frames import sql_text
from sfpubsub.spark.tables.queue import MIRROR, QUEUE, QUEUE_NAME
from sfpubsub.spark.tables.records import Cue, Reason
from sfpubsub.spark.tables.target import Target, parquet_of

# `asked` is the step that added an entry not caused by an event, otherwise 0: see `Entry`.
ENTRIES = pa.schema([*QUEUE, ("asked", pa.int64())])

# Name of the stored fact that lists the gaps of the stream for which rereads were requested.
_GAPS = "gaps"


class MirrorQueue:
    """The reread queue of one mirror. Not thread-safe.

    The rows are cached, because no other writer changes the table.
    """

    def __init__(self, target: Target) -> None:
        self._table = target.table(QUEUE_NAME)
        self._rows: list[dict[str, Any]] | None = None
        self._entries: dict[str, list[Entry]] | None = None

    def make(self) -> None:
        """Create the table if it does not exist."""
        if not self._table.exists():
            self._table.make(ENTRIES, {"kind": MIRROR, _GAPS: "[]"}, merged=True)

    def gaps(self) -> list[str]:
        """Return the names of the gaps for which rereads were requested."""
        return list(json.loads(self._table.facts()[_GAPS]))

    def keep_gaps(self, names: Sequence[str]) -> None:
        """Store the names of the gaps for which rereads were requested."""
        self._table.make(ENTRIES, {"kind": MIRROR, _GAPS: json.dumps(list(names))})

    def add(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Add the entries of a step, unless they were already added."""
        if rows:
            kept = sorted(rows, key=lambda row: (row["since_seq"], row["record_id"] or ""))
            self._rows = self._entries = None
            content = parquet_of(pa.Table.from_pylist([dict(row) for row in kept], ENTRIES))
            self._table.append([content], 2 * step)

    def remove(
        self, entity: str, healed: AsOf, step: int, record_ids: Iterable[str] | None = None
    ) -> None:
        """Remove the entries that a read has closed (`reads.heals`).

        Args:
            entity: The object.
            healed: The read's `AsOf`.
            step: Number of the step that merged the read's rows.
            record_ids: Records that were read; None for the whole object.
        """
        if not any(row["entity_name"] == entity for row in self._open()):
            self._table.append([], 2 * step + 1)  # faster than searching the table
            return
        condition = f"entity_name = {sql_text(entity)}"
        condition += f" AND since_seq <= {healed.ingest_seq} AND asked <= {healed.asked}"
        if record_ids is not None:
            ids = ", ".join(map(sql_text, record_ids))
            condition += f" AND record_id IN ({ids})" if ids else " AND false"
        self._rows = self._entries = None
        self._table.delete(condition, 2 * step + 1)

    def entries(self) -> dict[str, list[Entry]]:
        """Return all open entries by object, sorted by `Entry.asked` and `Cue.ingest_seq`."""
        if self._entries is None:
            found: dict[str, list[Entry]] = {}
            for row in self._open():
                found.setdefault(row["entity_name"], []).append(entry_of(row))
            self._entries = {
                entity: sorted(entries, key=lambda each: (each.asked, each.cue.ingest_seq))
                for entity, entries in found.items()
            }
        return self._entries

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
            self._rows = list(self._table.read().toArrow().to_pylist())
        return self._rows


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Convert a queue row to an entry."""
    reason = Reason(row["reason"])
    cue = Cue(reason, row["change_type"], row["commit_timestamp"], row["since_seq"])
    return Entry(row["record_id"], cue, row["asked"] or 0)


def entry_row(
    entity: str, record_id: str | None, cue: Cue, step: int, *, asked: bool = False
) -> dict[str, Any]:
    """Return a row of the reread queue.

    Args:
        entity: The object.
        record_id: The record or records that the entry concerns; see `Entry.record_id`.
        cue: Reason for the entry.
        step: Number of the step that adds the entry.
        asked: Whether the reason for the entry is something other than an event, such as a
            request to reread; see `Entry.asked`.
    """
    return {
        "entity_name": entity,
        "record_id": record_id,
        "reason": str(cue.reason),
        "change_type": cue.change_type,
        "commit_timestamp": cue.commit_timestamp,
        "since_seq": cue.ingest_seq,
        "step": step,
        "asked": step if asked else 0,
    }
