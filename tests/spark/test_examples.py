"""The examples that need Spark run unchanged."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from contextlib import nullcontext

import pyarrow.dataset as ds
import pytest

import sfpubsub.spark
from tests.cli.test_cli import environment, point_at
from tests.client.test_managed import TOPIC, orders
from tests.pages import ROOT
from tests.spark.source_world import settings_file


def run_example(monkeypatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_ingest_job(spark, run_emulator, tmp_path, monkeypatch):
    """ingest_job.py writes each event once, and a second run adds only new ones."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    published = []
    for number in (3, 2):
        published += emulator.publish(TOPIC, orders(number))
        run_example(monkeypatch, "ingest_job.py", TOPIC, str(tmp_path / "orders"))
    rows = ds.dataset(tmp_path / "orders").to_table(columns=["event_id"]).column("event_id")
    assert rows.to_pylist() == [event.event_id for event in published]


def test_streaming_query(spark, run_emulator, tmp_path, monkeypatch):
    """streaming_query.py writes the total amount for each city."""
    if not hasattr(spark, "dataSource"):
        pytest.skip("this PySpark has no sources in Python")
    emulator = run_emulator()
    settings = settings_file(emulator, tmp_path / "pubsub.toml")
    monkeypatch.setattr(sfpubsub.spark, "spark_session", lambda: nullcontext(spark), raising=False)
    amounts = [("Rome", 1.5), ("Oslo", 1.0), ("Rome", 2.5)]
    emulator.publish(TOPIC, [{"City__c": city, "Amount__c": amount} for city, amount in amounts])
    where = [str(tmp_path / name) for name in ("totals", "checkpoint")]
    run_example(monkeypatch, "streaming_query.py", str(settings), TOPIC, *where)
    rows = ds.dataset(tmp_path / "totals").to_table(columns=["City__c", "amount"]).to_pylist()
    assert {row["City__c"]: row["amount"] for row in rows} == {"Rome": 4.0, "Oslo": 1.0}


@pytest.mark.slow  # starts Spark with Delta
def test_mirror(run_emulator, tmp_path):
    """mirror.py prints the records of the org."""
    emulator = run_emulator()
    user = emulator.accounts.holder("user@example.com")
    for name in ("Acme", "Widgets"):
        emulator.records.create("Account", {"Name": name}, user)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "mirror.py", "Account", tmp_path / "lake"],
        env={**os.environ, **environment(emulator)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[-2:]] == ["Acme", "Widgets"]
