"""Publish events from an outbox, a database table that keeps them until Salesforce has them.

An application writes an event into the table ``outbox`` in the same transaction as the change that
the event reports, so that neither exists without the other. This program publishes the rows, in
order, and marks each one when it has the result. If it is killed at any moment and started again,
nothing is lost; rows that were sent but not marked are sent again with the same id, so that
subscribers can recognise duplicates.

    python examples/outbox.py orders.db /event/Order_Event__e

The SFPUBSUB_ variables set the org and the credentials, as for the command line.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from sfpubsub import EncodeError, PublishError, PubSubClient

# Rows read and marked at a time: a few requests of 200 events.
PAGE = 1000

SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY,      -- the order of publishing
    event_id TEXT NOT NULL UNIQUE,   -- created with the row, so that every attempt uses the same id
    event TEXT NOT NULL,             -- values by field name, as JSON
    sent_at TEXT,
    refused TEXT                     -- the reason of a permanent refusal, for a person to fix
)
"""


def open_database(path: str) -> sqlite3.Connection:
    """Open the database, and create the table if it does not exist."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(SCHEMA)
    return database


def put(database: sqlite3.Connection, event: Mapping[str, Any]) -> str:
    """Add an event, in the transaction of the change that it reports; return its id."""
    event_id = str(uuid.uuid4())
    database.execute(
        "INSERT INTO outbox (event_id, event) VALUES (?, ?)", (event_id, json.dumps(event))
    )
    return event_id


def publish_all(
    database: sqlite3.Connection, client: PubSubClient, topic: str, timeout: float = 120.0
) -> int:
    """Publish the rows that were not sent, and mark them; return how many were accepted.

    Raises PublishError if a row has no result after *timeout* seconds; the next run sends it again.
    """
    sent = 0
    with client.open_publisher(
        topic, ordered=True, created_by="005000000000001AAA", timeout=timeout
    ) as publisher:
        while rows := database.execute(
            "SELECT number, event_id, event FROM outbox"
            " WHERE sent_at IS NULL AND refused IS NULL ORDER BY number LIMIT ?",
            (PAGE,),
        ).fetchall():
            receipts = {}
            for number, event_id, event in rows:
                try:
                    receipts[number] = publisher.send(json.loads(event), event_id=event_id)
                except EncodeError as error:
                    refuse(database, number, str(error))
            failure = None
            try:
                publisher.flush()
            except PublishError as error:
                failure = error
            for number, receipt in receipts.items():
                try:
                    receipt.result()
                except PublishError as error:
                    if not error.retryable:
                        refuse(database, number, str(error))
                else:
                    database.execute(
                        "UPDATE outbox SET sent_at = datetime() WHERE number = ?", (number,)
                    )
                    sent += 1
            if failure is not None and any(r.retryable for r in failure.results):
                raise failure
    return sent


def refuse(database: sqlite3.Connection, number: int, reason: str) -> None:
    """Mark a row that was refused permanently, so that it does not block the others."""
    print(f"row {number} was refused: {reason}", file=sys.stderr)
    database.execute("UPDATE outbox SET refused = ? WHERE number = ?", (reason, number))


def main() -> None:
    """Publish all waiting rows once; run it repeatedly, with a timer for instance."""
    path, topic = sys.argv[1:]
    database = open_database(path)
    with PubSubClient.from_env() as client:
        print(publish_all(database, client, topic))


if __name__ == "__main__":
    main()
