"""A cache of encoded events, stored in blocks in a separate file next to the database.

The file contains only copies of data in the database, so it may lag behind the database, and can
be deleted whenever the emulator is stopped. The callers define the contents of a row and whether a
row is still valid.

The file is separate because its rows are large. With four times the usual page size, reading the
rows takes a third less time. In the database, that page size would make every small change write
four times as much data.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = 16 * 1024
"""Page size of the file in bytes. A row of 100 change events takes five pages. With 64 KiB,
reads would take a fifth less time, but twice as many bytes would be written.
"""

_TABLES = """
CREATE TABLE IF NOT EXISTS form (name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blocks (
    topic_id INTEGER NOT NULL, behind INTEGER NOT NULL, last INTEGER NOT NULL,
    contents BLOB NOT NULL, wire BLOB NOT NULL, PRIMARY KEY (topic_id, behind));
"""


class Block(NamedTuple):
    """All events of a topic in the range of positions (behind, last], encoded for sending.

    Attributes:
        behind: The position after which the block begins.
        last: Position of the last event.
        contents: An index of the events in `wire`, in the caller's format.
        wire: The encoded events.
    """

    behind: int
    last: int
    contents: bytes
    wire: bytes


class BlockFile:
    """The blocks of one data directory. Thread-safe: a lock guards the only connection.

    Args:
        path: The file; created if it does not exist.

    Raises:
        sqlite3.Error: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # serialises use of the one connection
        self._db = self._open()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def use(self, form: str) -> None:
        """Set the format of the blocks to store, and delete stored blocks of another format."""
        with self._lock:
            if self._form() == form:
                return
            if self._form() is not None:
                self._db.close()
                for end in ("", "-wal", "-shm"):  # faster than deleting the rows
                    self._path.with_name(self._path.name + end).unlink(missing_ok=True)
                self._db = self._open()
            self._db.execute("INSERT INTO form VALUES (?)", (form,))

    def put(self, topic_id: int, block: Block) -> None:
        """Store a block of a topic; a block that begins at the same position is replaced."""
        with self._lock:
            self._db.execute(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?)", (topic_id, *block)
            )

    def after(self, topic_id: int, position: int) -> Block | None:
        """Return the block that contains a topic's first event after *position*. Return None if no
        block of the topic begins at or before *position* and ends after it.
        """
        with self._lock:
            found = self._db.execute(
                "SELECT behind, last, contents, wire FROM blocks"
                " WHERE topic_id = ? AND behind <= ? ORDER BY behind DESC LIMIT 1",
                (topic_id, position),
            ).fetchone()
        return Block._make(found) if found and found[1] > position else None

    def end(self, topic_id: int) -> int:
        """Return the position at which the last block of a topic ends; 0 if it has no blocks."""
        with self._lock:
            found = self._db.execute(
                "SELECT last FROM blocks WHERE topic_id = ? ORDER BY behind DESC LIMIT 1",
                (topic_id,),
            ).fetchone()
        return int(found[0]) if found else 0

    def forget(self, position: int) -> None:
        """Delete every block, of any topic, whose `behind` is less than *position*."""
        with self._lock:
            topic_id = -1
            while (found := self._db.execute(_NEXT_TOPIC, (topic_id,)).fetchone()) is not None:
                topic_id = found[0]
                self._db.execute(
                    "DELETE FROM blocks WHERE topic_id = ? AND behind < ?", (topic_id, position)
                )

    def forget_topic(self, topic_id: int) -> None:
        """Delete all blocks of a topic."""
        with self._lock:
            self._db.execute("DELETE FROM blocks WHERE topic_id = ?", (topic_id,))

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        with contextlib.ExitStack() as undo:
            undo.callback(database.close)
            database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")  # the same setting as in `Store`
            database.executescript(_TABLES)
            undo.pop_all()
        return database

    def _form(self) -> str | None:
        found = self._db.execute("SELECT name FROM form").fetchone()
        return None if found is None else str(found[0])


_NEXT_TOPIC = "SELECT topic_id FROM blocks WHERE topic_id > ? ORDER BY topic_id LIMIT 1"
