"""Tests that typed tables are correct although the job that creates them was killed repeatedly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import tables_matrix
from tests.faults.tables_world import World
from tests.spark.conftest import TABLE_FORMAT


@pytest.mark.slow
def test_tables_equal_an_independent_reference_after_kills(spark: SparkSession, tmp_path: Path):
    """The tables equal the reference after 15 kills of different processes at different moments."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    world = World(spark, tmp_path, TABLE_FORMAT)
    todo = tables_matrix.cells(15, random.Random(seed))
    report = tables_matrix.run(
        TABLE_FORMAT, world.raw.path, world.raw.typed, world.grow, world.read, todo, seed=seed
    )
    assert report.wrong == {}
    assert report.rows == world.raw.written
