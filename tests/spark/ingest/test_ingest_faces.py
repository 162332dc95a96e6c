"""What an ingest promises, through the command and through the object."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.spark.raw.sources import Source
from tests.client.test_managed import NAME, TOPIC, orders
from tests.spark.ingest.faces import Command, Object
from tests.streaming.conftest import numbered

pytestmark = pytest.mark.spark

ORDERS = Source("topic", TOPIC)
MANAGED = Source("managed", NAME)
ONCE = IngestSettings(until_caught_up=True, idle_timeout=5)


# In a parallel run, with the tests that share its session (tests/spark/conftest.py).
OBJECT = pytest.param("object", marks=pytest.mark.xdist_group("spark-ingest"))


@pytest.fixture(params=["command", OBJECT])
def ingest(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Command | Object:
    """One of the two faces. Only the object needs the tests' session."""
    if request.param == "command":
        return Command()
    return Object(request.getfixturevalue("spark"), caplog)


def ids_of(table: Path) -> list[str]:
    """Return the event ids in a Parquet table, sorted."""
    return sorted(ds.dataset(table, format="parquet").to_table()["event_id"].to_pylist())


def gaps_of(table: Path) -> list[dict[str, object]]:
    """Return the stored gaps of a Parquet table."""
    files = (table.parent / f".{table.name}.sfpubsub" / "_gaps").glob("*.json")
    return [json.loads(file.read_text()) for file in files]


def test_on_source_failure_continue_keeps_the_other_sources(ingest, run_emulator, tmp_path: Path):
    """With the policy `continue`, a failed topic does not stop the table's other sources. The run
    fails all the same.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    emulator.publish_streaming("/topic/Accounts", numbered(2))
    channel = Source("channel", "/topic/Accounts")
    gone = Source("topic", "/event/Gone__e")
    settings = IngestSettings(until_caught_up=True, idle_timeout=2, on_source_failure="continue")
    done = ingest(emulator, [MANAGED, ORDERS, gone, channel], tmp_path / "org", settings)
    assert done.code == 1, done.said
    assert "topic /event/Gone__e failed, continuing without it: " in done.said
    lines = {line.get("managed") or line.get("topic") or line["channel"]: line
             for line in done.lines}  # fmt: skip
    assert lines["/event/Gone__e"]["ending"] == "failed"
    assert lines["/topic/Accounts"]["rows"] == 2
    assert lines["/topic/Accounts"]["position"].isdecimal()
    both = [lines[TOPIC], lines[NAME]]
    assert [line["received"] for line in both] == [3, 3]
    assert sum(line["rows"] for line in both) == 3, "an event from two sources was stored twice"
    rows = ds.dataset(tmp_path / "org", format="parquet").to_table().to_pylist()
    assert sorted(row["ingest_seq"] for row in rows) == list(range(5))
    channel_rows = [row for row in rows if row["subscription"] == "/topic/Accounts"]
    names = [json.loads(row["payload"])["sobject"]["Name"] for row in channel_rows]
    assert names == ["0", "1"]


def test_a_managed_position_lost_while_the_job_was_down_is_one_gap(
    ingest, run_emulator, tmp_path: Path
):
    """After 80 h down, the service has dropped the committed position and starts elsewhere without
    an error. The run warns, counts one gap, stores it, and writes the events from there; the next
    run does not find the gap again.
    """
    emulator = run_emulator(settings=Settings(keepalive_s=0.3))
    emulator.publish(TOPIC, orders(3))
    table = tmp_path / "org"
    assert ingest(emulator, [MANAGED], table, ONCE).code == 0
    emulator.publish(TOPIC, orders(1, 3))  # expires before it is received
    emulator.clock.jump(80 * 3600.0)
    emulator.publish(TOPIC, orders(2, 4))
    runs = [ingest(emulator, [MANAGED], table, ONCE) for _ in range(2)]
    assert [done.code for done in runs] == [0, 0], runs[0].said
    lines = [line for done in runs for line in done.lines]
    assert [line["gaps"] for line in lines] == [1, 0]
    assert [done.said.count("(expired)") for done in runs] == [1, 0], runs[0].said
    assert [line["rows"] for line in lines] == [2, 0]
    assert [gap["reason"] for gap in gaps_of(table)] == ["expired"]


def test_a_user_who_may_not_see_every_record_is_a_gap(ingest, run_emulator, tmp_path: Path):
    """Salesforce delivers no changes to a user without View All, and names no error: the run says
    what to grant, and stores a gap that names the object.
    """
    emulator = run_emulator(settings=Settings(keepalive_s=0.3))
    emulator.accounts.put_user("limited@example.com", "secret", view_all=False)
    token = emulator._sessions.issue("limited@example.com")
    accounts = Source("topic", "/data/AccountChangeEvent")
    settings = IngestSettings(idle_timeout=10)
    done = ingest(emulator, [accounts], tmp_path / "t", settings, SFPUBSUB_ACCESS_TOKEN=token)
    assert done.code == 0, done.said
    assert "grant the user View All" in done.said
    assert done.lines[0]["gaps"] == 1
    (found,) = gaps_of(tmp_path / "t")
    assert (found["reason"], found["entity"]) == ("rights", "Account")


@pytest.mark.slow
def test_a_rejected_position_stops_the_job_without_a_fallback(ingest, run_emulator, tmp_path: Path):
    """A rejected position ends the run with its own error, and no gap is recorded. With a fallback,
    the run continues and records the gap.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    table, once = tmp_path / "t", IngestSettings(until_caught_up=True, idle_timeout=1)
    assert ingest(emulator, [ORDERS], table, once).code == 0
    emulator.faults.add(Fault("reset_stream"))
    emulator.publish(TOPIC, orders(2))
    stopped = ingest(emulator, [ORDERS], table, once)
    assert stopped.code == 4, stopped.said
    assert stopped.lines[0]["ending"] == "failed"
    assert gaps_of(table) == []
    on = IngestSettings(until_caught_up=True, idle_timeout=1, fallback="earliest")
    went_on = ingest(emulator, [ORDERS], table, on)
    assert went_on.code == 0, went_on.said
    assert (went_on.lines[0]["rows"], went_on.lines[0]["gaps"]) == (2, 1)
    assert [gap["reason"] for gap in gaps_of(table)] == ["rejected"]
    assert len(ids_of(table)) == 5


def test_a_run_that_cannot_begin_leaves_no_table(ingest, run_emulator, tmp_path: Path):
    """Neither a topic that does not exist nor a rejected session creates a table; the latter has an
    exit code of its own.
    """
    emulator = run_emulator()
    gone = ingest(emulator, [Source("topic", "/event/Gone__e")], tmp_path / "t", ONCE)
    assert (gone.code, gone.lines) == (1, [])
    expired = {"SFPUBSUB_ACCESS_TOKEN": "00D000000000001!expired"}
    refused = ingest(emulator, [ORDERS], tmp_path / "t", ONCE, **expired)
    assert (refused.code, refused.lines) == (3, []), refused.said
    assert not (tmp_path / "t").exists()


def test_the_events_of_two_orgs_are_never_in_one_table(ingest, tmp_path: Path):
    """The session of another org is rejected before an event is read."""
    with (
        EmulatorServer(tmp_path / "one", org_id="00D000000000001") as one,
        EmulatorServer(tmp_path / "other", org_id="00D000000000009") as other,
    ):
        one.publish(TOPIC, orders(3))
        other.publish(TOPIC, orders(2))
        assert ingest(one, [ORDERS], tmp_path / "t", ONCE).code == 0
        refused = ingest(other, [ORDERS], tmp_path / "t", ONCE)
        assert (refused.code, refused.lines) == (2, [])
    assert len(ids_of(tmp_path / "t")) == 3
