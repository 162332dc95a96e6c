"""Copy the events of a topic into a table of PostgreSQL, each exactly once.

    python examples/postgres.py postgresql://localhost/orders /event/Order_Event__e

A transaction holds a batch's rows and the position after them, so whatever kills this program, it
goes on where the table ends. The primary key drops an event that the service itself repeats, as
after a move of the org. Needs `pip install 'psycopg[binary]'`. The SFPUBSUB_ variables set the org
and the credentials, as for the command line.
"""

from __future__ import annotations

import signal
import sys

import psycopg

from sfpubsub import PubSubClient, ReplayId

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    topic TEXT, key BYTEA, name TEXT NOT NULL, value JSON NOT NULL, PRIMARY KEY (topic, key)
);
CREATE TABLE IF NOT EXISTS positions (topic TEXT PRIMARY KEY, replay_id BYTEA NOT NULL)
"""
LOCK = "SELECT pg_advisory_lock(hashtext(%s))"
FIND = "SELECT replay_id FROM positions WHERE topic = %s"
ADD = "INSERT INTO events VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
MOVE = """
INSERT INTO positions VALUES (%s, %s)
ON CONFLICT (topic) DO UPDATE SET replay_id = excluded.replay_id
"""


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    url, topic = sys.argv[1:]
    with psycopg.connect(url, autocommit=True) as database, PubSubClient.from_env() as client:
        # Waits until the database has noticed the death of the program that held it before. Such
        # a lock is held as long as the connection, so every later transaction has it too.
        database.execute(LOCK, [topic])
        database.execute(SCHEMA)
        position = database.execute(FIND, [topic]).fetchone()
        start = ReplayId(position[0]) if position else "earliest"
        with client.subscribe(topic, replay=start) as subscription:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: subscription.stop())
            for batch in subscription:
                rows = [(topic, e.dedupe_key, e.event_name, e.to_json()) for e in batch]
                with database.transaction(), database.cursor() as cursor:
                    cursor.executemany(ADD, rows)
                    cursor.execute(MOVE, [topic, bytes(batch.last_replay_id)])


if __name__ == "__main__":
    main()
