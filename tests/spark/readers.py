"""Read tables without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds


def read_table(path: Path, format_: str, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a table in order of arrival, read by pyarrow, delta-rs or pyiceberg."""
    if format_ == "delta":
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(str(path)).to_pyarrow_table(columns=columns))
    elif format_ == "iceberg":
        from pyiceberg.table import StaticTable

        newest = (path / "metadata" / "version-hint.text").read_text().strip()
        metadata = path / "metadata" / f"v{newest}.metadata.json"
        scan = StaticTable.from_metadata(str(metadata)).scan(selected_fields=columns or ("*",))
        rows = scan.to_arrow()
    else:
        rows = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=columns)
    return rows.sort_by("ingest_seq")


def ids_of(path: Path, format_: str) -> list[str]:
    """Return the event ids in a table, in order of arrival."""
    return read_table(path, format_)["event_id"].to_pylist()
