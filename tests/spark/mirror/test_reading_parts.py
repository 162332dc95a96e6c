"""Tests of the parts of the mirror job that need no Spark: conversion of values, choice of the next
read, and the budget of requests.
"""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror import values
from sfpubsub.spark.mirror.budget import DAY, Budget
from sfpubsub.spark.mirror.deadlines import Deadlines, Now
from sfpubsub.spark.mirror.due_reads import MOST_IDS, Periodic, Wanted, wanted_reads
from sfpubsub.spark.mirror.log import FACTS, Marker, id_range
from sfpubsub.spark.mirror.news import News
from sfpubsub.spark.mirror.notes import Ask, Merge, Sweep, note_of
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.mirror.status import state_of
from sfpubsub.spark.mirror.stream import MirrorStream
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.described import Column
from sfpubsub.spark.records.fold import Cue, Fields, Reason
from sfpubsub.spark.records.reads import AsOf, Entry, Read
from sfpubsub.spark.records.rows import (
    Merging,
    read_from,
    row_without,
    rows_without,
    struct_of,
)

ADDRESS = pa.struct([("City", pa.string()), ("Latitude", pa.decimal128(18, 3))])
COLUMNS = Columns(
    "Account",
    (
        Column("Name", pa.string(), "Name", "", ("Name",)),
        Column("Price__c", pa.decimal128(18, 2), "Price__c", "", ("Price__c",)),
        Column("Count__c", pa.int64(), "Count__c", "", ("Count__c",)),
        Column("Is__c", pa.bool_(), "Is__c", "", ("Is__c",)),
        Column("Day__c", pa.date32(), "Day__c", "", ("Day__c",)),
        Column("At__c", TIME, "At__c", "", ("At__c",)),
        Column("SiteAddress", ADDRESS, "SiteAddress", "", ("SiteCity", "SiteLat"), ADDRESS.names),
        Column("Gone__c", pa.string(), "Gone__c", "", described=False),
    ),
)
AT = datetime(2026, 11, 22, 5, 12, 45, tzinfo=UTC)
ROW = {
    "record_id": "001000000000001AAA",
    "Name": 'a "b",\nc',
    "Price__c": Decimal("1.01"),
    "Count__c": 12,
    "Is__c": True,
    "Day__c": date(2026, 11, 22),
    "At__c": AT,
    "SiteAddress": {"City": None, "Latitude": Decimal("0.125")},
    "Gone__c": None,
    "_unfit": False,
    "_stamp": AT,
}
EMPTY = dict.fromkeys(ROW) | {"record_id": "001000000000002AAA", "Is__c": False, "_unfit": False}


def test_json_and_csv_values_become_equal_rows():
    """JSON from REST and CSV from Bulk become equal rows with the columns' types, and the stamp.

    This includes nulls, quotes, line ends, surplus decimal digits and parts of compound fields.
    """
    rows = [
        {"Id": "001000000000001AAA", "Name": 'a "b",\nc', "Price__c": Decimal("1.005"),
         "Count__c": 12, "Is__c": True, "Day__c": "2026-11-22",
         "At__c": "2026-11-22T05:12:45.000+0000", "SiteCity": None, "SiteLat": Decimal("0.125"),
         "SystemModstamp": "2026-11-22T05:12:45.000+0000"},
        {"Id": "001000000000002AAA", "Is__c": False, "Name": ""},
    ]  # fmt: skip
    assert values.of_json(COLUMNS, rows).to_pylist() == [ROW, EMPTY]
    names = (*COLUMNS.selected, "SystemModstamp")
    text = (
        '"001000000000001AAA","a ""b"",\nc","1.005","12","true","2026-11-22",'
        '"2026-11-22T05:12:45.000Z","","1.25E-1","2026-11-22T05:12:45.000Z"\n'
        '"001000000000002AAA","","","","false","","","","",""\n'
    )
    header = ",".join(f'"{name}"' for name in names) + "\n"
    for has_header in (True, False):
        file = io.BytesIO(((header if has_header else "") + text).encode())
        blocks = list(values.of_csv(COLUMNS, file, names, has_header=has_header))
        assert [row for block, _ in blocks for row in block.to_pylist()] == [ROW, EMPTY]


def test_column_that_a_read_did_not_select_is_null():
    """A column that a read did not select, such as one added after it began, is null in the read's
    rows.

    Selected fields that are not columns, such as `IsDeleted`, are returned separately.
    """
    file = io.BytesIO(b'"001000000000001AAA","x","true"\n')
    names = ("Id", "Name", "IsDeleted")
    ((rows, texts),) = values.of_csv(COLUMNS, file, names, has_header=False)
    assert rows.to_pylist() == [
        EMPTY | {"record_id": "001000000000001AAA", "Name": "x", "Is__c": None}
    ]
    assert values.flags_of(texts["IsDeleted"], 1).to_pylist() == [True]
    assert not list(values.of_csv(COLUMNS, io.BytesIO(), names, has_header=False))


NUMBERS = [
    ("1.005", "1.01"),
    ("-1.005", "-1.01"),
    ("0.0033333333333333335", "0.00"),
    ("1234567.0049999999999999999999", "1234567.00"),
    ("9999999999999999.994", "9999999999999999.99"),
    ("1E-400", "0.00"),
    ("-2.5E+3", "-2500.00"),
    ("9999999999999999.995", None),
    ("1E+400", None),
    ("NaN", None),
    ("Infinity", None),
    ("twelve", None),
]


@pytest.mark.parametrize(("text", "wanted"), NUMBERS)
def test_numbers_of_any_length_are_rounded_half_away_from_zero(text: str, wanted: str | None):
    """A number is rounded to the scale of its column, however many decimal places it has, alone or
    beside others. One that is not a number, or has too many digits before the point, does not fit.
    """
    number = None if wanted is None else Decimal(wanted)
    assert values.rounded(text, pa.decimal128(18, 2)) == number
    given = [text, "1.00", "0.0033333333333333335"]
    rows = [{"Id": f"00100000000000{n}AAA", "Price__c": each} for n, each in enumerate(given)]
    found = values.of_json(COLUMNS, rows)
    assert found["Price__c"].to_pylist() == [number, Decimal("1.00"), Decimal("0.00")]
    assert found["_unfit"].to_pylist() == [wanted is None, False, False]
    file = io.BytesIO("".join(f'"{row["Id"]}","{row["Price__c"]}"\n' for row in rows).encode())
    ((block, _),) = values.of_csv(COLUMNS, file, ["Id", "Price__c"], has_header=False)
    assert block.equals(found.select(block.column_names))


def test_value_that_does_not_fit_is_null_and_its_row_is_flagged(caplog: pytest.LogCaptureFixture):
    """A value that does not fit its column becomes null and flags its row; the other rows and
    columns keep their values. The first record of each object's field is logged, without the value,
    and so is the first whose number was rounded.
    """
    ids = [f"00100000000000{n}AAA" for n in range(4)]
    given = [
        {"Id": ids[0], "Count__c": 1, "Price__c": Decimal("0.125")},
        {"Id": ids[1], "Count__c": "secret", "Day__c": "10000-01-01", "At__c": "0000-01-01"},
        {"Id": ids[2], "Count__c": "secret", "Name": "x", "Price__c": Decimal("0.375")},
        {"Id": ids[3], "SiteLat": "far", "SiteCity": "Rome", "Day__c": "2026-11-22"},
    ]
    findings = values.Findings()
    rows = values.of_json(COLUMNS, given, findings).to_pylist()
    assert [row["_unfit"] for row in rows] == [False, True, True, True]
    assert [row["Count__c"] for row in rows] == [1, None, None, None]
    assert [row["Day__c"] for row in rows] == [None, None, None, date(2026, 11, 22)]
    assert rows[2]["Name"] == "x"
    assert rows[3]["SiteAddress"] == {"City": "Rome", "Latitude": None}
    said = [each.partition(" has more")[0].partition(" does not")[0] for each in caplog.messages]
    assert sorted(said) == sorted(
        [
            f"Price__c of record {ids[0]}",
            f"Count__c of record {ids[1]}",
            f"Day__c of record {ids[1]}",
            f"At__c of record {ids[1]}",
            f"SiteLat of record {ids[3]}",
        ]
    )
    assert "secret" not in caplog.text
    caplog.clear()
    values.of_json(COLUMNS, given, findings)
    assert caplog.messages == []
    values.of_json(replace(COLUMNS, entity="Contact"), given, findings)
    assert len(caplog.messages) == len(said)  # fields of another object, with the same names


READ = Read(AsOf(7, 3), (AT, 5, 1), AT)


def test_stored_notes_markers_and_reads_are_restored():
    """Notes of job steps, markers of log pieces, and reads are unchanged after being stored and
    loaded.
    """
    merge = Merge(
        "Account", "object", 1, 2, READ, None, is_last=True, applied_seq=9, at=1.5,
        filled={"Name": 1},
    )  # fmt: skip
    for note in (
        merge,
        replace(merge, newest=replace(READ, since=None, until=None)),
        replace(merge, ids=("001A", "001B")),
        Ask("Account", None, Reason.GAP, 4, 2.0),
        Ask("Account", ("001000000000001AAA",), Reason.ASKED, 4, 2.0),
        Sweep("Account", 3, 4, 9, 3.0),
    ):
        assert note_of(note.to_note()) == note
    marker = Marker(
        1, "object", AsOf(7, 3), until=AT, job="750", selected=("Id", "Name"), filled={"Name": 1}
    )
    assert Marker.from_json(marker.to_json()) == marker
    assert read_from(struct_of(READ)) == READ
    assert read_from(None) is None


def entry(record_id: str | None, seq: int = 1, asked: int = 0) -> Entry:
    """Return a queue entry for a record, or for all records if *record_id* is None."""
    return Entry(record_id, Cue(Reason.GAP, None, None, seq), asked)


def test_next_read_is_chosen_from_closable_entries():
    """A read begins only after the safety margin, and covers only queue entries that it can close.

    The whole object is read if an entry is about all records, or if there are too many entries.
    """
    objects = ["Account", "Contact"]
    entries = {"Contact": [entry("003A"), entry("003B", seq=9)]}
    assert wanted_reads(entries, objects, AsOf(0, 0)) == []
    contact = Wanted("Contact", "ids", ("003A",))
    assert wanted_reads(entries, objects, AsOf(1, 0)) == [contact]
    entries["Account"] = [entry(None, asked=2)]
    assert wanted_reads(entries, objects, AsOf(1, 1)) == [contact]
    assert wanted_reads(entries, objects, AsOf(1, 2)) == [Wanted("Account", "object"), contact]
    many = {"Account": [entry(f"001{n}") for n in range(MOST_IDS + 1)]}
    assert wanted_reads(many, objects, AsOf(1, 2)) == [Wanted("Account", "object")]


def test_budget_limits_requests_within_24_hours():
    """A request counts towards the budget for 24 hours, even if an earlier process sent it.

    No read may begin once the budget is used up. What is stored has one number per hour.
    """
    time = Deadlines(Now(0.0, 1.0))
    budget = Budget(10, time, [(0.0, 4)])
    budget.count(5)
    assert budget.may_read
    assert budget.used == [(1.0, 9)]
    time.now = Now(0.0, 3600.0)
    budget.count(6)
    assert budget.used == [(1.0, 9), (3600.0, 1)]
    for each in (budget, Budget(10, time, budget.used)):  # also after a restart
        time.now, time.next = Now(0.0, 3602.0), float("inf")
        assert not each.may_read
        assert time.next == DAY + 1.0 - 3602.0
        time.now = Now(0.0, DAY + 1.0)
        assert each.may_read
        assert each.used == [(3600.0, 1)]
    assert Budget(None, time, [(0.0, 10**9)]).may_read


def test_id_range_of_a_merge_covers_its_pieces():
    """A merge's id range is that of all its pieces; without rows, there is none."""
    one = Marker(1, "object", READ.as_of, size=2, lowest="001C", highest="001D")
    two = replace(one, lowest="001A", highest="001B")
    none = replace(one, size=0, lowest=None, highest=None)
    assert id_range([one, none, two]) == ("001A", "001D")
    assert id_range([none]) is None


def test_read_is_complete_once_its_last_step_is_merged():
    """A read of an object counts as complete only after its last step, which follows the pieces.

    That step handles the records that the read did not return.
    """
    progress = ObjectProgress()
    last = Marker(1, "object", READ.as_of, is_last=True, piece=2)
    merge = Merge("Account", "object", 1, 2, READ, None, is_last=False, applied_seq=9, at=1.5)
    progress.take(merge)
    assert (progress.merged, progress.newest, progress.is_through(last)) == (2, None, False)
    progress.take(replace(merge, is_last=True))
    assert (progress.newest, progress.read_at, progress.is_through(last)) == (READ, 1.5, True)
    assert ObjectProgress().is_through(replace(last, kind="ids"))


def test_row_from_a_read_alone_is_complete():
    """A row made from a read without any events is marked complete unless a value does not fit, and
    is marked for a reread only if a queue entry is open.

    If a newer read did not return the record, no row is made.
    """
    types = pa.schema([("Name", pa.string())])
    merging = Merging(Fields(("Name",), {}, {}), types, read=replace(READ, until=None))

    def made(merging: Merging) -> dict:
        found = row_without(merging)
        return {} if found is None else dict(zip(merging.output.names, found, strict=True))

    schema = pa.schema([("record_id", pa.string()), *FACTS, *types])
    read = [
        {"record_id": n, "Name": n, "_unfit": n == "b", "_is_deleted": n == "c", "_until": AT,
         "_stamp": AT, "_derived_at": AT}
        for n in "abc"
    ]  # fmt: skip
    rows = rows_without(pa.Table.from_pylist(read, schema), merging)
    assert rows is not None
    found = [(r["Name"], r["_complete"], r["_is_deleted"]) for r in rows.to_pylist()]
    assert found == [("a", True, False), ("b", False, False), ("c", True, True)]
    assert {(r["_read"]["until"], r["_stamp"]) for r in rows.to_pylist()} == {(AT, AT)}
    assert {r["_derived_at"] for r in rows.to_pylist()} == {AT}

    row = made(merging)
    assert (row["_complete"], row["_reread"], row["_ingest_seq"]) == (True, False, 7)
    assert row["_read"]["step"] == 3
    doubtful = made(replace(merging, entries=[entry(None, seq=8)]))
    assert (doubtful["_reread"], doubtful["_reread_reason"]) == (True, "gap")
    assert not made(replace(merging, newest=replace(READ, as_of=AsOf(8, 3))))


def periodic_reads(
    time: Deadlines, *, refresh_formulas: float = 0.0, sweep: float = 0.0
) -> Periodic:
    """Return what decides which reads of objects with events are due."""
    return Periodic(time, refresh_formulas, sweep, drift=0.0, poll=0.0, alone=frozenset())


def test_periodic_reads_are_due_on_schedule():
    """A full read of an object is due if it was never read, has new fields, or has outdated formula
    values.

    A comparison of its ids is due on schedule. Neither is repeated if the run is about to end.
    """
    time = Deadlines(Now(0.0, 0.0))
    progress, periodic = (
        ObjectProgress(),
        periodic_reads(time, refresh_formulas=10.0, sweep=20.0),
    )
    formula = Column("Sum__c", pa.int64(), "Sum__c", "", ("Sum__c",), calculated=True)
    with_formula = Columns("Account", (*COLUMNS.columns, formula))

    def reason(columns: Columns, at: float, of: Periodic = periodic) -> Reason | None:
        time.now = Now(at, at)
        return of.reason(progress, columns)

    def is_sweep_due(at: float, of: Periodic = periodic) -> bool:
        time.now = Now(at, at)
        return of.is_sweep_due("Account", progress)

    assert reason(COLUMNS, 0.0) is Reason.ASKED
    assert not is_sweep_due(1e9)
    progress.newest, progress.read_at, progress.selected = READ, 5.0, COLUMNS.selected
    progress.filled = COLUMNS.filled
    assert reason(COLUMNS, 100.0) is None
    assert reason(with_formula, 6.0) is Reason.ASKED
    progress.selected, progress.filled = with_formula.selected, with_formula.filled
    assert reason(with_formula, 14.0) is None
    assert time.next == 15.0
    assert reason(with_formula, 15.0) is Reason.FORMULA
    assert [is_sweep_due(at) for at in (24.0, 25.0)] == [False, True]
    assert is_sweep_due(4.0), "the clock was ahead"
    progress.selected = COLUMNS.selected  # without a formula, but with a field in no event
    in_events = frozenset(each.field.lower() for each in COLUMNS.columns)
    assert reason(replace(COLUMNS, reported=in_events), 15.0) is None
    photo = replace(COLUMNS, reported=in_events - {"day__c"})
    assert reason(photo, 14.0) is None
    assert reason(photo, 15.0) is Reason.FORMULA
    progress.selected = with_formula.selected
    periodic.end_after(5.0)
    assert reason(with_formula, 15.0) is None
    assert not is_sweep_due(25.0)
    never = periodic_reads(time)
    assert reason(with_formula, 1e9, never) is None
    assert not is_sweep_due(1e9, never)


def test_state_of_an_object_says_first_what_it_waits_for():
    """An object that waits is shown as waiting, even during its first read or a later one."""
    waits = {"read": "the job failed"}
    assert state_of(waits, is_read=False, is_reading=True) == "waiting"
    assert state_of({}, is_read=False, is_reading=True) == "first read"
    assert state_of({}, is_read=True, is_reading=True) == "reading"
    assert state_of({}, is_read=True, is_reading=False) == "current"


def test_an_object_is_read_again_after_a_change_of_its_fields():
    """A full read is due if a field has another type or scale than in the last full read, or was
    not visible for some time since; not if fields are gone.
    """
    periodic = periodic_reads(Deadlines(Now(0.0, 0.0)))
    progress = ObjectProgress(newest=READ, selected=COLUMNS.selected, filled=COLUMNS.filled)
    name, price, *others = COLUMNS.columns
    wider = replace(price, name="Price__c__decimal_18_4", type=pa.decimal128(18, 4))
    changed = Columns("Account", (name, wider, *others))
    assert periodic.reason(progress, changed) is Reason.ASKED
    back = Columns("Account", (replace(name, returns=1), price, *others))
    assert periodic.reason(progress, back) is Reason.ASKED
    gone = replace(name, asked=(), described=False)
    assert periodic.reason(progress, Columns("Account", (gone, price, *others))) is None


def test_last_error_of_the_stream_is_raised(tmp_path: Path):
    """Closing a stream raises the error of its failed write, unless another error has already ended
    the mirror.
    """

    def stream() -> MirrorStream:
        place = Destination.parse(tmp_path, "parquet")
        options = {"access_token": "00D000000000001!x", "instance_url": "https://x.example"}
        made = MirrorStream(Source("topic", "/data/X"), place, options=options)
        made._error = WriteError("the disk is full")
        return made

    with pytest.raises(WriteError, match="the disk is full"):
        stream().__exit__(None, None, None)
    mine = ValueError("mine")
    assert stream().__exit__(ValueError, mine, None) is None


def test_rows_whose_event_may_be_on_the_way_are_left_once():
    """A read of changed records leaves a row that changed after the quiet time, and the next one
    takes it, whether it has changed again or not. A row that is returned again is taken only if a
    value differs. A read that did not end leaves nothing to the next one.
    """
    news = News()

    def row(record_id: str, second: int, **values: Any) -> dict[str, Any]:
        return {
            "Id": record_id,
            "SystemModstamp": f"2026-11-22T05:12:{second:02}.000+0000",
        } | values

    def taken(quiet: int, *rows: dict[str, Any], ends: bool = True) -> list[str]:
        news.begin(AT.replace(second=0), AT.replace(second=quiet).timestamp())
        found = [each["Id"] for each in rows if news.has(each)]
        if ends:
            news.end()
        return found

    assert taken(10, row("a", 10), row("b", 11), ends=False) == ["a"]
    assert taken(10, row("a", 10), row("b", 11)) == []
    assert taken(20, row("a", 10, Name="x"), row("b", 21)) == ["a", "b"]
    assert taken(30, row("b", 31)) == []
    assert taken(40, row("a", 10, Name="x"), row("b", 21), row("c", 40)) == ["c"]
