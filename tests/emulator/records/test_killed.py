"""Tests that a record and its change event survive a kill together, or are both lost."""

from __future__ import annotations

import http.client
import json
import random
import threading

import pytest

from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.store import Store
from tests.conftest import until
from tests.emulator.support import ACCOUNTS

PATH = "/services/data/v67.0/sobjects/Account"


def make_changes(process, made: list[str]) -> None:
    """Create records and update each, until the emulator is killed; append their ids to *made*."""
    headers = {
        "Authorization": f"Bearer {process.ready['access_token']}",
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection(process.ready["http"].partition("//")[2])
    try:
        while True:
            connection.request("POST", PATH, json.dumps({"Name": "x"}), headers)
            made.append(json.loads(connection.getresponse().read())["id"])
            connection.request("PATCH", f"{PATH}/{made[-1]}", json.dumps({"Phone": "1"}), headers)
            connection.getresponse().read()
    except (OSError, http.client.HTTPException, ValueError):
        connection.close()


def check(directory, made: list[str]) -> None:
    """Check that stored records and events match after a kill.

    Each record has a creation event, and each updated record an update event. No event names a
    missing record, and every record in *made* exists.
    """
    store = Store(directory / "bus.sqlite3")
    rows = dict(store.rows("SELECT Id, Phone FROM rec_Account"))
    schemas = {row[0]: Schema(row[1]) for row in store.rows("SELECT schema_id, text FROM schemas")}
    told: dict[str, list[str]] = {"CREATE": [], "UPDATE": []}
    for schema_id, payload in store.rows(
        "SELECT events.schema_id, payload FROM events JOIN topic_log USING (position) JOIN topics"
        " ON topics.id = topic_id WHERE name = ? ORDER BY position",
        ACCOUNTS,
    ):
        header = schemas[schema_id].decode(payload)["ChangeEventHeader"]
        told[header["changeType"]] += header["recordIds"]
    store.close()
    assert told["CREATE"] == sorted(rows)
    assert told["UPDATE"] == sorted(one for one, phone in rows.items() if phone)
    assert set(made) <= set(rows), "a record whose creation was confirmed is missing"


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_kill_never_separates_a_record_from_its_event(spawn, tmp_path, rounds):
    """After kills at random moments, stored records and their change events match.

    Each round restarts the emulator on the same directory.
    """
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    made: list[str] = []
    for _ in range(rounds):
        process = spawn().wait_ready()
        enough = len(made) + chance.randrange(20, 120)
        worker = threading.Thread(target=make_changes, args=(process, made))
        worker.start()
        until(lambda enough=enough: len(made) >= enough, "enough records", 60)
        process.kill()
        worker.join()
        check(tmp_path / "data", made)
