"""Tests of the reread queue: its cached rows always equal the stored ones, and an event that names
no object leaves an entry.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.records.bounded import entry_row
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.queue import QUEUE_NAME
from sfpubsub.spark.records.reads import AsOf, Read
from sfpubsub.spark.tables import open_target
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import Org, arrivals
from tests.spark.tables.record_world import World


def entry(entity: str, record_id: str | None, seq: int, step: int, asked: bool) -> dict[str, Any]:
    """Return a queue row with these values; *seq* is the `ingest_seq` at which it was added."""
    at = datetime(2026, 11, 23, 1, 2, 3, seq, UTC)
    return entry_row(entity, record_id, Cue(Reason.GAP, "UPDATE", at, seq), step, asked=asked)


def test_cached_rows_equal_the_stored_ones(spark: SparkSession, tmp_path: Path):
    """After each change, the cache has the same entries as a newly opened queue.

    Repeating the change has no effect. A read removes only entries of its object and
    records, and none that are newer than it.
    """

    def read(seq: int, asked: int) -> Read:
        return Read(AsOf(seq, asked), None, None)

    entries = [
        entry("Account", "a", 1, 1, False), entry("Account", None, 2, 1, True),
        entry("Account", "b", 3, 1, False), entry("Contact", "c", 1, 1, False),
    ]  # fmt: skip
    changes = [
        (lambda: queue.add(entries, 1), ["-", "a", "b", "c"]),
        (lambda: queue.remove("Account", read(9, 0), 2, ["a", "x"]), ["-", "b", "c"]),
        (lambda: queue.remove("Account", read(9, 0), 3), ["-", "c"]),
        (lambda: queue.add([entry("Contact", "d", 4, 4, False)], 4), ["-", "c", "d"]),
        (lambda: queue.remove("Account", read(2, 1), 5), ["c", "d"]),
        (lambda: queue.remove("Contact", read(3, 9), 6), ["d"]),
    ]
    with open_target(spark, tmp_path / "lake", TABLE_FORMAT) as target:
        queue = MirrorQueue(target)
        queue.make(of_mirror=True, with_history=False)
        assert queue.entries() == {}
        for change, wanted in changes:
            change()
            kept = queue.entries()
            change()
            assert queue.entries() == kept == MirrorQueue(target).entries()
            found = [each.record_id or "-" for rows in kept.values() for each in rows]
            assert sorted(found) == wanted


def test_an_event_without_a_schema_queues_objects_that_had_no_event(
    spark: SparkSession, tmp_path: Path
):
    """If the service does not know the schema of an event on the channel, every mirrored object has
    an entry, also one that had no event before; objects that are not mirrored have none.
    """
    tables: list[MirrorTables] = []

    def describe(name: str) -> ObjectDescription:
        raise AssertionError(f"{name} was described")

    def follower(target: Target) -> MirrorTables:
        tables.append(MirrorTables(target, describe, "mark"))
        for name in ("Account", "Order__c"):
            tables[0].add(name, None)
        return tables[0]

    world = World(spark, tmp_path, TABLE_FORMAT)
    world.write([("AccountChangeEvent", each) for each in arrivals(Org(1), 1)], unknown=[0])
    objects = ["Account", "Order__c"]
    with world.tables(history=False, mirror=True, objects=objects, followers=[follower]) as engine:
        list(engine.run())
        open_entries = tables[0].queue.entries()
        found = {name: [each.cue.reason for each in open_entries[name]] for name in open_entries}
        assert found == {name: [Reason.GAP] for name in objects}
    rows = world.rows(QUEUE_NAME)
    assert {
        (row["entity_name"], row["record_id"], row["since_seq"], row["asked"]) for row in rows
    } == {
        ("Account", None, 0, 0),
        ("Order__c", None, 0, 0),
    }
