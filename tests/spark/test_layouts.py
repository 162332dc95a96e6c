"""Tables that an earlier version stored stay readable, and jobs go on with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import EventTables, EventWriter, read_sidecar, read_typed
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.layout import LAYOUT
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of
from tests.spark.stored_tables import (
    BATCHES,
    LAYOUTS,
    RAW,
    TABLES,
    TOPIC,
    WRITTEN,
    rows_of,
    unpack,
    write,
)

STORED = sorted(int(path.name) for path in LAYOUTS.iterdir())

delta = pytest.mark.skipif(TABLE_FORMAT != "delta", reason="there are no jars for delta")


@pytest.fixture(params=STORED)
def layout(request: pytest.FixtureRequest) -> int:
    return request.param


def stored(layout: int, name: str) -> Any:
    return json.loads((LAYOUTS / str(layout) / f"{name}.json").read_text())


def test_the_current_layout_has_stored_tables():
    """A new layout cannot be added without tables that keep it readable."""
    assert STORED[-1] == LAYOUT


@pytest.mark.parametrize("format_", ["parquet", TABLE_FORMAT])
def test_ingest_goes_on_with_a_stored_raw_table(
    spark: SparkSession, tmp_path: Path, layout: int, format_: str
):
    """Every value of a stored raw table can be read, and so can its sidecars.

    A writer resumes at its position, drops the events that are in it, and appends new ones.
    """
    unpack(layout, format_, tmp_path)
    table = tmp_path / RAW
    raw = RawBatches(spark, Destination.parse(table, format_))
    found = rows_of(raw.rows(raw.after(None)).toArrow().to_pylist())
    old = stored(layout, "rows")
    assert [{name: row[name] for name in old[0]} for row in found] == old
    assert {row["schema_id"] for row in read_sidecar(spark, table, "schemas").collect()} == {
        "order_event",
        "shipment_change",
    }
    assert [row["after"] for row in read_sidecar(spark, table, "gaps").collect()] == ["0102"]
    with EventWriter(spark, table, format=format_, topic=TOPIC, clock=lambda: WRITTEN) as writer:
        assert bytes(writer.position) == b"00000005"
    result = write(spark, table, format_, BATCHES[2], WRITTEN + 3600)
    assert (result.rows, result.duplicates, result.first_seq) == (2, 1, 6)
    assert ids_of(table, format_) == [f"event-{n}" for n in range(8)]


@delta
def test_stored_derived_tables_go_on(spark: SparkSession, tmp_path: Path, layout: int):
    """Every value of stored typed, current and history tables can be read.

    The next steps add what the raw table has gained since.
    """
    unpack(layout, "delta", tmp_path)
    raw, target = tmp_path / RAW, tmp_path / TABLES
    for name, old in stored(layout, "tables").items():
        found = rows_of(read_typed(spark, target, name, format="delta").toArrow().to_pylist())
        assert [{key: row[key] for key in old[0]} for row in found] == old, name
    write(spark, raw, "delta", BATCHES[2], WRITTEN + 3600)
    with EventTables(spark, raw, target, format="delta") as tables:
        reports = list(tables.run())
    assert [dict(report.rows) for report in reports] == [
        {"Order_Event__e": 1, "Shipment__ChangeEvent": 1}
    ]
    (record,) = read_typed(spark, target, "Shipment__c", format="delta").collect()
    assert (record["Name"], record["Weight__c"]) == ("S-6", 1.5)
    history = read_typed(spark, target, "Shipment__c_history", format="delta")
    assert history.count() == 3


def test_a_table_of_a_newer_layout_is_rejected(spark: SparkSession, tmp_path: Path):
    """The writer's error names the newer layout, and what to do."""
    unpack(LAYOUT, TABLE_FORMAT, tmp_path)
    table = tmp_path / RAW
    for file in (*table.glob("_delta_log/*.json"), *table.glob("metadata/*.json")):
        mark = r"\"sfpubsub\": "
        file.write_text(file.read_text().replace(f"{mark}{LAYOUT},", f"{mark}{LAYOUT + 1},"))
    with pytest.raises(ConfigurationError, match=f"layout {LAYOUT + 1}, which a newer version"):
        EventWriter(spark, table, format=TABLE_FORMAT, topic=TOPIC)
