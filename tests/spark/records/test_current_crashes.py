"""Current and history tables survive SIGKILL of `sfpubsub tables` at any of its commits."""

from __future__ import annotations

import os
import random
import sys
from itertools import cycle, islice, product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.crash_victim import WHO
from tests.faults.matrix import Job
from tests.faults.tables_victim import MERGE_MOMENTS, MOMENTS
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import Org, arrivals
from tests.spark.tables.record_world import World

# Number of kills. Each needs a new process, which takes some ten seconds on an idle machine.
KILLS = int(os.environ.get("TEST_TABLE_KILLS", "60"))

EVENTS_A_KILL = 20

TYPES = {"AccountChangeEvent": "Account", "Order__ChangeEvent": "Order__c"}


@pytest.mark.slow
def test_current_tables_equal_the_reference_after_kills(spark: SparkSession, tmp_path: Path):
    """After kills of the driver, the JVM or both at various commits, all tables are still correct.

    The typed, current, history and queue tables equal those that a simple reference implementation
    computes from all raw rows at once.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = World(spark, tmp_path, TABLE_FORMAT)
    streams = [
        [(name, event) for event in arrivals(Org(seed + n, entity), EVENTS_A_KILL * KILLS)]
        for n, (name, entity) in enumerate(TYPES.items())
    ]
    # A step has four merges: history and current rows of two objects.
    cells = [(moment, who, 1) for moment, who in product(MOMENTS, WHO)]
    cells += [(moment, who, n) for moment, who, n in product(MERGE_MOMENTS, WHO, (1, 2, 3, 4))]
    rng.shuffle(cells)
    command = ["tables", f"--from={world.raw}", f"--to={world.to}", "--format", TABLE_FORMAT]
    command += ["--current", "--history"]
    kills = 0
    for number, (moment, who, nth) in enumerate(islice(cycle(cells), KILLS)):
        first = number * EVENTS_A_KILL
        part = [event for stream in streams for event in stream[first : first + EVENTS_A_KILL]]
        world.write(part)
        victim = ["tests.faults.tables_victim", moment, who, str(nth), *command]
        job = Job(sys.executable, victim, {}, tmp_path / "tables.log")
        job.wait()
        killed = "killing" in job.log_text()
        print(f"{moment} {nth} of {who}: {job.process.returncode}", flush=True)
        assert killed == (job.process.returncode != 0), job.log_tail()
        kills += killed
    with world.tables() as tables:
        list(tables.run())
    for name, entity in TYPES.items():
        world.check(name, entity)
        seqs = sorted(row["ingest_seq"] for row in world.rows(name))
        assert seqs == [seq for seq, (kind, _) in enumerate(world.written) if kind == name]
    assert kills == KILLS
