"""Tests in which unchanged clients of other projects read and change records.

Run with `-m foreign`. The packages are fetched once, at pinned versions, into a cache directory
outside of the tree.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import events, select
from tests.emulator.test_foreign_clients import run
from tests.streaming.test_foreign import CACHE, needs_node, node_packages

pytestmark = pytest.mark.foreign

HERE = Path(__file__).parent
SIMPLE_SALESFORCE = "simple-salesforce==1.12.10"

ORDERS = "/data/Order__ChangeEvent"


def changed_records(emulator: EmulatorServer) -> dict[str, int]:
    """Return how many records the change events of orders name, by change type."""
    counts: dict[str, int] = {}
    for event in events(emulator, ORDERS):
        header = event["ChangeEventHeader"]
        kind = header["changeType"]
        counts[kind] = counts.get(kind, 0) + len(header["recordIds"])
    return counts


@needs_node
def test_jsforce(tmp_path):
    """jsforce can create, read, update, upsert, query, describe and delete records.

    It does so one at a time and in bulk, and each change publishes a change event.
    """
    modules = str(node_packages() / "node_modules")
    with EmulatorServer(tmp_path) as emulator:
        select(emulator, "Order__c")
        program = str(HERE / "jsforce_records.cjs")
        seen = json.loads(run("node", program, emulator.http_url, NODE_PATH=modules))
        assert seen == {
            "created": True,
            "total": 6,
            "upserted": True,
            "again": True,
            "many": [True, True, False],
            "refused": "REQUIRED_FIELD_MISSING",
            "found": ["a", "b"],
            "fields": True,
            "objects": ["Account", "Contact", "Opportunity", "Order__c"],
            "loaded": 500,
            "failed": 0,
            "fetched": 500,
            "owners": ["user@example.com"],
            "counted": [504],
            "read": 500,
            "deleted": [True, True],
            "afterwards": "ENTITY_IS_DELETED",
        }
        assert changed_records(emulator) == {"CREATE": 504, "UPDATE": 2, "DELETE": 3}


@needs_node
def test_node_sf_bulk2(tmp_path):
    """node-sf-bulk2 signs in with a given token, and can insert and query records in bulk."""
    modules = str(node_packages() / "node_modules")
    with EmulatorServer(tmp_path) as emulator:
        select(emulator, "Order__c")
        program = str(HERE / "loader_records.cjs")
        where = [emulator.http_url, emulator.access_token]
        seen = json.loads(run("node", program, *where, NODE_PATH=modules))
        assert seen == {
            "loaded": "JobComplete",
            "processed": 1501,
            "successful": 1500,
            "failed": 1,
            "sets": [1000, 500],
            "left": 0,
        }
        assert changed_records(emulator) == {"CREATE": 1500}


def test_simple_salesforce(tmp_path):
    """simple-salesforce can change and query records over TLS, page by page and in bulk."""
    venv = CACHE / "simple_salesforce"
    python = str(venv / "bin" / "python")
    if not (venv / SIMPLE_SALESFORCE).exists():
        run(sys.executable, "-m", "venv", str(venv))
        run(python, "-m", "pip", "install", "--quiet", SIMPLE_SALESFORCE)
        (venv / SIMPLE_SALESFORCE).touch()
    with EmulatorServer(tmp_path, tls=True) as emulator:
        select(emulator, "Order__c")
        program = str(HERE / "simple_salesforce_records.py")
        seen = json.loads(run(python, program, emulator.http_url, str(emulator.ca_file)))
        assert seen == {
            "created": True,
            "updated": 204,
            "total": 6,
            "upserted": [201, 200],
            "by_external_id": "3",
            "refused": "REQUIRED_FIELD_MISSING",
            "deleted": 204,
            "afterwards": "ENTITY_IS_DELETED",
            "fields": True,
            "objects": 4,
            "loaded": 2500,
            "failed": 0,
            "sets": 3,
            "read": 2500,
            "queried": 2500,
            "iterated": 2500,
            "sandbox": True,
            "counted": [2500, "bulk 999"],
            "owner": "user@example.com",
            "composite": ["OPERATION_ENQUEUED"] * 2,
            "removed": 2500,
        }
        assert changed_records(emulator) == {"CREATE": 2502, "UPDATE": 2, "DELETE": 2501}
