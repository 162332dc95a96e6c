"""Kills the ingest job with SIGKILL at chosen moments of a write, and checks that every event is
stored once. These are six cells of the crash matrix; scripts/crash_matrix.sh runs all cells, also
with Iceberg.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import matrix
from tests.faults.count_table import count
from tests.faults.matrix import Cell
from tests.spark.conftest import TABLE_FORMAT

# Together, the cells cover every moment and every process that may be killed. Delta writes and
# publishes in one call, so its "publish" cell is the closest to the moment between the two.
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
    """After the driver, the JVM or both are killed, every published event is in the table once.

    Spark and another reader of the format both see the events in order of arrival.
    """
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
