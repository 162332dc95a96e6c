"""Tests of `mirror verify`, which compares a table with the org, and of `mirror signal`, which
stores a request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.auth.session import Session
from sfpubsub.cli.main import run
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import PermissionDeniedError
from sfpubsub.rest import OrgReader
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror.mailbox import Mailbox
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.values import of_json
from sfpubsub.spark.mirror.verifying import Difference, Verification, Why
from sfpubsub.spark.records.bounded import entry_row
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.rows import FLAGS
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.tables import open_target
from tests.rest.support import QUICK, reader_of
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World

ORDERS = 30
MARGIN = 300.0


class Lake:
    """A mirrored table with the orders of an org at one moment, and a reread queue."""

    def __init__(self, spark: SparkSession, emulator: EmulatorServer, path: Path) -> None:
        self.spark, self.path = spark, path
        self.reader: OrgReader = reader_of(emulator)
        columns = Columns.of(self.reader.describe("Order__c"))
        soql = f"SELECT {', '.join(columns.selected)} FROM Order__c"
        rows = [row for page in self.reader.query(soql) for row in page.rows]
        self.ids = [row["Id"] for row in rows]
        values = [{**row, "Gone__c": "kept"} for row in of_json(columns, rows).to_pylist()]
        flags = {**dict.fromkeys(FLAGS.names), "_is_deleted": False, "_reread": False}
        flags["_commit_timestamp"] = datetime.now(UTC)
        gone = pa.field("Gone__c", pa.string())  # of a field that the org has no longer
        self.schema = pa.schema([("record_id", pa.string()), *columns.schema, gone, *FLAGS])
        self.rows = {row["record_id"]: {**row, **flags} for row in values}

    def write(self, **entries: Reason) -> None:
        """Write the rows to the table, and queue each record id in *entries* for its reason."""
        with open_target(self.spark, self.path, TABLE_FORMAT) as target:
            table = target.table("Order__c")
            table.make(self.schema, {}, merged=True)
            rows = pa.Table.from_pylist(list(self.rows.values()), self.schema)
            table.merge(frame_of_rows(target.spark, rows), "t.record_id = s.record_id", 1)
            queue = MirrorQueue(target)
            queue.make(of_mirror=True, with_history=False)
            queue.add(
                [
                    entry_row("Order__c", record_id, Cue(reason, None, None, 7), 1)
                    for record_id, reason in entries.items()
                ],
                1,
            )

    def differences(self, later: float = 2 * MARGIN, **options: Any) -> dict[str, Difference]:
        """Verify the table as if *later* seconds had passed.

        Return the differences by record id.
        """
        self.verification = Verification(
            self.spark, self.reader, self.path, "order__c", format=TABLE_FORMAT, margin=MARGIN,
            clock=lambda: time.time() + later, **options,
        )  # fmt: skip
        return {each.record_id: each for each in self.verification.differences()}


@pytest.fixture
def emulator(run_emulator: Callable[..., EmulatorServer]) -> Iterator[EmulatorServer]:
    emulator = run_emulator()
    user = emulator.accounts.holder("")
    with emulator.records.transaction(user) as changing:
        for number in range(ORDERS):
            order = {"Name": f"order {number}", "Quantity__c": number, "Price__c": 0.0033333333333}
            changing.create("Order__c", order)
    return emulator


def test_every_difference_is_reported_with_its_possible_reason(
    spark: SparkSession,
    emulator: EmulatorServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    """A difference is explained if the record is queued, recently changed or purged, or the field
    is a formula.

    Other differences are reported without a reason, and equal records are not reported. Neither are
    the values of a field that the org no longer has, and a number that the table has rounded; the
    first record with one is logged, once for the whole comparison.
    """
    lake = Lake(spark, emulator, tmp_path / "lake")
    queued, formula, purged, wrong, unknown, stranger = lake.ids[:6]
    lake.rows[queued]["Name"] = "old"
    lake.rows[formula]["Total__c"] = None
    lake.rows[formula]["Status__c"] = "Draft"
    lake.rows[wrong]["Ship_On__c"] = datetime(2026, 1, 2, tzinfo=UTC).date()
    del lake.rows[unknown]
    lake.rows[stranger]["_is_deleted"] = True
    user = emulator.accounts.holder("")
    emulator.records.update("Order__c", formula, {"Price__c": 2.5}, user)
    lake.rows[formula] |= {  # the mirror has received the event of this update
        "Price__c": pa.scalar("2.5").cast(pa.decimal128(18, 2)).as_py(),
        "LastModifiedDate": datetime.fromisoformat(
            emulator.records.get("Order__c", formula)["LastModifiedDate"]
        ),
        "_commit_timestamp": datetime.now(UTC),
    }
    lake.write(**{queued: Reason.GAP})
    recent, late, gone = lake.ids[6:9]
    emulator.records.update("Order__c", recent, {"Name": "new"}, user)
    emulator.records.delete("Order__c", gone, user)
    emulator.records.purge(purged)
    made = emulator.records.create("Order__c", {"Name": "made"}, user)
    caplog.clear()
    found = lake.differences()
    assert len([each for each in caplog.messages if each.startswith("Price__c of record")]) == 1
    assert {record_id: each.why for record_id, each in found.items()} == {
        queued: Why.QUEUED,
        formula: Why.UNREPORTED,
        recent: Why.RECENT,
        gone: Why.RECENT,
        made: Why.RECENT,
        purged: Why.PURGED,
        wrong: None,
        unknown: None,
        stranger: None,
    }
    assert found[formula].fields.keys() == {"Total__c"}
    assert found[wrong].fields == {"Ship_On__c": (None, datetime(2026, 1, 2).date())}
    assert (found[unknown].in_org, found[unknown].in_table) == (True, False)
    assert (found[gone].in_org, found[gone].in_table) == (False, True)
    assert late not in found
    assert lake.verification.compared == ORDERS + 1  # including a record made since
    assert lake.verification.equal == ORDERS + 1 - len(found)
    assert sum(lake.verification.differing.values()) == len(found)
    # Within the margin of 300 seconds, every change of the org counts as recent.
    assert lake.differences(later=0.0)[unknown].why is Why.RECENT
    sampled = lake.differences(sample=5)
    assert lake.verification.compared == 5
    assert sampled.keys() <= found.keys()


def test_changes_after_the_mirror_stopped_are_explained(
    spark: SparkSession, run_emulator: Callable[..., EmulatorServer], tmp_path: Path
):
    """Changes that were made after a mirror stopped are explained as recent, although its table
    has not had a single event, however long ago they were. Changes from before its last read are
    not, and the counts add up.
    """
    world = World(spark, tmp_path, run_emulator(), TABLE_FORMAT)
    old = world.create(5)
    with world.mirror() as mirror:
        world.settle(mirror)
    made = world.create(3)
    for record_id in old[:2]:
        world.update(record_id, Phone="1")
    world.emulator.records.delete("Account", old[2], world.user)
    reader = reader_of(world.emulator)

    def verified(margin: float) -> dict[str, int]:
        found = Verification(
            spark, reader, world.to, "Account", format=TABLE_FORMAT, margin=margin,
            clock=lambda: time.time() + 1e6,  # long after the margin
        )  # fmt: skip
        assert {each.record_id for each in found.differences()} == {*made, *old[:3]}
        assert found.compared == found.equal + sum(found.differing.values()) == 8
        return found.differing

    assert verified(MARGIN) == {Why.RECENT: 6}
    # Without a margin, the mirror's read counts as later by the margin that it had.
    assert verified(0.0) == {"unexplained": 6}


@pytest.mark.slow  # starts a JVM
def test_verify_prints_differences_and_fails_if_any_is_unexplained(
    emulator: EmulatorServer, spark: SparkSession, tmp_path: Path
):
    """`mirror verify` prints one line per difference and one with the counts.

    It exits with 1, because no reason for the difference is known.
    """
    lake = Lake(spark, emulator, tmp_path / "lake")
    lake.rows[lake.ids[0]]["Name"] = "old"
    lake.write()
    done = subprocess.run(
        [sys.executable, "-m", "sfpubsub", "mirror", "verify", "Order__c", "--to", str(lake.path),
         "--format", TABLE_FORMAT, "--margin", "0"],
        env={
            **_plain_environment(), "SFPUBSUB_INSTANCE_URL": emulator.instance_url,
            "SFPUBSUB_ACCESS_TOKEN": emulator.access_token,
            "SFPUBSUB_TENANT_ID": emulator.tenant_id, "SFPUBSUB_ENDPOINT": emulator.grpc_target,
            "SFPUBSUB_INSECURE": "1",
        },
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    difference, counts = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1, done.stderr
    assert difference == {
        "record_id": lake.ids[0], "in_org": True, "in_table": True, "why": None,
        "fields": {"Name": {"org": "order 0", "table": "old"}},
    }  # fmt: skip
    assert counts["compared"] == ORDERS
    assert counts["different"] == {"unexplained": 1}
    assert counts["api_calls"] > 0
    assert "30 records compared, 1 difference, 1 unexplained" in done.stderr


def test_verify_refuses_if_records_may_be_hidden(
    emulator: EmulatorServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
):
    """Without View All, `mirror verify` compares nothing and exits with 3. If the right is
    withdrawn for some time during a comparison, this ends with an error, too.
    """
    clerk = "clerk@example.com"
    emulator.accounts.put_user(clerk, view_all=False)
    token = emulator._sessions.issue(clerk)
    monkeypatch.setenv("SFPUBSUB_INSTANCE_URL", emulator.instance_url)
    monkeypatch.setenv("SFPUBSUB_ACCESS_TOKEN", token)
    monkeypatch.setenv("SFPUBSUB_TENANT_ID", emulator.tenant_id)
    assert run(["mirror", "verify", "Order__c", "--to", str(tmp_path / "lake")]) == 3
    assert "View All" in capsys.readouterr().err

    lake = Lake(spark, emulator, tmp_path / "lake")
    lake.rows[lake.ids[0]]["Name"] = "old"
    lake.write()
    emulator.accounts.put_user(clerk, view_all=True)
    session = Session(token, emulator.instance_url, emulator.tenant_id)
    reader = OrgReader(session, timings=QUICK)
    found = Verification(spark, reader, lake.path, "Order__c", TABLE_FORMAT).differences()
    assert next(found).record_id == lake.ids[0]
    for view_all in (False, True):
        emulator.accounts.put_user(clerk, view_all=view_all)
    with pytest.raises(PermissionDeniedError, match="withdrawn for some time"):
        list(found)


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SFPUBSUB")}


SIGNALS = [
    (["--reread", "Account"], ("reread", "Account", None)),
    (["--reread", "Account", "--where", "Name = 'x'"], ("reread", "Account", "Name = 'x'")),
    (["--add", "Order__c"], ("add", "Order__c", None)),
    (["--pause"], ("pause", None, None)),
    (["--resume"], ("resume", None, None)),
]


@pytest.mark.parametrize(("given", "wanted"), SIGNALS)
def test_a_signal_is_stored_in_the_mailbox_of_the_target(
    given: list[str], wanted: Any, tmp_path: Path, capsys: Any
):
    """`mirror signal` stores its request before it exits, without Spark if the target is local."""
    assert run(["mirror", "signal", "--to", str(tmp_path), *given]) == 0
    printed = json.loads(capsys.readouterr().out)
    (found,) = Mailbox(None, Destination.of_tables(tmp_path, TABLE_FORMAT)).waiting()
    assert (found.kind, found.entity, found.where) == wanted
    assert printed["id"] == found.id


def test_a_confirmation_carries_the_number_that_is_shown(tmp_path: Path, capsys: Any):
    """`mirror signal --confirm-deletes` shows how many rows wait, and confirms only that number. If
    none do, it sends nothing.
    """
    command = ["mirror", "signal", "--to", str(tmp_path), "--confirm-deletes", "Account"]
    mailbox = Mailbox(None, Destination.of_tables(tmp_path, TABLE_FORMAT))
    assert run(command) != 0
    assert mailbox.waiting() == []
    mailbox.show_parked({"Account": 12, "Contact": 3})
    capsys.readouterr()
    assert run(command) == 0
    shown = capsys.readouterr()
    (found,) = mailbox.waiting()
    assert (found.kind, found.entity, found.rows) == ("confirm", "Account", 12)
    assert json.loads(shown.out)["rows"] == 12
    assert "12 rows of Account" in shown.err


@pytest.mark.parametrize(
    "given", [[], ["--pause", "--resume"], ["--pause", "--where", "x"], ["--reread", "no; name"]]
)
def test_an_empty_ambiguous_or_invalid_signal_is_rejected(given: list[str], tmp_path: Path):
    """`mirror signal` fails and stores nothing if its options do not describe one valid request."""
    assert run(["mirror", "signal", "--to", str(tmp_path), *given]) != 0
    assert Mailbox(None, Destination.of_tables(tmp_path, TABLE_FORMAT)).waiting() == []
