"""A growing raw table and the tables created from it, for `tests.faults.tables_matrix`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from tests.faults.tables_matrix import FIELDS, Tables
from tests.spark.tables.raw_world import ACCOUNT, ORDER, ORDER_2, Raw


class World:
    """A raw table in a directory, and its tables."""

    def __init__(self, spark: SparkSession, directory: Path, to_format: str) -> None:
        self.raw = Raw(spark, directory / "raw", to_format=to_format)

    def grow(self, number: int) -> None:
        """Write a batch with two event types and two schema versions, and undecodable events."""
        newer = ORDER_2 if number % 3 == 2 else ORDER
        self.raw.write((newer, 20, number % 2), (ACCOUNT, 10, 1))

    def read(self) -> Tables:
        """Return each table's values by `ingest_seq`; duplicates are in a table of their own."""
        tables: Tables = {}
        for name in (*FIELDS, "_undecodable"):
            try:
                frame = self.raw.read(name)
            except ConfigurationError:
                continue
            column = FIELDS.get(name)
            value = "NULL" if column is None else column
            for row in frame.selectExpr("ingest_seq", f"{value} AS value").collect():
                seqs = tables.setdefault(name, {})
                if row["ingest_seq"] in seqs:
                    seqs = tables.setdefault(f"{name}, twice", {})
                seqs[row["ingest_seq"]] = row["value"]
        return tables
