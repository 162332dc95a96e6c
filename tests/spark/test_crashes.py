"""A writer killed with SIGKILL at a chosen step; the next one ends with every event once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from sfpubsub.spark import EventWriter
from tests.spark.sample_events import TOPIC, batch_of, replay_id

ROOT = str(Path(__file__).parents[2])

# Writes events 0 to 4 and acks them, then 5 to 9, and dies at the step that it is told.
VICTIM = """
import os, signal, sys
sys.path.insert(0, {here!r})
from tests.spark.sample_events import TOPIC, batch_of
from sfpubsub.spark import EventWriter, parquet, spark_session

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

step, table = sys.argv[1:]
with spark_session(java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC") as spark:
    writer = EventWriter(spark, table, topic=TOPIC)
    writer.write(batch_of(range(5)))
    if step == "after stage":
        parquet._check = die
    if step == "before rename":
        parquet.os.rename = die
    if step == "after rename":
        rename = os.rename
        parquet.os.rename = lambda source, target: (rename(source, target), die())
    writer.write(batch_of(range(5, 10)))
    if step == "before ack":
        die()
"""


@pytest.mark.parametrize(
    ("step", "there"),
    [("after stage", 5), ("before rename", 5), ("after rename", 10), ("before ack", 10)],
)
def test_a_killed_write_is_whole_or_absent_and_done_once_by_the_next(
    spark, tmp_path: Path, step: str, there: int
):
    """Readers see all of a batch or nothing; what was not acked comes again and is written once."""
    table = tmp_path / "t"
    victim = subprocess.run(
        [
            sys.executable,
            "-c",
            VICTIM.format(here=ROOT),
            step,
            str(table),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    assert len(_ids(table)) == there
    with EventWriter(spark, table, topic=TOPIC) as writer:
        assert writer.position == replay_id(there - 1)
        result = writer.write(batch_of(range(5, 12)))
        assert (result.rows, result.duplicates) == (12 - there, there - 5)
    assert _ids(table) == [f"event-{n}" for n in range(12)]
    assert not list((table / "_staging").glob("*"))


def _ids(table: Path) -> list[str]:
    rows = ds.dataset(table, format="parquet").to_table(columns=["event_id", "ingest_seq"])
    return rows.sort_by("ingest_seq")["event_id"].to_pylist()
