"""Bound the number of entries of an object in the reread queue.

The driver has an object in memory for each entry. If there were more than `MOST_ENTRIES` for an
object, one entry about all its records stands for the new ones: it is closed only by a read that
would close each of them. So many records would be read as a whole anyway (planning.py).

Entries about absence are not replaced in this way, because a read of the whole object decides no
absence. Beyond `MOST_ABSENT`, a missing record has none: its row stays, marked, and the next sweep
finds it again. So many absences are parked (absences.py) until a user has confirmed them.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.reads import Entry

# Entries of one object in memory: about 100 MB.
MOST_ENTRIES = 100_000

# Entries of one object about records that a read did not return, or that are parked.
MOST_ABSENT = 50_000

_ABSENT = str(Reason.ABSENT)
_ABOUT_ABSENCE = tuple(str(each) for each in Reason if each.is_about_absence)


def entry_rows(
    entity: str, found: pa.Table, step: int, *, asked: bool = False
) -> list[dict[str, Any]]:
    """Return rows of the reread queue: one row instead of more than `MOST_ENTRIES`, and no more
    than `MOST_ABSENT` about records that a read did not return.

    Args:
        entity: The object.
        found: Table with the columns ``record_id``, ``reason``, ``change_type``,
            ``commit_timestamp`` and ``since_seq`` of the queue.
        step: Number of the step that adds the entries.
        asked: See `entry_row`.
    """
    is_absence = pc.is_in(found["reason"], value_set=pa.array(_ABOUT_ABSENCE))
    absences, others = found.filter(is_absence), found.filter(pc.invert(is_absence))
    is_first = pc.equal(absences["reason"], _ABSENT)
    kept = [absences.filter(pc.invert(is_first)), absences.filter(is_first)[:MOST_ABSENT]]
    rows: list[dict[str, Any]] = []
    if len(others) <= MOST_ENTRIES:
        kept.append(others)
    else:
        reasons = [Reason(each) for each in pc.unique(others["reason"]).to_pylist()]
        rows.append(_whole(entity, reasons, pc.max(others["since_seq"]).as_py(), step, asked=asked))
    return rows + [
        {**row, "entity_name": entity, "step": step, "asked": step if asked else 0}
        for row in pa.concat_tables(kept).to_pylist()
    ]


def bounded(
    rows: Sequence[Mapping[str, Any]], open_rows: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the rows to add to the queue instead of *rows*, which belong to one step.

    Args:
        rows: The new rows.
        open_rows: The rows that the queue already has.
    """
    known: Counter[str] = Counter()
    missing: dict[str, set[str]] = {}  # ids of records with an entry about their absence
    for row in open_rows:
        if row["reason"] in _ABOUT_ABSENCE:
            missing.setdefault(row["entity_name"], set()).add(row["record_id"])
        else:
            known[row["entity_name"]] += 1
    new: dict[str, list[Mapping[str, Any]]] = {}
    found: list[Mapping[str, Any]] = []
    for row in rows:
        if row["reason"] not in _ABOUT_ABSENCE:
            new.setdefault(row["entity_name"], []).append(row)
            continue
        ids = missing.setdefault(row["entity_name"], set())
        if row["reason"] != _ABSENT or row["record_id"] in ids or len(ids) < MOST_ABSENT:
            ids.add(row["record_id"])
            found.append(row)
    for entity, own in new.items():
        if known[entity] + len(own) <= MOST_ENTRIES:
            found += own
            continue
        reasons = [Reason(row["reason"]) for row in own]
        seq, asked = (max(row[name] for row in own) for name in ("since_seq", "asked"))
        found.append(_whole(entity, reasons, seq, own[0]["step"], asked=asked > 0))
    return found


def _whole(
    entity: str, reasons: Sequence[Reason], since_seq: int, step: int, *, asked: bool
) -> dict[str, Any]:
    """Return the row about all records that stands for entries with these reasons."""
    doubtful = [each for each in reasons if Entry(None, Cue(each, None, None, 0)).casts_doubt]
    cue = Cue((doubtful or list(reasons))[0], None, None, since_seq)
    return entry_row(entity, None, cue, step, asked=asked)


def entry_row(
    entity: str | None, record_id: str | None, cue: Cue, step: int, *, asked: bool = False
) -> dict[str, Any]:
    """Return a row of the reread queue.

    Args:
        entity: The object; None if it is not known.
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
