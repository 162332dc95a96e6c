"""Speed of a mirror: its first bulk read, and a step of changes.

Prints one JSON line. Uses two cores; all figures are from one run.

``snapshot``: a mirror reads the emulator's accounts in bulk into an empty Delta table, compared
with ``spark.read.csv`` of the same result files into a Delta table, for few and for many records,
with the peak memory of this process. The time in which the org creates the results (``org``) is
excluded; the time in which the mirror fetches them is included. ``step``: one step of the mirror
merges 10,000 updates into these rows, compared with a bare MERGE of the same rows into a copy of
the table.

Usage: python -m benchmarks mirror [RECORDS]; a million by default.
"""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from tests.rest.support import Sessions
from tests.spark.mirror.mirror_world import World

from sfpubsub.emulator.org.records.values import full_id
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.rest import OrgReader
from sfpubsub.spark.runtime.session import spark_session

MANY = 1_000_000
FEW = 100_000
CHANGES = 10_000
# Minimum speed relative to Spark alone.
TARGETS = {"snapshot": 0.5, "step": 0.5}
# Rows per result file, as in a mirror.
PIECE = 50_000


def fill(directory: Path, records: int) -> None:
    """Create accounts in the directory of an emulator: copies of one record with new ids."""
    with EmulatorServer(directory) as emulator:
        values = {
            "Name": "Blue Bottle Coffee",
            "Phone": "+1 510 555 0100",
            "BillingStreet": "300 Webster Street",
            "BillingCity": "Oakland",
            "BillingCountry": "United States",
            "Description": "Roaster; deliveries on Tuesdays, by the back door",
        }
        first = emulator.records.create("Account", values, emulator.accounts.holder(""))
    with closing(sqlite3.connect(directory / "bus.sqlite3")) as database:
        database.create_function("id_of", 1, lambda n: full_id(f"{first[:6]}{n:09d}"))
        names = [row[1] for row in database.execute('PRAGMA table_info("rec_Account")')]
        listed = ", ".join(f'"{name}"' for name in names)
        made = {"n": "k.n", "Id": "id_of(k.n)", "Name": "Name || ' ' || k.n"}
        copied = ", ".join(made.get(name, f'"{name}"') for name in names)
        database.execute(
            f"WITH RECURSIVE k(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM k WHERE n < ?) "
            f'INSERT INTO "rec_Account" ({listed}) SELECT {copied} FROM k, '
            f'"rec_Account" WHERE "rec_Account".Id = ?',
            (1000 + records - 2, first),
        )
        database.commit()


def snapshot(world: World, records: int) -> tuple[float, float]:
    """Return the seconds of the org's query job, and the seconds until the mirror is complete."""
    jobs = world.emulator.jobs
    with world.mirror(bulk_from=0) as mirror:
        mirror.advance(world.stream.state())
        world.until(mirror, lambda: mirror._fetching.is_busy)  # after a safety margin
        ready = began = time.perf_counter()
        while mirror.report.reads < 1:
            if ready == began and any(job.state == "JobComplete" for job in jobs.all(queries=True)):
                ready = time.perf_counter()
            if not mirror.advance(world.stream.state()):
                time.sleep(0.01)
        taken = time.perf_counter() - ready
        assert mirror.report.records == records
    return ready - began, taken


def files_of(world: World, place: Path) -> tuple[list[str], list[str]]:
    """Fetch the same results into CSV files; return their URIs and the columns."""
    reader = OrgReader(Sessions(world.emulator))
    described = reader.describe("Account")
    fields = [each.name for each in described.fields if each.type not in ("address", "location")]
    job = reader.jobs.create(f"SELECT {', '.join(fields)} FROM Account", all_rows=True)
    job = reader.jobs.wait(job.id, deadline=time.monotonic() + 3600)
    found, locator = [], None
    while True:
        path = place / f"{len(found)}.csv"
        with path.open("w+b") as file:
            page = reader.jobs.results(
                job.id, file, columns=fields, locator=locator, max_records=PIECE
            )
        found.append(f"file://{path}")
        locator = page.next_locator
        if locator is None:
            return found, fields


def bare_snapshot(spark: SparkSession, files: list[str], fields: list[str], to: Path) -> float:
    """Return the seconds in which Spark alone creates a Delta table from the CSV files."""
    schema = ", ".join(f"`{name}` STRING" for name in fields)
    began = time.perf_counter()
    rows = spark.read.options(header=True, multiLine=True, escape='"').schema(schema).csv(files)
    rows.write.format("delta").save(f"file://{to}")
    return time.perf_counter() - began


def step(world: World, records: int) -> tuple[float, float]:
    """Return the seconds of a step of changes, and of a bare MERGE of the same rows.

    Each is done twice and the second time is returned: the first includes creating the typed table
    and compilation in the JVM.
    """
    ids = world.spark.read.format("delta").load(f"file://{world.to}/Account")
    ids = [row[0] for row in ids.select("record_id").orderBy("record_id").limit(records).collect()]
    chosen = ids[:: max(1, len(ids) // CHANGES)][:CHANGES]
    with world.mirror(bulk_from=0) as mirror:
        for turn in "ab":
            written = world.stream.state().written
            for number, record_id in enumerate(chosen):
                world.update(record_id, Phone=f"{turn}{number}")
            while world.stream.state().written < written + len(chosen):
                time.sleep(0.5)
            began, applied = time.perf_counter(), mirror.report.events
            while mirror.report.events < applied + len(chosen):
                mirror.advance(world.stream.state())
            taken = time.perf_counter() - began
    now = world.spark.read.format("delta").load(f"file://{world.to}/Account")
    changed = now.where("Phone LIKE 'b%'").persist()
    assert changed.count() == len(chosen), changed.count()
    for turn in "ab":
        copy = world.to.parent / f"copy-{turn}"
        shutil.copytree(world.to / "Account", copy)
        began = time.perf_counter()
        merge = DeltaTable.forPath(world.spark, f"file://{copy}").alias("t")
        merge = merge.merge(changed.alias("s"), "t.record_id = s.record_id")
        values = {name: f"s.`{name}`" for name in changed.columns}
        merge.whenMatchedUpdate(set=values).whenNotMatchedInsert(values=values).execute()
        bare = time.perf_counter() - began
    changed.unpersist()
    return taken, bare


def peak() -> int:
    """Return the peak resident memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(spark: SparkSession, here: Path, records: int) -> dict[str, Any]:
    """Measure a mirror of *records* records, and return the figures."""
    here.mkdir()
    fill(here / "org", records)
    with EmulatorServer(here / "org") as emulator:
        world = World(spark, here, emulator, "delta")
        org, taken = snapshot(world, records)
        memory = peak()
        (here / "files").mkdir()
        files, fields = files_of(world, here / "files")
        bare = bare_snapshot(spark, files, fields, here / "bare")
        found: dict[str, Any] = {
            "records": records,
            "snapshot": {
                "org": round(org, 1),
                "mirror": round(taken, 1),
                "bare": round(bare, 1),
                "ratio": round(bare / taken, 2),
            },
            "peak_mb": memory,
        }  # fmt: skip
        print(json.dumps(found), file=sys.stderr, flush=True)
        stepped, merged = step(world, records)
        found["step"] = {
            "mirror": round(stepped, 1),
            "bare": round(merged, 1),
            "ratio": round(merged / stepped, 2),
        }
        print(json.dumps(found), file=sys.stderr, flush=True)
        return found


def main(records: int) -> None:
    """Measure with few and with *records* records, and print the result."""
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session("local[2]", format="delta") as spark,
    ):
        runs = [
            measure(spark, Path(directory) / str(count), count)
            for count in sorted({min(FEW, records), records})
        ]
    print(json.dumps({"targets": TARGETS, "runs": runs}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MANY)
