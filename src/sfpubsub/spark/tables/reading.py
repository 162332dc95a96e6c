"""Read the tables of a target without writing to it."""

from __future__ import annotations

import json
import os

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.avro.columns import BATCH, UNDECODABLE
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.target import facts_of
from sfpubsub.spark.records.step import UNDECODABLE_NAME
from sfpubsub.spark.runtime.session import first_line
from sfpubsub.spark.tables.steps import STEPS_NAME


def read_typed(
    spark: SparkSession,
    tables: str | os.PathLike[str],
    name: str,
    *,
    format: str = "delta",  # noqa: A002  # named as in Spark
) -> DataFrame:
    """Return a typed table with all columns that its event type has ever had.

    Args:
        spark: Any session that can access the files, with the format's jars.
        tables: The target: a directory, written with a slash (``./tables``) or as a `Path`; a URL;
            or ``catalog.schema``.
        name: The event type, such as ``AccountChangeEvent``.
        format: Format of the tables.

    Raises:
        ConfigurationError: The table does not exist or cannot be read.
    """
    place = Destination.of_tables(tables, format).table(name)
    try:
        if place.in_catalog:
            return spark.read.table(place.in_sql)
        return spark.read.format(place.format).load(place.url)
    except AnalysisException as error:
        raise ConfigurationError(f"{place} cannot be read: {first_line(error)}") from error


def org_of(spark: SparkSession, place: Destination) -> str | None:
    """Return the id of the org whose records the tables of a target contain.

    None if it is not known, or if the target has no steps (steps.py).
    """
    facts = facts_of(spark, place.table(STEPS_NAME))
    found = json.loads(facts.get("identity", "{}")).get("org_id")
    return None if found is None else str(found)


def read_undecodable(
    spark: SparkSession,
    tables: str | os.PathLike[str],
    *,
    format: str = "delta",  # noqa: A002  # named as in Spark
) -> DataFrame:
    """Return the rows that could not be decoded: envelope columns, event name and reason.

    The DataFrame is empty if the target has no such rows, or if they cannot be read, for example
    because *tables* does not exist. For the arguments, see `read_typed`.

    Raises:
        ConfigurationError: *tables* is neither a path nor a name in a catalog, or the format is
            unknown.
    """
    # An argument that is not valid is an error, not an empty table.
    Destination.of_tables(tables, format)
    try:
        return read_typed(spark, tables, UNDECODABLE_NAME, format=format)
    except ConfigurationError:
        return spark.createDataFrame([], spark_schema(pa.schema([*UNDECODABLE, *BATCH])))
