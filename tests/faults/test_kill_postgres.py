"""Tests that examples/postgres.py copies each event exactly once, whenever it is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import psycopg
import pytest
from examples import postgres as example

from sfpubsub.emulator.org.settings import Settings

from ..cli.test_cli import environment
from ..client.test_managed import TOPIC, orders
from ..conftest import PATIENCE, until
from .publish_killer import USER
from .test_kill_publish import printed_seed

pytestmark = pytest.mark.slow  # starts a server of its own, and twenty processes

KILLS = 20
EVENTS = 500  # published before each kill


@pytest.fixture
def database() -> Iterator[psycopg.Connection]:
    """Start a server with the machine's PostgreSQL, and connect to it.

    The test is skipped if the machine has none; Debian's package is `postgresql`.
    """
    found = shutil.which("initdb") or max(glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    if found is None:
        pytest.skip("this machine has no PostgreSQL")
    programs = Path(found).resolve().parent
    with tempfile.TemporaryDirectory() as place:
        # PostgreSQL refuses to run as root.
        other = {"user": "postgres"} if os.geteuid() == 0 else {}
        if other:
            shutil.chown(place, **other)
        subprocess.run(
            [programs / "initdb", "--auth=trust", "--username=tests", "--no-sync", f"{place}/data"],
            check=True,
            stdout=subprocess.DEVNULL,
            **other,
        )
        server = subprocess.Popen(
            [programs / "postgres", "-D", f"{place}/data", "-k", place, "-c", "listen_addresses="],
            stderr=subprocess.DEVNULL,
            **other,
        )
        try:
            ready = [programs / "pg_isready", "--quiet", "--host", place]
            until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL's start", PATIENCE)
            url = f"postgresql:///postgres?host={place}&user=tests"
            with psycopg.connect(url, autocommit=True) as connection:
                yield connection
        finally:
            server.send_signal(signal.SIGINT)  # ends its connections, too
            server.wait(PATIENCE)


def start(database: psycopg.Connection, emulator) -> subprocess.Popen[bytes]:
    """Start the example in a new process."""
    return subprocess.Popen(
        [sys.executable, example.__file__, database.info.dsn, TOPIC],
        env={**os.environ, **environment(emulator)},
    )


def count(database: psycopg.Connection) -> int:
    (found,) = database.execute("SELECT count(*) FROM events").fetchone()
    return found


def test_killed_copy_has_each_event_once(run_emulator, database):
    """After twenty kills at random moments, the table has each event once.

    It has no primary key here, so only the transaction of rows and position keeps it so.
    """
    emulator = run_emulator(settings=Settings(events_per_response=7))
    database.execute(example.SCHEMA)
    database.execute("ALTER TABLE events DROP CONSTRAINT events_pkey")
    chosen = random.Random(printed_seed())
    before_the_end = 0
    for kill in range(KILLS):
        emulator.publish(TOPIC, orders(EVENTS, first=kill * EVENTS))
        wanted = count(database) + chosen.randrange(EVENTS)
        with start(database, emulator) as process:
            until(lambda wanted=wanted: count(database) >= wanted, "rows", PATIENCE)
            process.kill()
        before_the_end += count(database) < (kill + 1) * EVENTS
    assert before_the_end > KILLS // 2
    with start(database, emulator) as process:
        until(lambda: count(database) >= KILLS * EVENTS, "the last rows", PATIENCE)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    values = [value for (value,) in database.execute("SELECT value FROM events")]
    numbers = sorted(int(value["Order_Number__c"]) for value in values)
    print(f"{before_the_end} of {KILLS} kills came before the last event")
    assert numbers == list(range(KILLS * EVENTS))


def test_repeated_event_is_stored_once(run_emulator, connect, database):
    """An event that the service sends under two replay ids gives one row."""
    emulator = run_emulator()
    with connect(emulator).open_publisher(TOPIC, created_by=USER) as publisher:
        for name in ("first", "first", "second"):
            publisher.send({}, event_id=name)
    assert emulator.bus.tip() == 3
    database.execute(example.SCHEMA)
    with start(database, emulator) as process:
        until(lambda: count(database) >= 2, "two rows", PATIENCE)
        process.terminate()
    assert process.returncode == 0
    assert count(database) == 2
