"""Tables for querying, derived from a raw table."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.target import Target


def open_target(
    spark: SparkSession,
    target: str | os.PathLike[str],
    format: str,  # noqa: A002  # named as in Spark
) -> Target:
    """Open a target for writing tables, locking it against other processes.

    Args:
        spark: A session with the format's jars.
        target: A directory, written with a slash (``./tables``) or as a `Path`; a URL of any
            scheme that Spark supports; or ``catalog.schema``.
        format: ``delta`` or ``iceberg``.

    Raises:
        ConfigurationError: The target is not valid, or another process is writing there.
    """
    return Target(spark, Destination.of_tables(target, format))
