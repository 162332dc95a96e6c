"""A growing raw table and the tables created from it, for `tests.faults.tables_matrix`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from tests.faults.tables_matrix import FIELDS, Tables
from tests.spark.tables.raw_world import ACCOUNT, ORDER, ORDER_2, Raw


class World:
    """A raw table in a directory, and the tables created from it."""

    def __init__(self, spark: SparkSession, directory: Path, to_format: str) -> None:
        self.raw = Raw(spark, directory / "raw", to_format=to_format)

    def grow(self, number: int) -> None:
        """Append a batch of two event types, including undecodable events, to the raw table.

        If *number* modulo 3 is 2, one type has a newer schema.
        """
        newer = ORDER_2 if number % 3 == 2 else ORDER
        self.raw.write((newer, 20, number % 2), (ACCOUNT, 10, 1))

    def read(self) -> Tables:
        """Return each table's rows as a dict from `ingest_seq` to the value of one column.

        Rows with a repeated number are under a key of their own, such as ``_undecodable, twice``.
        """
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
