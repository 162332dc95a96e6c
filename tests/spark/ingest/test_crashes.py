"""The job killed with SIGKILL at a chosen moment of a write; in the end every event is there once.

Six cells of the crash matrix; scripts/crash_matrix.sh does all of them, and Iceberg's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import matrix
from tests.faults.count_table import count
from tests.faults.matrix import Cell
from tests.spark.conftest import TABLE_FORMAT

# One of each moment, and each of the three to die in the middle of a write and right after it was
# published. Delta writes and publishes in one call, so there the moment between is the closest.
CELLS = {
    ("parquet", "managed"): [
        Cell("receipt", "both", nth=1, delay=0.0),
        Cell("publish", "driver", nth=2, delay=0.0),
        Cell("write", "jvm", nth=2, delay=0.05),
    ],
    (TABLE_FORMAT, "topic"): [
        Cell("publish", "jvm", nth=2, delay=0.0),
        Cell("write", "both", nth=2, delay=0.1),
        Cell("ack", "driver", nth=2, delay=0.0),
    ],
}


@pytest.mark.parametrize(
    ("format_", "source"),
    [
        ("parquet", "managed"),
        pytest.param(TABLE_FORMAT, "topic", marks=pytest.mark.slow),  # over a minute
    ],
)
def test_every_event_is_in_the_table_once_after_kills(
    spark: SparkSession, tmp_path: Path, format_: str, source: str
):
    """For Spark and for a plain reader of the format, in the order of arrival."""
    cells = CELLS[format_, source]
    report = matrix.run(
        format_,
        source,
        tmp_path,
        cells,
        seed=0,
        read=lambda table, name: count(spark, table, name),
        say=print,
    )
    assert report.published == matrix.EVENTS_A_KILL * (len(cells) + 1)
    assert report.wrong == {}
    assert sum(report.kills.values()) == len(cells)
