"""Create Parquet tables in older layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from sfpubsub.spark.raw.layout import LAYOUTS


def as_layout_2(table: Path) -> None:
    """Convert a table to layout 2, which has fewer columns and hourly partitions."""
    old = LAYOUTS[2]
    for file in sorted(table.glob("ingest_date=*/batch=*/part-*.parquet")):
        hour = table / f"ingest_hour={file.parent.parent.name.removeprefix('ingest_date=')}-23"
        hour.mkdir(exist_ok=True)
        rows = pq.ParquetFile(file).read().select(old.columns.names)
        pq.write_table(rows, file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # the old checksum
        file.parent.rename(hour / file.parent.name)
    for day in table.glob("ingest_date=*"):
        day.rmdir()
    identity = json.loads((table / "_table.json").read_text())
    (table / "_table.json").write_text(json.dumps({**identity, "layout": 2}))
