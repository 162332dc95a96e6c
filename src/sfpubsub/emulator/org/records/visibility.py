"""Which objects and fields exist for whom: objects that were removed from the org, and objects and
fields that a user may not see, as with an org's object permissions and field-level security.

What is removed or hidden keeps its values, so that it can come back as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.problems import no_object
from sfpubsub.emulator.org.store import Store

_TABLES = (
    "CREATE TABLE IF NOT EXISTS removed_objects (name TEXT PRIMARY KEY) WITHOUT ROWID",
    # field: blank if the whole object is hidden.
    "CREATE TABLE IF NOT EXISTS hidden (username TEXT NOT NULL, object TEXT NOT NULL,"
    " field TEXT NOT NULL, PRIMARY KEY (username, object, field)) WITHOUT ROWID",
)

_WHOLE = ""


class Visibility:
    """The objects that are removed, and what is hidden from which user. Thread-safe.

    Args:
        store: The org's store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # one change at a time
        for table in _TABLES:
            store.run(table)
        self._hidden: Mapping[tuple[str, str], frozenset[str]] = {}  # replaced as a whole
        self._load()

    def removed(self) -> set[str]:
        """Return the names of the removed objects."""
        return {row[0] for row in self._store.rows("SELECT name FROM removed_objects")}

    def set_removed(self, name: str, removed: bool) -> None:
        """Store whether an object is removed."""
        if removed:
            self._store.run("INSERT OR IGNORE INTO removed_objects VALUES (?)", name)
        else:
            self._store.run("DELETE FROM removed_objects WHERE name = ?", name)

    def hide(self, username: str, object_name: str, field: str = _WHOLE) -> None:
        """Hide an object, or only one of its fields, from a user."""
        with self._lock:
            self._store.run(
                "INSERT OR IGNORE INTO hidden VALUES (?, ?, ?)", username, object_name, field
            )
            self._load()

    def show(self, username: str, object_name: str, field: str = _WHOLE) -> None:
        """Undo `hide`."""
        with self._lock:
            self._store.run(
                "DELETE FROM hidden WHERE username = ? AND object = ? AND field = ?",
                *(username, object_name, field),
            )
            self._load()

    def shown(self, of: SObject, username: str) -> SObject:
        """Return an object with the fields that a user may see.

        Raises:
            RecordProblem: The object is hidden from the user.
        """
        hidden = self._hidden.get((username, of.name))
        if hidden is None:
            return of
        if _WHOLE in hidden:
            raise no_object(of.name)
        return of.without(hidden)

    def _load(self) -> None:
        hidden: dict[tuple[str, str], frozenset[str]] = {}
        for username, name, field in self._store.rows("SELECT * FROM hidden"):
            hidden[username, name] = hidden.get((username, name), frozenset()) | {field}
        self._hidden = hidden
