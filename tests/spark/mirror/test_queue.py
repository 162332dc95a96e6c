"""Tests of the reread queue: its cached rows always equal the stored ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.spark.mirror.bounded import entry_row
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.reads import AsOf, Read
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.records import Cue, Reason
from tests.spark.conftest import TABLE_FORMAT


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
        queue.make()
        assert queue.entries() == {}
        for change, wanted in changes:
            change()
            kept = queue.entries()
            change()
            assert queue.entries() == kept == MirrorQueue(target).entries()
            found = [each.record_id or "-" for rows in kept.values() for each in rows]
            assert sorted(found) == wanted
