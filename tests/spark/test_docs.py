"""The program in the Spark reference is executed."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pyarrow.dataset as ds

import sfpubsub.spark
from sfpubsub.client.subscription import Subscription
from tests.cli.test_cli import point_at
from tests.client.test_managed import TOPIC, orders
from tests.conftest import until
from tests.pages import blocks, page


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
