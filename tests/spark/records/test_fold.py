"""Folding change events into records yields what a reference computes and what the org contains."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sfpubsub.avro.columns import columns_of, merge, paths_of
from sfpubsub.avro.typed_rows import Plan, decode_rows
from sfpubsub.spark.records.fold import Change, Cue, Fields, Fold, ObjectCue, Reason
from sfpubsub.spark.records.queue import new_epochs
from sfpubsub.spark.records.reads import AsOf, Read
from sfpubsub.spark.records.rows import (
    BEFORE,
    CHANGE,
    CLOSED,
    CUE,
    CURRENT,
    FOUND,
    VERSION,
    Merging,
    merge_rows,
    struct_of,
)
from tests.avro.test_columns import raw_rows
from tests.spark.tables.change_streams import Org, Published, arrivals, schema_text
from tests.spark.tables.record_world import plain, plain_queue
from tests.spark.tables.slow_records import SlowTables, truth

SCHEMAS = {f"v{version}": schema_text("AccountChangeEvent", version) for version in (0, 1)}


def typed(events: Sequence[Published], first: int, schemas: dict[str, str]) -> tuple[pa.Table, Any]:
    """Return the events as rows of a typed table, numbered from *first*, and the plan that decoded
    them.
    """
    columns = pa.schema([])
    for text in schemas.values():
        columns = merge(columns, columns_of(text))
    plan = Plan(schemas, columns)
    raw = raw_rows(*[(f"v{event.version}", event.payload) for event in events])
    numbers = pa.array(range(first, first + len(events)), pa.int64())
    raw = raw.set_column(raw.schema.get_field_index("ingest_seq"), "ingest_seq", numbers)
    decoded = [batch for _, batch in decode_rows([raw], {"AccountChangeEvent": plan})]
    return pa.Table.from_batches(decoded, plan.output), plan


class Tables:
    """Current, history and queue rows, updated step by step with `merge_rows`."""

    def __init__(self) -> None:
        self.seen = 0
        self.schemas = {"v0": SCHEMAS["v0"]}
        self.current: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.queue: list[tuple[Any, ...]] = []
        self.moves: list[tuple[datetime, datetime]] = []

    def step(self, events: Sequence[Published], rng: random.Random) -> None:
        for event in events:
            self.schemas[f"v{event.version}"] = SCHEMAS[f"v{event.version}"]
        rows, plan = typed(events, self.seen, self.schemas)
        self.seen += len(events)
        known = [paths_of(text, plan.columns) for text in plan.schemas.values()]
        names = sorted({path[0] for paths in known for path in paths.values()})
        types = pa.schema([plan.columns.field(name) for name in names])
        about_all = list(self.about_all(rows.sort_by("ingest_seq").to_pylist()))
        merging = Merging(Fields.of(names, known), types, about_all, with_versions=True)
        changes = list(self.changes(rows.to_pylist(), names))
        touched = {row["record_id"] for row in changes}
        base = [{**row, "_part": BEFORE} for i, row in self.current.items() if i in touched]
        order = sorted(
            [*base, *changes], key=lambda r: (r["record_id"], r["_part"], r["_ingest_seq"])
        )
        table = pa.Table.from_pylist(order, merging.input)
        batches = table.to_batches(max_chunksize=rng.choice([1, 3, 1000]))
        for batch in merge_rows(batches, merging):
            assert batch.schema == merging.output
            for row in batch.to_pylist():
                self.take(row)
        for row in self.current.values():
            if row["record_id"] not in touched:
                for each in about_all:
                    if row["record_id"].startswith(each.prefix) and not row["_reread"]:
                        row.update(_reread=True, _reread_reason=each.cue.reason)

    def about_all(self, rows: Sequence[dict[str, Any]]) -> Iterator[ObjectCue]:
        for row in rows:
            when = (row["change_type"], row["commit_timestamp"], row["ingest_seq"])
            for record_id in row["record_ids"] or [None]:
                found = ObjectCue.of(record_id, Cue(Reason.GAP, *when))
                if found is not None:
                    name = f"{found.prefix}*" if found.prefix else None
                    self.queue.append((name, found.cue.reason, *when))
                    yield found
                if row["change_type"] == "GAP_OVERFLOW":
                    break

    def changes(self, rows: Sequence[dict[str, Any]], names: list[str]) -> Iterator[dict[str, Any]]:
        for row in rows:
            for record_id in row["record_ids"]:
                if record_id.endswith("*") or row["change_type"] == "GAP_OVERFLOW":
                    continue
                yield {
                    "record_id": record_id,
                    "_part": CHANGE,
                    **{name: row[name] for name in names},
                    **{
                        f"_{name}": row[name]
                        for name in ("change_type", "commit_timestamp", "commit_number")
                    },
                    "_sequence_number": row["sequence_number"],
                    "_ingest_seq": row["ingest_seq"],
                    "_changed": [*row["changed_fields"], *row["nulled_fields"]],
                    "_diffs": row["diff_fields"],
                }

    def take(self, row: dict[str, Any]) -> None:
        kind, record_id = row["_kind"], row["record_id"]
        if kind == CURRENT:
            self.current[record_id] = row
        elif kind == CLOSED:
            (last,) = (v for v in self.history if v["record_id"] == record_id and not v["valid_to"])
            last["valid_to"] = row["valid_to"]
        elif kind == VERSION:
            assert row["from_read"] is False
            self.history.append(row)
        elif kind == CUE:
            names = ("_reread_reason", "_change_type", "_commit_timestamp", "_ingest_seq")
            self.queue.append((record_id, *(row[name] for name in names)))
        else:
            self.moves.append((row["valid_from"], row["valid_to"]))


@pytest.mark.parametrize("number", range(12))
def test_steps_of_any_size_equal_the_reference(number):
    """For random events in random steps, current, history and queue rows equal those computed from
    all events at once, and a complete row equals the record in the org.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    org = Org(seed)
    events = arrivals(org, 150)
    tables, rng, start = Tables(), random.Random(seed), 0
    while start < len(events):
        end = start + rng.choice([1, 5, 40])
        tables.step(events[start:end], rng)
        start = end
    slow = SlowTables(events)
    for record_id, row in slow.current.items():
        assert plain(tables.current[record_id]) == row
    assert tables.current.keys() == slow.current.keys()
    assert plain_queue(tables.queue) == slow.queue
    key = lambda row: (row["record_id"], row["_ingest_seq"])  # noqa: E731
    history = [plain(row, ["valid_from", "valid_to"]) for row in tables.history]
    assert sorted(history, key=key) == sorted(slow.history, key=key)
    for record_id, row in slow.current.items():
        if row["_complete"] and not row["_reread"]:
            assert row["_is_deleted"] == (record_id not in org.live)
            assert row["values"] == truth({**org.bin, **org.live}[record_id])


def test_the_random_streams_cover_every_case():
    """The random event streams of these tests cover every reread reason and a changed field type.

    They also produce deleted records and complete ones.
    """
    rows, reasons, whole = [], set(), 0
    for seed in range(30):
        slow = SlowTables(arrivals(Org(seed), 150))
        rows += slow.current.values()
        reasons |= {cue[1] for cue in slow.queue}
        whole += sum(row["_complete"] and not row["_reread"] for row in slow.current.values())
    assert reasons == {"gap", "overflow", "diff", "missing_base", "late"}
    assert {row["_is_deleted"] for row in rows} == {True, False}
    assert whole > len(rows) / 10
    assert any("Amount__c__string" in row["values"] for row in rows)


FIELDS = Fields(("Phone", "Note__c"), {"Phone": (0,), "Note__c": (1,)}, {})


def change(kind: str, second: int, number: int, *values: Any, **more: Any) -> Change:
    time = datetime(2026, 11, 21, 0, 0, second, tzinfo=UTC)
    return Change(kind, time, number, 1, second, values or (None, None), **more)


def test_a_late_update_does_not_overwrite_newer_values():
    """An update that arrives after a newer one is not applied; instead, a reread is queued."""
    fold = Fold(FIELDS, None)
    fold.apply(change("CREATE", 1, 1, "1", "a"))
    fold.apply(change("UPDATE", 9, 9, "9", None, changed=["Phone"]))
    fold.apply(change("UPDATE", 5, 5, "5", "b", changed=["Phone", "Note__c"]))
    assert fold.record is not None
    assert list(fold.record.values) == ["9", "a"]
    assert (fold.record.commit_number, fold.record.reread_reason) == (9, Reason.LATE)
    assert [cue.reason for cue in fold.cues] == [Reason.LATE]
    assert len(fold.versions) == 2


def test_an_org_move_is_recorded_once_and_changes_ordered_by_time():
    """After an org move, commit numbers start lower, so changes are ordered by time.

    A record deleted after the move stays deleted without a reread. Each record narrows the move
    down to a time span; overlapping spans count as one move.
    """
    fold = Fold(FIELDS, None)
    fold.apply(change("CREATE", 1, 1000, "1", "a"))
    fold.apply(change("DELETE", 2, 3))
    assert fold.record is not None
    assert (fold.record.is_deleted, fold.record.reread_reason) == (True, None)
    (span,) = fold.renumbered
    assert [time.second for time in span] == [1, 2]
    assert new_epochs([], [(10, 60), (20, 50), (49, 70)]) == [50]
    assert new_epochs([50], [(10, 90), (49, 51)]) == []
    assert new_epochs([50], [(60, 90)]) == [90]


def test_of_two_rows_of_a_record_in_one_read_the_later_state_counts():
    """A record that changes while a read of changed records pages through them is returned twice.
    The rows of one merge have no order, so the stamp decides.
    """
    types = pa.schema([("Phone", pa.string())])
    read = Read(AsOf(0), None, None)
    merging = Merging(Fields(types.names, {}, {}), types, read=read)
    stamps = [datetime(2026, 11, 28, hour, tzinfo=UTC) for hour in (1, 2)]
    for order in (stamps, stamps[::-1]):
        rows = [
            {
                "record_id": "001A",
                "_part": FOUND,
                "_is_deleted": False,
                "_unfit": False,
                "Phone": str(stamp.hour),
                "_read": struct_of(read),
                "_stamp": stamp,
            }
            for stamp in order
        ]
        table = pa.Table.from_pylist(rows, merging.input)
        (batch,) = merge_rows(table.to_batches(), merging)
        assert [row["Phone"] for row in batch.to_pylist()] == ["2"]
