"""The durable state of the org: one SQLite file in the data directory.

The store only reads and writes rows; its callers decide which rows are valid. Invariant: once a
method has returned, its changes are kept even if the process is killed; in a `transaction`, this
holds once the transaction has ended.

The database uses WAL with synchronous=NORMAL, which hands each commit to the operating system. This
is enough if only the process is killed. FULL would add an fsync to each publish, to survive a crash
of the whole machine, which an emulator does not promise.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sfpubsub.emulator.org.block_file import BlockFile

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS schemas (
    schema_id TEXT PRIMARY KEY, topic TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, schema_id TEXT NOT NULL,
    can_publish INTEGER NOT NULL, can_subscribe INTEGER NOT NULL,
    published INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS channel_members (
    channel TEXT NOT NULL, topic TEXT NOT NULL, PRIMARY KEY (channel, topic)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY, event_id TEXT NOT NULL, schema_id TEXT NOT NULL,
    payload BLOB NOT NULL, at REAL NOT NULL);
-- The events of each topic and channel, in the order in which streams read them.
CREATE TABLE IF NOT EXISTS topic_log (
    topic_id INTEGER NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (topic_id, position)) WITHOUT ROWID;
-- Positions without an event, and the times at which they were created.
CREATE TABLE IF NOT EXISTS marks (position INTEGER PRIMARY KEY, at REAL NOT NULL);
-- Times never decrease with the position, so these find a position by its time.
CREATE INDEX IF NOT EXISTS events_at ON events (at);
CREATE INDEX IF NOT EXISTS marks_at ON marks (at);
CREATE TABLE IF NOT EXISTS managed (
    id TEXT PRIMARY KEY, developer_name TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    topic TEXT NOT NULL, default_replay TEXT NOT NULL, error_recovery_replay TEXT NOT NULL,
    state TEXT NOT NULL, committed INTEGER, created_at REAL NOT NULL,
    modified_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS users (
    username TEXT PRIMARY KEY, password TEXT NOT NULL, active INTEGER NOT NULL,
    number INTEGER NOT NULL UNIQUE) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS apps (
    client_id TEXT PRIMARY KEY, client_secret TEXT NOT NULL, run_as TEXT NOT NULL,
    public_key TEXT NOT NULL) WITHOUT ROWID;
-- Refresh tokens; those of a family descend from the same one by rotation. used_at: time of the
-- last use, or of issue.
CREATE TABLE IF NOT EXISTS refresh_tokens (
    token TEXT PRIMARY KEY, client_id TEXT NOT NULL, username TEXT NOT NULL,
    family TEXT NOT NULL, used_at REAL NOT NULL, good INTEGER NOT NULL) WITHOUT ROWID;
-- PushTopics and generic channels; fields is JSON.
CREATE TABLE IF NOT EXISTS streaming_records (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL)
    WITHOUT ROWID;
-- Custom channels, and the members of these and of the standard channel; enriched is JSON.
CREATE TABLE IF NOT EXISTS event_channels (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, label TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS channel_selections (
    id TEXT PRIMARY KEY, developer_name TEXT NOT NULL UNIQUE, channel TEXT NOT NULL,
    entity TEXT NOT NULL, filter_expression TEXT NOT NULL, enriched TEXT NOT NULL) WITHOUT ROWID;
-- Valid access tokens. family: of the refresh token used; own: whether it is the emulator's.
CREATE TABLE IF NOT EXISTS access_tokens (
    token TEXT PRIMARY KEY, username TEXT NOT NULL, family TEXT NOT NULL,
    own INTEGER NOT NULL, made_at REAL NOT NULL);
"""

_LAYOUT = 3
"""Version of the database tables; a file of another version is rejected."""

_COUNTERS = (
    "tip",
    "users_made",
    "managed_made",
    "channels_made",
    "permissions_made",
    "streaming_made",
)
"""Keys of `meta` with the highest number in the ids of a kind; rows and jobs are numbered by
SQLite.
"""

_NOW = ("commit_base", "clock_jumped")
"""Keys of `meta` that `Store.restore` leaves as they are: numbers and times never go back."""

_OWN = "name NOT LIKE 'sqlite_%'"

_BEHIND_ALL = 2**62
"""Larger than any position."""


class StoreProblem(Exception):  # noqa: N818 - a report about a file, not about the program
    """Raised if the database cannot be used; the message names the file."""


class Event(NamedTuple):
    """An event in the log; `payload` is encoded with the schema `schema_id`."""

    position: int
    event_id: str
    schema_id: str
    payload: bytes


class Store:
    """The database of one data directory.

    Thread-safe: there is one connection, guarded by a lock that is held during a `transaction`.

    Args:
        path: The database file. This file, and the file for `blocks` in the same directory, are
            created if they do not exist.

    Attributes:
        blocks: Encoded events, in a separate file that `transaction` does not cover.

    Raises:
        StoreProblem: The file is not a database of this version, or cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._lock = threading.RLock()  # serialises use of the one connection
        try:
            # isolation_level None: transactions begin and end only here.
            # uri: so that `restore` can attach a copy for reading only.
            self._db = sqlite3.connect(
                path.absolute().as_uri(), uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreProblem(f"cannot open the database {path}: {error}") from error
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            version = int(self.meta("layout", str(_LAYOUT)))
            self.set_meta("layout", str(version))
            self.blocks: BlockFile = BlockFile(path.with_name("blocks.sqlite3"))
        except (sqlite3.Error, ValueError) as error:
            self._db.close()
            raise StoreProblem(f"cannot use the database {path}: {error}") from error
        if version != _LAYOUT:
            self.close()
            raise StoreProblem(
                f"{path} was created by another version of the emulator (layout {version}),"
                " which is needed to open it"
            )

    def close(self) -> None:
        """Close the database, its snapshots, and the block file."""
        for snapshot in list(self._snapshots):
            snapshot.close()
        self.blocks.close()
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body of a `with` statement as a transaction. Its changes are committed at the
        end; an exception rolls back all of them. Inside another transaction, they are committed
        with that one.
        """
        with self._lock:
            if self._db.in_transaction:
                begin, undo, end = "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"
            else:
                begin, undo, end = "BEGIN IMMEDIATE", "ROLLBACK", "COMMIT"
            self._db.execute(begin)
            try:
                yield
            except BaseException:
                self._db.execute(undo)
                raise
            self._db.execute(end)

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Execute a query, and return all of its rows."""
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def run(self, sql: str, *values: object) -> None:
        """Execute one statement. Outside a `transaction`, its changes are committed immediately."""
        with self._lock:
            self._db.execute(sql, values)

    def save(self, path: Path) -> None:
        """Write a copy of the database, which `restore` can read. An existing file is replaced at
        once, so a killed process leaves no half of a copy.

        Raises:
            OSError: The file cannot be written to.
        """
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it has secrets
        with self._lock:
            try:
                self._db.execute("VACUUM INTO ?", (str(new),))
            except sqlite3.Error as error:
                raise OSError(str(error)) from error
        new.replace(path)

    def restore(self, path: Path, at: float) -> None:
        """Replace the contents by those of a copy that `save` wrote, and close this store: what was
        read from it before must not be written to it any more.

        Access tokens and the jobs of the Bulk API are not restored. The numbers of new ids go on
        above the highest that was ever used.

        Args:
            path: The copy.
            at: The current time, in seconds since the epoch.

        Raises:
            StoreProblem: The copy is not a database of this version; nothing has changed.
        """
        with self._lock:
            try:
                self._db.execute("ATTACH ? AS saved", (f"{path.absolute().as_uri()}?mode=ro",))
                try:
                    layout = "SELECT value FROM saved.meta WHERE key = 'layout'"
                    if self.rows(layout) != [(str(_LAYOUT),)]:
                        raise StoreProblem(f"{path} is of another version of the emulator")
                    self.blocks.forget(_BEHIND_ALL)  # before: a killed process keeps no stale copy
                    with self.transaction():
                        self._replace(at)
                finally:
                    self._db.execute("DETACH saved")
            except sqlite3.Error as error:
                raise StoreProblem(f"cannot restore {path}: {error}") from error
            self.close()

    def _replace(self, at: float) -> None:
        before, numbers = dict(self.rows("SELECT * FROM main.meta")), self._numbers("main")
        for name, number in self._numbers("saved").items():
            numbers[name] = max(number, numbers.get(name, 0))
        tables = f"SELECT name FROM {{}}.sqlite_master WHERE type = 'table' AND {_OWN}"  # noqa: S608
        for (name,) in self.rows(tables.format("main")):
            self.run(f'DROP TABLE main."{name}"')
        made = f"SELECT sql FROM saved.sqlite_master WHERE sql <> '' AND {_OWN} ORDER BY type DESC"  # noqa: S608
        for (sql,) in self.rows(made):  # tables before their indexes
            self.run(sql)
        for (name,) in self.rows(tables.format("saved")):
            self.run(f'INSERT INTO main."{name}" SELECT * FROM saved."{name}"')  # noqa: S608
        for table in ("access_tokens", "jobs", "sqlite_sequence"):
            self.run(f"DELETE FROM main.{table}")  # noqa: S608 - fixed names
        for numbered in numbers.items():
            self.run("INSERT INTO main.sqlite_sequence VALUES (?, ?)", *numbered)
        tip = int(self.meta("tip", "0"))
        for key in _COUNTERS:
            self.set_meta(key, str(max(int(before.get(key, "0")), int(self.meta(key, "0")))))
        for key in before.keys() & _NOW:
            self.set_meta(key, before[key])
        if int(self.meta("tip")) > tip:
            self.run("INSERT INTO main.marks VALUES (?, ?)", int(self.meta("tip")), at)

    def _numbers(self, of: str) -> dict[str, int]:
        return dict(self.rows(f"SELECT name, seq FROM {of}.sqlite_sequence"))  # noqa: S608 - fixed

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the database, in which later changes are not visible."""
        with self._lock:
            made = Snapshot(self._path)
            self._snapshots.add(made)
            return made

    def meta(self, key: str, default: str = "") -> str:
        """Return the string stored under a key, or *default* if the key is unknown."""
        found = self.rows("SELECT value FROM meta WHERE key = ?", key)
        return str(found[0][0]) if found else default

    def set_meta(self, key: str, value: str) -> None:
        """Store a string under a key, replacing any earlier value."""
        self.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def append(self, topic_ids: Sequence[int], events: Sequence[Event], at: float) -> None:
        """Add events to the log of each topic. Call this inside a `transaction`.

        Args:
            topic_ids: Ids of the topics and channels to whose logs the events are added.
            events: The events.
            at: Time of publication, in seconds since the epoch.
        """
        with self._lock:
            self._db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)", [(*event, at) for event in events]
            )
            for topic_id in topic_ids:
                self._db.executemany(
                    "INSERT INTO topic_log VALUES (?, ?)",
                    [(topic_id, event.position) for event in events],
                )
                self._db.execute(
                    "UPDATE topics SET published = published + ? WHERE id = ?",
                    (len(events), topic_id),
                )

    def events_after(self, topic_id: int, position: int, limit: int) -> list[Event]:
        """Return at most *limit* events of a topic after *position*, in order."""
        found = self.rows(
            "SELECT e.position, e.event_id, e.schema_id, e.payload FROM topic_log AS l"
            " JOIN events AS e ON e.position = l.position"
            " WHERE l.topic_id = ? AND l.position > ? ORDER BY l.position LIMIT ?",
            topic_id,
            position,
            limit,
        )
        # Same as `Event._make`, without a Python call for each row.
        return [tuple.__new__(Event, row) for row in found]

    def newest_events(self, topic_id: int, position: int, limit: int) -> list[tuple[Event, float]]:
        """Return the newest events of a topic after *position*, at most *limit* of them, newest
        first, each with its publication time in seconds since the epoch.
        """
        found = self.rows(
            "SELECT e.position, e.event_id, e.schema_id, e.payload, e.at FROM topic_log AS l"
            " JOIN events AS e ON e.position = l.position"
            " WHERE l.topic_id = ? AND l.position > ? ORDER BY l.position DESC LIMIT ?",
            topic_id,
            position,
            limit,
        )
        return [(Event._make(row[:4]), float(row[4])) for row in found]

    def times_after(self, topic_id: int, position: int, limit: int) -> list[tuple[int, float]]:
        """Return the newest events of a topic after *position*, at most *limit* of them, oldest
        first.

        Each is a tuple of its position and its publication time in seconds since the epoch.
        """
        found = self.rows(
            "SELECT e.position, e.at FROM topic_log AS l"
            " JOIN events AS e ON e.position = l.position"
            " WHERE l.topic_id = ? AND l.position > ? ORDER BY l.position DESC LIMIT ?",
            topic_id,
            position,
            limit,
        )
        return [(int(row[0]), float(row[1])) for row in reversed(found)]

    def purge(self, through: int, most: int) -> bool:
        """Delete the oldest events and marks (positions without events) up to and including a
        position, at most *most* of each.

        Returns:
            Whether all of them are deleted.
        """
        with self.transaction():
            end = through
            for table in ("events", "marks"):
                found = self.rows(
                    f"SELECT position FROM {table} WHERE position <= ?"  # noqa: S608 - fixed names
                    " ORDER BY position LIMIT 1 OFFSET ?",
                    through,
                    most - 1,
                )
                end = min([end, *found[0]]) if found else end
            self._delete_through(end)
            self.set_meta("purged_through", str(through))
        return end == through

    def forget_through(self, position: int) -> None:
        """Delete the events up to and including a position, and the marks (positions without
        events) in the same range. Call this inside a `transaction`.
        """
        self._delete_through(position)
        self.set_meta("purged_through", str(position))

    def _delete_through(self, position: int) -> None:
        self.run(  # by the key of each topic: the table has no index by position alone
            "DELETE FROM topic_log WHERE topic_id IN (SELECT id FROM topics) AND position <= ?",
            position,
        )
        self.run("DELETE FROM events WHERE position <= ?", position)
        self.run("DELETE FROM marks WHERE position <= ?", position)
        self.blocks.forget(position)

    def renumber(self, above: int) -> int:
        """Move all events to positions above *above*, keeping the gaps, and delete all marks
        (positions without events) and all blocks. Call this inside a `transaction`.

        Args:
            above: A position that is not below the newest one.

        Returns:
            The new position of the newest event; *above* if there are no events.
        """
        oldest: int | None
        newest: int | None
        oldest, newest = self.rows("SELECT min(position), max(position) FROM events")[0]
        self.run("DELETE FROM marks")
        self.blocks.forget(above + 1)
        if oldest is None or newest is None:
            return above
        shift = above + 1 - oldest
        for table in ("topic_log", "events"):
            # Every new number is above every old one, so no two rows collide.
            self.run(f"UPDATE {table} SET position = position + ?", shift)  # noqa: S608 - fixed names
        return newest + shift

    def newest_before(self, at: float) -> int | None:
        """Return the newest position that was created, with or without an event, before *at*
        (seconds since the epoch). Return None if there is no such position.
        """
        newest = "SELECT position FROM {} WHERE at < ? ORDER BY at DESC, position DESC LIMIT 1"
        found = [
            row[0] for table in ("events", "marks") for row in self.rows(newest.format(table), at)
        ]
        return max(found, default=None)

    def newest_time(self) -> float:
        """Return the newest time of an event or mark, in seconds since the epoch; 0 if there is
        none.
        """
        found = self.rows(
            "SELECT max(at) FROM (SELECT max(at) AS at FROM events"
            " UNION ALL SELECT max(at) FROM marks)"
        )
        return float(found[0][0] or 0.0)

    def oldest(self) -> float | None:
        """Return the time at which the oldest stored position, with or without an event, was
        created, in seconds since the epoch. Return None if no positions are stored.
        """
        found = self.rows(
            "SELECT min(at) FROM (SELECT * FROM (SELECT at FROM events ORDER BY position LIMIT 1)"
            " UNION ALL SELECT * FROM (SELECT at FROM marks ORDER BY position LIMIT 1))"
        )
        return None if found[0][0] is None else float(found[0][0])


class Snapshot:
    """A read-only snapshot of the database. Thread-safe.

    It holds a connection to the database until `close` is called.

    Args:
        path: The database file.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # serialises use of the connection
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        self._db.execute("BEGIN")
        # The read starts the snapshot: later changes are not visible.
        self._db.execute("SELECT 1 FROM meta").fetchone()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Execute a query, and return all of its rows."""
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def stream(self, sql: str, *values: object) -> Generator[Any, None, None]:
        """Execute a query, and yield its rows one by one. Only one query can run at a time.

        Other calls to this snapshot's methods, including `close`, block until the generator is
        exhausted or closed. Close the generator if you do not consume it completely.
        """
        with self._lock:
            yield from self._db.execute(sql, values)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()
