"""Tests that the reread queue is bounded, and that nothing queued is lost by that."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from sfpubsub.spark.records.bounded import (
    MOST_ABSENT,
    MOST_ENTRIES,
    bounded,
    entry_row,
    entry_rows,
)
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.queue import entry_of
from sfpubsub.spark.records.reads import AsOf, Read, heals

AT = datetime(2026, 11, 23, tzinfo=UTC)


def table(count: int, reason: Reason = Reason.SWEEP) -> pa.Table:
    """Return *count* entries as the merge rule returns them, the last one for a gap."""
    return pa.table(
        {
            "record_id": [f"001{n}" for n in range(count)],
            "reason": [str(reason)] * (count - 1) + ["gap"],
            "change_type": ["UPDATE"] * count,
            "commit_timestamp": [AT] * count,
            "since_seq": list(range(count)),
        }
    )


def test_few_entries_are_kept_one_by_one():
    """Up to 100,000 entries of an object are entries about one record each."""
    rows = entry_rows("Account", table(3), 7)
    assert [row["record_id"] for row in rows] == ["0010", "0011", "0012"]
    assert rows[0] == entry_row("Account", "0010", Cue(Reason.SWEEP, "UPDATE", AT, 0), 7)
    assert entry_rows("Account", table(1), 7, asked=True)[0]["asked"] == 7


def test_one_entry_stands_for_more_than_a_hundred_thousand():
    """Beyond that, one entry about all records stands for them: it is closed only by a read that
    closes each of them, and it casts doubt on rows if one of them does.
    """
    (row,) = entry_rows("Account", table(MOST_ENTRIES + 1), 7, asked=True)
    assert (row["record_id"], row["reason"]) == (None, "gap")
    entry = entry_of(row)
    assert heals(Read(AsOf(MOST_ENTRIES, 7), None, None), entry)
    assert not heals(Read(AsOf(MOST_ENTRIES - 1, 7), None, None), entry)
    assert not heals(Read(AsOf(MOST_ENTRIES, 6), None, None), entry)


def test_missing_records_are_never_replaced_by_one_entry():
    """A read of the whole object decides no absence, so it must not stand for entries about it: the
    first 50,000 are kept, and those of a later read of the same records too. What is parked or
    confirmed keeps all of its entries.
    """
    found = table(MOST_ENTRIES + 2, Reason.ABSENT).slice(0, MOST_ENTRIES + 1)
    rows = entry_rows("Account", found, 7, asked=True)
    assert (len(rows), {row["reason"] for row in rows}) == (MOST_ABSENT, {"absent"})
    again = [{**row, "step": 8} for row in rows]
    assert bounded(again, rows) == again
    cue = Cue(Reason.ABSENT, None, None, 1)
    assert bounded([entry_row("Account", "001x", cue, 8)], rows) == []
    parked = [{**row, "reason": reason} for row in rows for reason in ("parked", "confirmed")]
    assert bounded(parked, rows) == parked
    one = entry_row("Account", "001x", Cue(Reason.GAP, "UPDATE", AT, 1), 8)
    assert bounded([one], parked) == [one], "an entry about a change was replaced"


def test_queue_stays_bounded_whatever_is_added():
    """New entries that would make an object's part of the queue too long become one entry. Those of
    other objects are kept.
    """
    queue = entry_rows("Account", table(MOST_ENTRIES - 1), 1)
    cue = Cue(Reason.LATE, "UPDATE", AT, 10**6)
    new = [entry_row("Account", "001x", cue, 2), entry_row("Contact", "003x", cue, 2)]
    assert bounded(new, queue) == new
    queue += new[:1]
    for step in range(3, 6):
        seq = 10**6 + step
        later = [
            entry_row("Account", "001y", Cue(Reason.ASKED, None, None, seq), step, asked=True),
            entry_row("Account", "001z", Cue(Reason.GAP, "UPDATE", AT, seq - 1), step),
            new[1],
        ]
        whole, other = bounded(later, queue)
        assert other == new[1]
        assert (whole["record_id"], whole["reason"]) == (None, "gap")
        assert (whole["since_seq"], whole["asked"]) == (seq, step)
        queue.append(dict(whole))
    assert len(queue) == MOST_ENTRIES + 3
