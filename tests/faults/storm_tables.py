"""Read the mirror's tables with Spark, and with another reader that shares no code with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.spark.runtime.arrow import to_arrow
from tests.faults.storm_org import Rows, plain

# Access to an object store, as delta-rs wants it; None for files.
Access = dict[str, str] | None


def readers_of(
    spark: SparkSession, format_: str, access: Access = None
) -> dict[str, Callable[[str], Rows]]:
    """Return functions that read the rows of a table in this format, keyed by reader name."""

    def by_spark(place: str) -> Rows:
        return rows_of(to_arrow(spark.read.format(format_).load(place)))

    def by_plain_reader(place: str) -> Rows:
        return rows_of(_plainly(format_, place, "*", access))

    return {
        "spark": by_spark,
        {"delta": "deltalake", "iceberg": "pyiceberg"}[format_]: by_plain_reader,
    }


def deleted_reader_of(format_: str, access: Access = None) -> Callable[[str], set[str]]:
    """Return a function that returns the ids of the rows that a table has as deleted; none if the
    table does not exist yet.
    """

    def deleted(place: str) -> set[str]:
        if not _exists(format_, place, access):
            return set()
        found = _plainly(format_, place, "record_id, _is_deleted", access)
        return {row["record_id"] for row in found.to_pylist() if row["_is_deleted"]}

    return deleted


def flaws_of_history(spark: SparkSession, format_: str) -> Callable[[str], list[str]]:
    """Return a function that returns what is wrong with the versions of a table's records.

    The last version of each record must be what its row shows, and each version must end where the
    next one begins.
    """

    def flaws(place: str) -> list[str]:
        read = spark.read.format(format_)
        current = to_arrow(read.load(place)).to_pylist()
        versions: dict[str, list[dict[str, Any]]] = {}
        for row in to_arrow(read.load(f"{place}_history")).to_pylist():
            versions.setdefault(row["record_id"], []).append(row)
        return [
            f"{row['record_id']}: {flaw}"
            for row in current
            for flaw in flaws_between(row, versions.get(row["record_id"], []))
        ]

    return flaws


def flaws_between(row: dict[str, Any], own: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the versions of a record."""
    last = [each for each in own if each["valid_to"] is None]
    if len(last) != 1:
        yield f"{len(last)} versions are open"
        return
    seen = {name for name in row if not name.startswith("_")} | {"_is_deleted"}
    different = [name for name in seen if last[0][name] != row[name]]
    if different:
        yield f"the last version has other values of {sorted(different)}"
    begun = Counter(each["valid_from"] for each in own)
    ended = Counter(each["valid_to"] for each in own if each is not last[0])
    if sum((begun - ended).values()) != 1:
        yield "its versions leave a hole"


def _exists(format_: str, place: str, access: Access) -> bool:
    if format_ == "iceberg":
        return (Path(place) / "metadata" / "version-hint.text").exists()
    from deltalake import DeltaTable

    return DeltaTable.is_deltatable(place, storage_options=access)


def _plainly(format_: str, place: str, columns: str, access: Access) -> pa.Table:
    """Read columns of a table without Spark."""
    if format_ == "iceberg":
        from pyiceberg.table import StaticTable

        path = Path(place)
        newest = (path / "metadata" / "version-hint.text").read_text().strip()
        metadata = path / "metadata" / f"v{newest}.metadata.json"
        found: Any = StaticTable.from_metadata(str(metadata)).scan().to_arrow()
        return (
            found if columns == "*" else found.select([one.strip() for one in columns.split(",")])
        )
    from deltalake import DeltaTable, QueryBuilder

    # deltalake supports deletion vectors in its query engine, but not in its Arrow data set.
    table = QueryBuilder().register("rows", DeltaTable(place, storage_options=access))
    return pa.table(table.execute(f"SELECT {columns} FROM rows").read_all())


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
