"""Read the mirror's tables with Spark, and with another reader that shares no code with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.faults.storm_org import Rows, plain


def readers_of(spark: SparkSession, format_: str) -> dict[str, Callable[[Path], Rows]]:
    """Return functions that read the rows of a table in this format, keyed by reader name."""

    def by_spark(path: Path) -> Rows:
        return rows_of(spark.read.format(format_).load(str(path)).toArrow())

    plain_reader = {"delta": _by_deltalake, "iceberg": _by_pyiceberg}[format_]
    return {"spark": by_spark, plain_reader.__name__.removeprefix("_by_"): plain_reader}


def _by_deltalake(path: Path) -> Rows:
    from deltalake import DeltaTable, QueryBuilder

    # deltalake supports deletion vectors in its query engine, but not in its Arrow data set.
    found = QueryBuilder().register("rows", DeltaTable(str(path))).execute("SELECT * FROM rows")
    return rows_of(pa.table(found.read_all()))


def _by_pyiceberg(path: Path) -> Rows:
    from pyiceberg.table import StaticTable

    newest = (path / "metadata" / "version-hint.text").read_text().strip()
    metadata = path / "metadata" / f"v{newest}.metadata.json"
    return rows_of(StaticTable.from_metadata(str(metadata)).scan().to_arrow())


def rows_of(table: pa.Table) -> Rows:
    """Return the fields of all records that are not deleted; fail if a record is duplicated."""
    found: Rows = {}
    for row in table.to_pylist():
        if row["_is_deleted"]:
            continue
        assert row["record_id"] not in found, f"{row['record_id']} occurs twice"
        found[row["record_id"]] = {
            name: plain(value)
            for name, value in row.items()
            if name != "record_id" and not name.startswith("_")
        }
    return found
