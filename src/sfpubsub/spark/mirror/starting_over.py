"""Rescue a mirror that cannot continue: all its objects are read from the org again.

This needs neither the service nor credentials, because the next process of the mirror does the
reading.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.records.queue import RereadQueue
from sfpubsub.spark.records.step import Follower
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.engine import EventTables


def is_mirror(spark: SparkSession, to: str | os.PathLike[str], format: str) -> bool:  # noqa: A002
    """Return whether a target contains the tables of a mirror.

    Raises:
        ConfigurationError: The target is not valid, or another process is writing there.
    """
    with open_target(spark, to, format) as target:
        return RereadQueue(target).is_of_mirror()


def start_over(
    spark: SparkSession,
    raw: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002  # named as in Spark
    raw_format: str | None = None,
) -> tuple[str, ...]:
    """Make a mirror read all its objects again, and leave out all raw rows so far.

    All rows are marked for rereading. A step that could not be finished is abandoned.

    Args:
        spark: A classic session with the formats' jars.
        raw: The mirror's raw table.
        to: The mirror's target.
        format: Format of the target.
        raw_format: Format of the raw table; by default detected, see `EventTables`.

    Returns:
        The names of the objects.

    Raises:
        ConfigurationError: *raw* is not the mirror's raw table, or the mirror is running.
        WriteError: Not all rows were marked. Call this again.
    """
    tables: list[MirrorTables] = []

    def follower(target: Target) -> Follower:
        tables.append(MirrorTables(target, _describe, "mark"))
        return tables[0]

    with EventTables(
        spark,
        raw,
        to,
        format=format,
        raw_format=raw_format,
        followers=[follower],
        mirror=True,
        for_rebuild=True,
    ) as engine:
        for name in engine.objects:
            tables[0].add(name, None)
        engine.rebuild()
        return engine.objects


def _describe(name: str) -> ObjectDescription:
    raise AssertionError(f"{name}: rows are marked without a request to the org")
