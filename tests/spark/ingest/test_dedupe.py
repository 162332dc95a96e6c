"""Tests of classifying events as new, duplicate, re-encoded or conflicting, with a dictionary as
the window of dedupe keys. A mark is a number that the window stores with each key: the hour of the
write and a hash of the event's schema, topic and payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.spark.ingest.dedupe import KEPT, Conflict, Marker, Span, Verdict, judge, merged
from sfpubsub.spark.ingest.key_window import hour_of
from sfpubsub.spark.raw.table import StoredRow
from tests.spark.ingest.raw_rows import Event, key, rows_of
from tests.spark.sample_events import NOW

HOUR = 3600.0
LENGTH = 73 * HOUR


class World:
    """A window of dedupe keys and a table of rows, which records every look-up in the table."""

    def __init__(self) -> None:
        self.window: dict[bytes, int] = {}
        self.table: dict[bytes, tuple[StoredRow, float]] = {}
        self.asked: list[tuple[set[bytes], list[Span]]] = []
        self.marker = Marker()

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, int]:
        return {k: self.window[k] for k in keys if k in self.window}

    def oldest(self, now: float) -> float:
        return now - LENGTH

    def look_up(self, keys: Sequence[bytes], spans: Sequence[Span]) -> Mapping[bytes, StoredRow]:
        self.asked.append((set(keys), list(spans)))
        return {
            k: self.table[k][0]
            for k in keys
            if k in self.table and any(a <= self.table[k][1] <= b for a, b in spans)
        }

    def store(self, rows: pa.Table, at: float = NOW, *, known: str = "marked") -> None:
        """Add rows to the table, as if they had been written at the time *at*.

        *known* says what the window contains for them: their marks (`marked`), only the hours of
        their writes (`unmarked`), or nothing (`no`).
        """
        for row, mark in zip(rows.to_pylist(), self.marker.marks(rows, at), strict=True):
            stored = StoredRow(**{name: row[name] for name in StoredRow.COLUMNS})
            self.table[stored.dedupe_key] = stored, at
            if known == "marked":
                self.window[stored.dedupe_key] = mark
            elif known == "unmarked":
                self.window[stored.dedupe_key] = hour_of(at)

    def judge(self, rows: pa.Table, now: float = NOW, *, is_live: bool = True) -> Verdict:
        marks = self.marker.marks(rows, now)
        return judge(rows, marks, self, self.look_up, now=now, is_live=is_live)


@pytest.fixture
def world() -> World:
    return World()


def test_recent_new_events_cost_no_look_up(world: World):
    """New events whose times are within the window are written without a look-up in the table."""
    assert world.judge(rows_of(Event(1), Event(2))) == Verdict([0, 1])
    assert not world.asked


def test_redelivered_event_costs_no_look_up(world: World):
    """The event's mark in the window shows that it was redelivered unchanged, so the table is not
    queried.
    """
    world.store(rows_of(Event(1)))
    assert world.judge(rows_of(Event(1), Event(2), Event(2))) == Verdict([1])
    assert not world.asked


def test_different_payload_with_the_same_schema_and_topic_is_a_conflict(world: World):
    """An event whose payload differs from that of the stored row is reported with that row.

    The row is looked up in the table, because a different mark alone is no proof.
    """
    world.store(rows_of(Event(7), Event(1)))
    verdict = world.judge(rows_of(Event(2), Event(1, b"b")))
    assert verdict.new == [0]
    assert verdict.conflicts == [Conflict(1, world.table[key(1)][0])]
    assert verdict.conflicts[0].stored.replay_id == b"1"
    assert verdict.reencoded == []
    assert len(world.asked) == 1


@pytest.mark.parametrize("other", [Event(1, b"b", schema="two"), Event(1, b"b", topic="/event/B")])
def test_different_payload_with_another_schema_or_topic_is_reencoded(world: World, other):
    """The event is counted as re-encoded without a look-up, because a channel with enriched events
    delivers each event in two encodings.
    """
    world.store(rows_of(Event(1)))
    assert world.judge(rows_of(other)) == Verdict([], reencoded=[0])
    assert not world.asked


def test_same_payload_on_another_topic_is_a_plain_duplicate(world: World):
    """An event that differs from a stored one only in its topic is not counted as re-encoded."""
    world.store(rows_of(Event(1)))
    assert world.judge(rows_of(Event(1, topic="/event/B"))) == Verdict([])


def test_conflicts_within_a_write_are_found(world: World):
    """If several events in a write have the same key, the first is new.

    The others are compared with it.
    """
    rows = rows_of(Event(1), Event(1), Event(1, b"b"), Event(1, b"c", schema="two"))
    verdict = world.judge(rows)
    assert verdict.new == [0]
    assert [(c.index, c.stored.replay_id) for c in verdict.conflicts] == [(2, b"0")]
    assert verdict.reencoded == [3]


def test_key_without_a_mark_is_looked_up_near_its_hour(world: World):
    """A key that was read from the table, and so has no mark, is looked up in the table.

    The look-up is limited to a time span around the hour at which its row was written.
    """
    written = NOW - 20 * HOUR
    world.store(rows_of(Event(1), Event(2)), written, known="unmarked")
    verdict = world.judge(rows_of(Event(1), Event(2, b"b"), Event(3)))
    assert verdict.new == [2]
    assert [conflict.index for conflict in verdict.conflicts] == [1]
    ((keys, spans),) = world.asked
    assert keys == {key(1), key(2)}
    # Keys are read from the table by whole days.
    assert all(written - 25 * HOUR < a <= written <= b < written + 3 * HOUR for a, b in spans)


def test_only_events_that_may_be_older_than_the_window_are_looked_up(world: World):
    """An unknown event is looked up in the table if it may have been written before the window: if
    it happened within a day after the window's start or earlier, or has no time.

    Other events in the same write are judged by the window alone.
    """
    old, unknown = Event(1, time=NOW - 80 * HOUR), Event(2, time=None)
    ahead = Event(5, time=NOW - 50 * HOUR)  # set 20 h ahead by its publisher
    world.store(rows_of(old, ahead), NOW - 74 * HOUR, known="no")
    rows = rows_of(old, unknown, Event(3), Event(4, time=NOW - 48 * HOUR), ahead)
    assert world.judge(rows) == Verdict([1, 2, 3])
    ((keys, _),) = world.asked
    assert keys == {key(1), key(2), key(5)}


@pytest.mark.parametrize("time", [None, NOW - 80 * HOUR, NOW - 1000 * 24 * HOUR, -62_135_596_800.0])
def test_a_write_makes_one_look_up_in_a_limited_time_span(world: World, time: float | None):
    """A write makes a single look-up, even if its events have no time or a very old one.

    The time span begins a day before the oldest event, but at the earliest a day before the
    service's retention period begins.
    """
    world.judge(rows_of(Event(1, time=time), Event(2, time=time)))
    ((_, spans),) = world.asked
    ((first, last),) = spans
    assert last == NOW - LENGTH
    assert first >= NOW - KEPT - 24 * HOUR
    if time == NOW - 80 * HOUR:
        assert first == time - 24 * HOUR


def test_events_that_are_not_live_are_looked_up_at_any_age(world: World):
    """Events from the quarantine may have been written long ago, so their look-up is not limited to
    the service's retention.
    """
    old = Event(1, time=NOW - 90 * 24 * HOUR)
    world.store(rows_of(old), NOW - 20 * 24 * HOUR, known="no")
    assert world.judge(rows_of(old), is_live=False) == Verdict([])
    world.judge(rows_of(Event(2, time=None)), is_live=False)
    assert world.asked[-1][1] == [(0.0, NOW - LENGTH)]


def test_marks_depend_on_payload_schema_and_topic():
    """Events that differ in payload, schema or topic have different 64-bit marks.

    Each mark contains the hour, but none equals the bare hour, which marks a row whose payload is
    unknown.
    """
    marker = Marker()
    variants = [Event(1, p, s, t) for p in (b"", b"a") for s in ("1", "2") for t in ("x", "y")]
    marks = marker.marks(rows_of(*variants), NOW)
    assert len(set(marks)) == len(variants)
    assert all(mark != hour_of(NOW) for mark in marks)
    assert all(mark & 0xFFFFF == hour_of(NOW) for mark in marks)
    assert all(mark < 1 << 64 for mark in marks)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=12))
def test_merged_spans_are_disjoint_and_cover_the_same_times(pairs: list[tuple[int, int]]):
    """Overlapping time spans are merged into disjoint ones that cover the same times.

    A look-up with one span per event would be too long.
    """
    spans = [(float(start), float(start + length)) for start, length in pairs]
    found = merged(spans)
    points = [n / 2 for n in range(80)]
    for point in points:
        assert any(a <= point <= b for a, b in found) == any(a <= point <= b for a, b in spans)
    assert all(one[1] < two[0] for one, two in pairwise(found))
