"""Tests of the record of rows that are in the raw table and not yet in a mirror's tables."""

from __future__ import annotations

import random

from sfpubsub.spark.mirror import backlog
from sfpubsub.spark.mirror.backlog import Backlog

ACCOUNT, CONTACT = "AccountChangeEvent", "ContactChangeEvent"


def test_oldest_is_the_first_row_that_is_not_applied():
    """For any writes and steps, the oldest time is that of the first row not applied."""
    choose = random.Random(5)
    record, rows, applied, seq = Backlog(), [], -1, -1
    for now in range(2000):
        if choose.random() < 0.6:
            name = choose.choice([ACCOUNT, CONTACT])
            first, seq = seq + 1, seq + choose.randint(1, 5)
            rows.append((name, first, seq, float(now)))
            record.add(name, seq, float(now))
        else:  # a step ends where a batch ends
            ends = [end for _, _, end, _ in rows if end > applied]
            applied = choose.choice(ends) if ends else applied
            record.applied(applied)
        for name in (ACCOUNT, CONTACT):
            left = [at for row, _, end, at in rows if row == name and end > applied]
            assert record.oldest(name) == (left[0] if left else None)


def test_rows_of_an_unknown_type_count_for_every_object():
    """Rows that could not be assigned to an object make every object late."""
    record = Backlog()
    record.add("", 5, 100.0)
    record.add(ACCOUNT, 7, 50.0)
    assert (record.oldest(ACCOUNT), record.oldest(CONTACT)) == (50.0, 100.0)


def test_a_write_reported_after_its_rows_were_applied_leaves_nothing():
    """A step may apply rows before the writer has reported them."""
    record = Backlog()
    record.applied(9)
    record.add(ACCOUNT, 9, 100.0)
    assert record.oldest(ACCOUNT) is None


def test_a_long_pause_does_not_fill_the_memory(monkeypatch):
    """Beyond the limit, writes share a mark: the oldest time stays exact until they are applied."""
    monkeypatch.setattr(backlog, "_MOST", 3)
    record = Backlog()
    for number in range(100):
        record.add(ACCOUNT, number, float(number))
    assert record.oldest(ACCOUNT) == 0.0
    record.applied(1)
    assert record.oldest(ACCOUNT) == 2.0
    record.applied(98)
    assert record.oldest(ACCOUNT) == 2.0  # the shared mark: late rather than never
    record.applied(99)
    assert record.oldest(ACCOUNT) is None
