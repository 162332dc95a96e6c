"""Current tables, history tables and the queue in a table format, against a slow reading."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.current import QUEUE_NAME, RecordTables, TypedRows, entity_of
from sfpubsub.spark.tables.target import Target
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import Org, Published, arrivals
from tests.spark.tables.slow_records import SlowTables
from tests.spark.tables.test_records import SCHEMAS, plain, plain_queue, typed


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Iterator[Target]:
    with open_target(spark, tmp_path / "tables", TABLE_FORMAT) as opened:
        yield opened


def take(
    target: Target, streams: dict[str, Sequence[Published]], first: int, step: int, **options: bool
) -> None:
    """One step with these events of each type, numbered from *first* on."""
    versions = {event.version for events in streams.values() for event in events}
    found = []
    for name, events in streams.items():
        schemas = {f"v{n}": SCHEMAS[f"v{n}"] for n in range(max(versions) + 1)}
        rows, plan = typed(events, first, schemas)
        found.append(TypedRows(name, plan, target.spark.createDataFrame(rows)))
    options.setdefault("with_history", True)
    RecordTables(target, **options).take(found, step)


def check(target: Target, entity: str, events: Sequence[Published]) -> None:
    """The tables of an object are those of the slow reading."""
    slow = SlowTables(events)
    current = {row["record_id"]: plain(row) for row in rows_of(target, entity)}
    for record_id, row in slow.current.items():
        assert current.get(record_id) == row
    assert current.keys() == slow.current.keys()
    found = [plain(row, ["valid_from", "valid_to"]) for row in rows_of(target, f"{entity}_history")]
    key = lambda row: (row["record_id"], row["_ingest_seq"])  # noqa: E731
    assert sorted(found, key=key) == sorted(slow.history, key=key)
    names = ("record_id", "reason", "change_type", "commit_timestamp", "since_seq")
    queue = target.table(QUEUE_NAME).read().where(f"entity_name = '{entity}'").toArrow()
    cues = [tuple(row[name] for name in names) for row in queue.to_pylist()]
    assert plain_queue(cues) == slow.queue


def rows_of(target: Target, name: str) -> list[dict]:
    return target.table(name).read().toArrow().to_pylist()


def test_the_names_of_objects():
    """A table is named like the object, as SOQL names it."""
    assert entity_of("AccountChangeEvent") == "Account"
    assert entity_of("Order__ChangeEvent") == "Order__c"
    assert entity_of("shop__Order__ChangeEvent") == "shop__Order__c"
    assert entity_of("Order_Event__e") is None


def test_tables_of_any_steps_are_those_of_a_slow_reading(target):
    """Random streams of two objects, cut into random steps: current, history and queue are those
    computed from all events in one go. A step that is done again changes nothing.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    streams = {
        "AccountChangeEvent": arrivals(Org(seed, records=12), 400),
        "Order__ChangeEvent": arrivals(Org(seed + 1, "Order__c", records=12), 400),
    }
    length = min(map(len, streams.values()))
    streams = {name: events[:length] for name, events in streams.items()}
    cuts = [0, *sorted(rng.sample(range(1, length), 3)), length]
    for step, (start, end) in enumerate(itertools.pairwise(cuts), 1):
        part = {name: events[start:end] for name, events in streams.items()}
        take(target, part, start, step)
        if step == 2:
            take(target, part, start, step)
    for name, events in streams.items():
        check(target, entity_of(name) or "", events)
