"""The programs of the pages about Spark are executed."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow.dataset as ds
import pytest

import sfpubsub.spark
from sfpubsub.client.subscription import Subscription
from sfpubsub.emulator.org.settings import Settings
from tests.cli.test_cli import point_at
from tests.client.test_managed import TOPIC, orders
from tests.conftest import until
from tests.pages import blocks, page
from tests.spark.conftest import TABLE_FORMAT


def test_the_program_in_the_documentation_runs(spark, run_emulator, tmp_path, monkeypatch):
    """The last program on the Spark page writes all published events.

    It loops forever, so the test ends it once there are rows.
    """
    *_, code = blocks(page("spark"), "python")
    table = tmp_path / "orders"
    code = code.replace("/data/orders", str(table))
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    results = emulator.publish(TOPIC, orders(3))
    opened: list[Subscription] = []

    @contextmanager
    def shared_session():
        yield spark

    monkeypatch.setattr(sfpubsub.spark, "spark_session", shared_session, raising=False)
    enter = Subscription.__enter__
    monkeypatch.setattr(Subscription, "__enter__", lambda self: opened.append(self) or enter(self))
    thread = threading.Thread(target=exec, args=(compile(code, "page", "exec"), {}))
    thread.start()
    until(lambda: list(table.glob("ingest_date=*/batch=*/*.parquet")), "rows", patience=300)
    opened[0].abort()
    thread.join(60)
    rows = ds.dataset(table).to_table(columns=["event_id"]).column("event_id").to_pylist()
    assert rows == [result.event_id for result in results]


def test_the_programs_of_the_ingest_page_run(spark, run_emulator, tmp_path, monkeypatch, capsys):
    """The first program ends when it has read everything, and the second one after SIGTERM."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.3))
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    published = [result.event_id for result in emulator.publish(TOPIC, orders(3))]
    *_, first, second = (compile(code, "page", "exec") for code in _ingest_programs(tmp_path))
    exec(first, {})
    assert "3 rows, caught-up" in capsys.readouterr().out
    names: dict[str, Any] = {}

    def has_written() -> bool:
        return "ingest" in names and any(
            each.committed for each in names["ingest"].health().values()
        )

    def tell() -> None:
        try:
            until(has_written, "the commit", patience=300)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: names["ingest"].stop())
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)
        try:
            exec(second, names)
            told.result()
        finally:
            signal.signal(signal.SIGTERM, before)
    for table in ("orders", "more"):
        rows = ds.dataset(tmp_path / table).to_table(columns=["event_id"]).column("event_id")
        assert rows.to_pylist() == published


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="the page's format is delta")
def test_the_program_of_the_mirror_page_runs(spark, run_emulator, tmp_path, monkeypatch, capsys):
    """It reads the records, and ends; its margin is left out here."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.3))
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    emulator.records.create("Account", {"Name": "Acme"}, emulator.accounts.holder(""))
    (code,) = blocks(page("mirror"), "python")
    exec(compile(code.replace("margin=60.0", "margin=0.0"), "page", "exec"), {})
    assert capsys.readouterr().out == "1 records read, 0 events applied\n"


def _ingest_programs(tmp_path) -> list[str]:
    return [
        code.replace("/data/orders", str(tmp_path / "more"))
        for code in blocks(page("ingest"), "python")
    ]
