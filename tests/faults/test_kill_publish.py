"""Tests that, whatever is killed, every event is published at least once, under its own ID."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from examples import outbox

from ..cli.test_cli import environment
from ..client.test_publisher import on_the_bus
from ..conftest import PATIENCE, until
from . import publish_killer


def printed_seed() -> int:
    """Return a random seed and print it, so that pytest shows it on failure."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    return seed


@pytest.mark.parametrize("streamed", [True, False])
def test_no_event_is_lost_when_the_service_is_killed(streamed: bool, tmp_path: Path):
    """No event is lost if the service is killed twice and two responses are lost.

    The bus contains no more duplicates than the publisher reports.
    """
    with publish_killer.Service(tmp_path) as service:
        report = publish_killer.run(
            service, events=2000, kills=2, seed=printed_seed(), streamed=streamed
        )
    assert report.ok, report
    assert (report.published, report.kills, report.faults) == (2000, 2, 2)


@pytest.mark.spark
@pytest.mark.slow  # 20,000 events, and an ingest job that writes them
def test_table_contains_each_published_event_once(tmp_path: Path):
    """A deduplicated table contains each event once, even if the bus contains duplicates.

    The service is killed ten times while 20,000 events are published.
    """
    with publish_killer.Service(tmp_path) as service:
        report = publish_killer.run(service, events=20_000, kills=10, seed=printed_seed())
        print(report)
        assert report.ok, report
        assert report.published == 20_000
        table = tmp_path / "table"
        ready = service.ready
        subprocess.run(
            [sys.executable, "-m", "sfpubsub", "ingest", "--managed",
             "My_Managed_Subscription", "--to", str(table), "--idle-timeout", "10"],
            check=True,
            timeout=600,
            env={
                **os.environ,
                "SFPUBSUB_ENDPOINT": ready["grpc"],
                "SFPUBSUB_INSECURE": "1",
                "SFPUBSUB_AUTH": "token",
                "SFPUBSUB_ACCESS_TOKEN": ready["access_token"],
                "SFPUBSUB_INSTANCE_URL": ready["instance_url"],
                "SFPUBSUB_TENANT_ID": ready["tenant_id"],
            },
        )  # fmt: skip
        files = [str(path) for path in table.rglob("*.parquet")]
        ids = ds.dataset(files, format="parquet").to_table(["event_id"])["event_id"].to_pylist()
        assert len(ids) == len(set(ids)) == 20_000


def test_killed_outbox_loses_nothing(run_emulator, connect, tmp_path):
    """The outbox example loses no row, even if it is killed three times while it publishes.

    Events that are published again keep their ID.
    """
    emulator = run_emulator()
    path = tmp_path / "orders.db"
    database = outbox.open_database(str(path))
    database.execute("BEGIN")
    ids = [outbox.put(database, {"Amount__c": float(number)}) for number in range(3000)]
    database.execute("COMMIT")

    def marked() -> int:
        (count,) = database.execute("SELECT count(*) FROM outbox WHERE sent_at NOTNULL").fetchone()
        return count

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, outbox.__file__, str(path), publish_killer.TOPIC],
            env={**os.environ, **environment(emulator)},
        )

    for kill in range(3):
        before = emulator.bus.tip()
        process = start()
        try:
            until(lambda before=before: emulator.bus.tip() > before + 200, "events of the outbox")
        finally:
            process.kill()
            process.wait()
        assert marked() < 3000, f"kill {kill} came too late"
    assert start().wait(PATIENCE) == 0
    assert marked() == 3000
    seen = Counter(name for name, _ in on_the_bus(emulator, connect))
    assert sorted(seen) == sorted(ids)
    assert emulator.bus.tip() > 3000  # a kill before a row was marked: its event is repeated
    database.close()


def test_refused_row_does_not_stop_the_outbox(run_emulator, connect, tmp_path):
    """A rejected row is marked with the reason, and the other rows are published.

    The next run publishes nothing.
    """
    from sfpubsub.testing import Fault

    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", text="no such record"))
    database: sqlite3.Connection = outbox.open_database(str(tmp_path / "orders.db"))
    for _ in range(3):
        outbox.put(database, {})
    assert outbox.publish_all(database, connect(emulator), publish_killer.TOPIC) == 2
    assert outbox.publish_all(database, connect(emulator), publish_killer.TOPIC) == 0
    [(reason,)] = database.execute("SELECT refused FROM outbox WHERE refused NOTNULL").fetchall()
    assert reason.endswith("no such record")
    database.close()


def test_invalid_row_does_not_stop_the_outbox(run_emulator, connect, tmp_path):
    """A row that does not match the schema is marked with the reason.

    The rows before and after it are published once.
    """
    emulator = run_emulator()
    database: sqlite3.Connection = outbox.open_database(str(tmp_path / "orders.db"))
    for event in ({"Amount__c": 1.0}, {"Amount__c": "much"}, {"Amount__c": 3.0}):
        outbox.put(database, event)
    assert outbox.publish_all(database, connect(emulator), publish_killer.TOPIC) == 2
    assert outbox.publish_all(database, connect(emulator), publish_killer.TOPIC) == 0
    refused = database.execute("SELECT number, refused FROM outbox WHERE refused NOTNULL")
    [(number, reason)] = refused.fetchall()
    assert number == 2
    assert "Amount__c" in reason
    assert emulator.bus.tip() == 2
    database.close()


def test_outbox_keeps_rows_without_a_result(run_emulator, connect, tmp_path):
    """If an event times out, `PublishError` is raised and the row is kept for the next run."""
    from sfpubsub.errors import PublishError
    from sfpubsub.testing import Fault

    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", times=1_000_000))
    database: sqlite3.Connection = outbox.open_database(str(tmp_path / "orders.db"))
    outbox.put(database, {})
    with pytest.raises(PublishError, match="no result within"):
        outbox.publish_all(database, connect(emulator), publish_killer.TOPIC, timeout=0.3)
    waiting = database.execute("SELECT sent_at, refused FROM outbox").fetchall()
    assert waiting == [(None, None)]
    database.close()
