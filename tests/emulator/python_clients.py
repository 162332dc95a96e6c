"""Run other projects' Python clients, unchanged, against an emulator over TLS.

    python python_clients.py READY_FILE

Runs in a separate environment (python_clients.txt). Prints the results as one line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ready = json.loads(Path(sys.argv[1]).read_text())
# requests and httpx read these variables. The Pub/Sub API clients get the CA file from certifi when
# they are imported.
os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = ready["ca_file"]

import certifi  # noqa: E402

certifi.where = lambda: ready["ca_file"]

import aiosfpubsub  # noqa: E402
import pysfpubsub  # noqa: E402
from simple_salesforce import Salesforce, SalesforceLogin  # noqa: E402

TOPIC = "/event/Order_Event__e"
# Credentials of the emulator's user. A security token would be appended to the password.
USER = {"username": "user@example.com", "password": "emulator-password"}
GRPC = ready["grpc"].rpartition(":")
PLACE = {"url": ready["http"], "grpc_host": GRPC[0], "grpc_port": int(GRPC[2])}


class EnoughError(Exception):
    """Raised by a callback to end a subscription, for clients that offer no other way."""


class Reader:
    """A callback that decodes and requests events, and raises `EnoughError` after *count*."""

    def __init__(self, count: int) -> None:
        self.values: list[str] = []
        self._count = count

    def __call__(self, response: Any, client: Any) -> None:
        for item in response.events:
            schema = client.get_schema_json(item.event.schema_id)
            self.values.append(client.decode(schema, item.event.payload)["Order_Number__c"])
        if len(self.values) >= self._count:
            raise EnoughError
        if response.pending_num_requested == 0 and hasattr(client, "semaphore"):
            client.release_subscription_semaphore()


def with_simple_salesforce() -> dict[str, Any]:
    """Publish an event, list event objects and read a limit with simple-salesforce."""
    session, instance = SalesforceLogin(
        **USER, security_token="", scratch_url=ready["http"], sf_version="59.0"
    )
    salesforce = Salesforce(session_id=session, instance=instance, version="59.0")
    made = salesforce.Order_Event__e.create({"Order_Number__c": "simple-salesforce"})
    events = salesforce.toolingexecute(
        "query/", params={"q": "SELECT QualifiedApiName FROM EntityDefinition"}
    )
    limits = salesforce.limits()["HourlyPublishedPlatformEvents"]
    return {
        "success": made["success"],
        "entities": sorted(row["QualifiedApiName"] for row in events["records"]),
        "used": limits["Max"] - limits["Remaining"],
    }


def with_pysfpubsub() -> dict[str, Any]:
    """Publish one event and receive two with pysfpubsub."""
    client = pysfpubsub.Client(**USER, **PLACE)
    client.auth()
    topic = client.get_topic(TOPIC)
    schema = client.get_schema_json(topic.schema_id)
    values = {"CreatedDate": int(time.time() * 1000), "CreatedById": "005SB0000000001"}
    fields = {field["name"]: None for field in json.loads(schema)["fields"]}
    values = {**fields, **values, "Order_Number__c": "pysfpubsub"}
    event = client.format_payload(schema, topic.schema_id, values)
    published = client.publish(TOPIC, [event])
    reader = Reader(2)
    with contextlib.suppress(EnoughError):
        client.subscribe(TOPIC, "EARLIEST", b"", 1, reader)
    return {"published": len(published.results), "received": reader.values}


async def with_aiosfpubsub() -> dict[str, Any]:
    """Receive two events with aiosfpubsub."""
    client = aiosfpubsub.Client(**USER, **PLACE)
    client.auth()
    reader = Reader(2)
    with contextlib.suppress(EnoughError):
        await client.subscribe(TOPIC, "EARLIEST", b"", 10, reader)
    return {"topic": client.get_topic(TOPIC).topic_name, "received": reader.values}


seen = {
    "simple-salesforce": with_simple_salesforce(),
    "pysfpubsub": with_pysfpubsub(),
    "aiosfpubsub": asyncio.run(with_aiosfpubsub()),
}
print(json.dumps(seen), flush=True)
os._exit(0)  # the clients leave threads that never end
