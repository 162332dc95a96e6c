"""Delayed change events, which are stored together with their change and published when due.

The first delayed event starts a thread that waits on the org's clock. Events that become due while
the emulator is not running are published at the next start.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.bus import Bus, Draft, Topic
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.store import Store

_TABLE = """CREATE TABLE IF NOT EXISTS late_events (
    number INTEGER PRIMARY KEY, due REAL NOT NULL, topics TEXT NOT NULL,
    schema_id TEXT NOT NULL, payload BLOB NOT NULL)"""


class LateEvents:
    """The delayed events of one org. Thread-safe.

    Args:
        store: The store for the events that are not due yet.
        bus: The bus to which the events are published.
        clock: The org's clock.
    """

    def __init__(self, store: Store, bus: Bus, clock: Clock) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        # Guards the fields below. A thread that needs both locks acquires that of the bus first.
        self._changed = threading.Condition()
        self._next: float | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        store.run(_TABLE)
        clock.on_jump(self._wake)

    def start(self) -> None:
        """Await the events that an earlier process scheduled."""
        first = self._store.rows("SELECT min(due) FROM late_events")[0][0]
        if first is not None:
            self._await(first)

    def add(self, due: float, carriers: Sequence[Topic], draft: Draft) -> None:
        """Schedule an event. Call this inside a transaction of the bus.

        Args:
            due: Time of publication, in seconds since the epoch.
            carriers: The topics and channels that receive the event.
            draft: The event.
        """
        names = json.dumps([topic.name for topic in carriers])
        self._store.run(
            "INSERT INTO late_events (due, topics, schema_id, payload) VALUES (?, ?, ?, ?)",
            due,
            names,
            draft.schema_id,
            draft.payload,
        )
        self._await(due)

    def stop(self) -> None:
        """Stop the thread. This method can be called repeatedly."""
        self._clock.off_jump(self._wake)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _await(self, due: float) -> None:
        with self._changed:
            self._next = due if self._next is None else min(due, self._next)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emulator-late", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and (self._next is None or self._next > self._clock.now()):
                    self._changed.wait(self._clock.timeout(self._next))
                if self._stopping:
                    return
                self._next = None
            self._publish()

    def _publish(self) -> None:
        """Publish the events that are due."""
        with self._bus.together() as batch:
            rows = self._store.rows(
                "SELECT number, topics, schema_id, payload FROM late_events WHERE due <= ?"
                " ORDER BY due, number",
                batch.at,
            )
            for number, names, schema_id, payload in rows:
                carriers = self._still_there(json.loads(names))
                if carriers:
                    batch.add(carriers[0].name, [Draft(payload, schema_id)], only=carriers)
                self._store.run("DELETE FROM late_events WHERE number = ?", number)
            first = self._store.rows("SELECT min(due) FROM late_events")[0][0]
        if first is not None:
            self._await(first)

    def _still_there(self, names: Sequence[str]) -> list[Topic]:
        """Return the topics and channels with these names that still exist. A channel may have been
        deleted since the event was scheduled.
        """
        found: list[Topic] = []
        for name in names:
            with contextlib.suppress(Refused):
                found.append(self._bus.topic(name))
        return found
