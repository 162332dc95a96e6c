"""Print the rows of a table as Spark and as another reader see them.

``python -m tests.faults.count_table TABLE FORMAT`` prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sfpubsub.spark import spark_session
from tests.spark.readers import read_table


def count(spark: SparkSession, table: Path, format_: str) -> dict[str, list[tuple[str, int]]]:
    """Return the event id and `ingest_seq` of each row in order of arrival, by reader.

    The readers are "plain" (without Spark) and "spark".
    """
    rows = read_table(table, format_)
    seen = spark.read.format(format_).load(str(table)).select("event_id", "ingest_seq")
    return {
        "plain": list(
            zip(rows["event_id"].to_pylist(), rows["ingest_seq"].to_pylist(), strict=True)
        ),
        "spark": [tuple(row) for row in seen.orderBy("ingest_seq").collect()],
    }


if __name__ == "__main__":
    with spark_session(format=sys.argv[2]) as session:
        print(json.dumps(count(session, Path(sys.argv[1]), sys.argv[2])))
