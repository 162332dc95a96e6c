"""Tests of passing Arrow data to Spark and back, with and without PySpark's own methods."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.runtime import arrow
from sfpubsub.spark.runtime.arrow import frame_of_rows, to_arrow
from sfpubsub.spark.runtime.session import own_session

ROWS = pa.table(
    {
        "a.b `c`": pa.array(["x", None, "z"]),
        "key": pa.array([b"1" * 16, b"", None], pa.binary()),
        "at": pa.array([datetime(2026, 3, 29, 1, 30, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        "on": pa.array([date(2026, 3, 29), None, None]),
        "price": pa.array([Decimal("1.10"), None, None], pa.decimal128(18, 2)),
        "inner": pa.array(
            [{"list": [1, None], "map": [("k", 1.5)]}, None, {"list": None, "map": []}],
            pa.struct(
                {
                    "list": pa.list_(pa.field("element", pa.int64())),
                    "map": pa.map_(pa.string(), pa.float64()),
                }
            ),
        ),
    }
)


@pytest.mark.parametrize("own_way", [False, True], ids=["PySpark 4", "PySpark 3.5"])
def test_arrow_rows_are_the_same_after_a_way_through_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, own_way: bool
):
    """All values and types are kept, whatever the columns' names and the number of messages."""
    if own_way:
        monkeypatch.setattr(arrow, "_HAS_ARROW", False)
        monkeypatch.setattr(arrow, "_MESSAGE_BYTES", ROWS.nbytes // 2)
    ours = own_session(spark, {"spark.sql.session.timeZone": "UTC"})
    for rows in (ROWS, ROWS.slice(0, 0)):
        found = to_arrow(frame_of_rows(ours, rows))
        assert found.schema.names == rows.schema.names
        assert [str(kind) for kind in found.schema.types] == [
            str(kind) for kind in rows.schema.types
        ]
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))
