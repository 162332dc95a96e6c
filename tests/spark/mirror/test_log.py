"""Tests of the read log, which stores the org's responses in pieces (one transaction each) until
they are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.log import Marker, ReadLog, rows_in
from sfpubsub.spark.mirror.tables import _may_share
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.described import Column
from sfpubsub.spark.records.reads import AsOf
from sfpubsub.spark.tables import open_target
from tests.spark.conftest import TABLE_FORMAT

# More fields than the columns for which Delta keeps minimum and maximum.
FIELDS = [f"Field{number}__c" for number in range(40)]
COLUMNS = Columns("Account", tuple(Column(name, pa.string(), name, "", (name,)) for name in FIELDS))


def rows(*ids: str) -> pa.Table:
    """Return one row for each record id."""
    flags = {"_is_deleted": False, "_found": True, "_unfit": False}
    found = [{"record_id": each, **flags, **dict.fromkeys(FIELDS, "x")} for each in ids]
    types = {"record_id": pa.string(), **dict.fromkeys(flags, pa.bool_()), "_stamp": TIME}
    return pa.Table.from_pylist(
        found, pa.schema([*types.items(), *((name, pa.string()) for name in FIELDS)])
    )


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Iterator[Target]:
    """A target in a local directory."""
    with open_target(spark, tmp_path / "lake", TABLE_FORMAT) as opened:
        yield opened


def test_merge_reads_only_its_own_pieces(target: Target, tmp_path: Path) -> None:
    """A merge opens only the files of the pieces that it merges.

    Each piece records its lowest and highest record id, so Spark is not needed to find its files.
    """
    log = ReadLog(target, "Account")
    marker = Marker(0, "object", AsOf(0))
    marker = log.add(COLUMNS, [rows("001C", "001A"), rows(), rows("001B")], marker)
    assert (marker.lowest, marker.highest) == ("001A", "001C")
    (first,) = (tmp_path / "lake" / "_reads_Account").rglob("*.parquet")
    marker = log.add(COLUMNS, [rows("001D")], marker)
    assert (marker.lowest, marker.highest) == ("001D", "001D")
    marker = log.add(COLUMNS, (), marker)
    assert (marker.lowest, marker.highest) == (None, None)
    assert log.markers()[1].highest == "001D"
    table = log.rows(2, 3)
    assert _may_share(table, None)
    assert _may_share(table, ("001C", "001E"))
    assert not _may_share(table, ("001A", "001C"))
    assert log.take(1, 2) is not None
    assert log.take(1, 2) is None, "taken twice"
    files = log.take(3, 3)
    assert files is not None
    assert [list(rows_in(file)) for file in files] == [[]]
    log.add(COLUMNS, [rows("001E")], Marker(0, "ids", AsOf(0)))
    assert log.take(4, 4) is None, "a piece of a read by ids was kept"
    assert ReadLog(target, "Account").take(2, 2) is None, "a piece of another process was returned"
    first.unlink()
    assert [row["record_id"] for row in log.rows(2, 3).collect()] == ["001D"]
