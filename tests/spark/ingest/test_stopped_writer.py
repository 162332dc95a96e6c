"""A writer is stopped in the middle of a write, and continues after another writer has taken over
its table. As on an object store, there is no lease: only the table's log keeps the two apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark import EventWriter
from tests.conftest import until
from tests.faults.crash_victim import complete_files
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import NOW, TOPIC, batch_of

ROOT = str(Path(__file__).parents[3])

# Seconds within which Spark starts and writes, even on a busy machine.
PATIENCE = 300.0

# Writes batches of five events until a write fails.
VICTIM = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from sfpubsub.errors import WriteError
from sfpubsub.spark import EventWriter, spark_session
from tests.spark.conftest import TABLE_FORMAT, lake_settings
from tests.spark.sample_events import NOW, TOPIC, batch_of

settings = lake_settings(Path(sys.argv[1]))
with spark_session(format=TABLE_FORMAT, settings=settings) as spark:
    writer = EventWriter(spark, sys.argv[2], format=TABLE_FORMAT, topic=TOPIC, clock=lambda: NOW)
    print(writer._process.pid, flush=True)
    for first in range(0, 1000, 5):
        try:
            writer.write(batch_of(range(first, first + 5)))
        except WriteError as error:
            print("failed:", error, flush=True)
            break
    try:
        writer.write(batch_of([1000]))
    except WriteError as error:
        print("failed again:", error, flush=True)
"""


@pytest.mark.parametrize(
    "stopped",
    [
        "jvm",
        pytest.param("driver", marks=pytest.mark.slow),
        pytest.param("both", marks=pytest.mark.slow),
    ],
)
def test_stopped_writer_cannot_write_after_a_takeover(
    spark: SparkSession, lake: Path, tmp_path: Path, stopped: str
):
    """A writer receives SIGSTOP during a write, and SIGCONT after a second writer has written.

    Its write and the next one fail, and the table has each event once.
    """
    name = tmp_path.name
    place = f"viewfs://lake/tables/{name}"
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM.format(root=ROOT), str(lake), place],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [victim.pid]
    try:
        pids.append(int(victim.stdout.readline()))
        chosen = {"driver": pids[:1], "jvm": pids[1:], "both": pids}[stopped]
        # When the file of the third batch is complete, its commit comes next.
        until(lambda: len(complete_files(lake / name)) >= 3, "a write", PATIENCE)
        for pid in chosen:
            os.kill(pid, signal.SIGSTOP)
        newer = EventWriter(spark, place, format=TABLE_FORMAT, topic=TOPIC, clock=lambda: NOW)
        newer.write(batch_of(range(12)))
        for pid in chosen:
            os.kill(pid, signal.SIGCONT)
        output, _ = victim.communicate(timeout=PATIENCE)
        assert output.count("taken over by another writer") == 2, output
        newer.write(batch_of(range(30)))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        victim.wait()
        victim.stdout.close()
    rows = spark.read.format(TABLE_FORMAT).load(place).orderBy("ingest_seq").collect()
    assert sorted(row["event_id"] for row in rows) == sorted(f"event-{n}" for n in range(30))
    assert [row["ingest_seq"] for row in rows] == list(range(30))
