"""Reads the records of an org by id, by external id, and with queries. Changes nothing.

On a real org, a change can appear on the event bus before the API returns it. To imitate this,
reads can return an earlier state of the records; see `Past`.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records import queries, values
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import (
    RecordProblem,
    is_deleted,
    malformed,
    no_column,
    no_object,
    no_record,
)
from sfpubsub.emulator.org.records.table import Row, Table
from sfpubsub.emulator.org.records.visibility import Visibility
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Snapshot, Store

_CURSORS = 10
"""Maximum number of unfinished queries of one user; a new query closes the oldest. Documented."""

_PLACE_DIGITS = 12
"""Maximum number of digits of the row position in a query locator; no query has so many rows."""

_NOTHING: Mapping[str, queries.Virtual] = {}

_SNAPSHOTS = 4
"""Number of intervals into which the lag is divided; each has at most one snapshot."""


@dataclass(frozen=True)
class Found:
    """The result of a query.

    Attributes:
        of: The queried object.
        total: Number of rows. For COUNT(), this is the count, and `rows` is empty.
        rows: Values by field name, in the order of the query.
    """

    of: SObject
    total: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Page:
    """One page of a query's rows.

    Attributes:
        plan: The query.
        total: Number of rows in the whole query. For COUNT(), this is the count, and `rows` is
            empty.
        rows: The records as JSON objects, in the order of the query.
        rest: Locator of the next page; blank on the last page.
    """

    plan: queries.Plan
    total: int
    rows: list[dict[str, Any]]
    rest: str


@dataclass(frozen=True)
class _Cursor:
    user_id: str
    plan: queries.Plan
    numbers: array[int]
    size: int


class Past:
    """Reads the contents that the store had `lag_s` seconds ago. Thread-safe.

    A snapshot of the store is taken before a change, and kept for `lag_s` seconds. Reads use the
    oldest snapshot, or the current state while there is no snapshot. Changes in quick succession
    share a snapshot, and can become visible up to a quarter of the lag too early.

    Args:
        store: The store to read.
        clock: The org's clock.
        lag_s: The lag in seconds; 0 reads the current state.
    """

    def __init__(self, store: Store, clock: Clock, lag_s: float) -> None:
        self._store = store
        self._clock = clock
        self._lag_s = lag_s
        self._lock = threading.Lock()  # held during a read, so that its snapshot is not closed
        self._snapshots: list[tuple[float, Snapshot]] = []

    def remember(self) -> None:
        """Take a snapshot, unless the newest one is at most a quarter of the lag old. Without a
        lag, do nothing. Call this before each change.
        """
        if not self._lag_s:
            return
        with self._lock:
            now = self._clock.now()
            self._forget(now)
            if not self._snapshots or now - self._snapshots[-1][0] > self._lag_s / _SNAPSHOTS:
                self._snapshots.append((now, self._store.snapshot()))

    def rows(self, sql: str, *given: object) -> list[Any]:
        """Run a query on the store's contents as of `lag_s` seconds ago, and return all rows."""
        if not self._lag_s:
            return self._store.rows(sql, *given)
        with self._lock:
            self._forget(self._clock.now())
            source = self._snapshots[0][1] if self._snapshots else self._store
            return source.rows(sql, *given)

    def now(self) -> float:
        """Return the time on the org's clock, in seconds since the epoch."""
        return self._clock.now()

    def catch_up(self) -> None:
        """Let reads return the current state. Call this after a change of an object's definition,
        because an earlier state does not have its columns.
        """
        with self._lock:
            while self._snapshots:
                self._snapshots.pop()[1].close()

    def _forget(self, now: float) -> None:
        while self._snapshots and self._snapshots[0][0] <= now - self._lag_s:
            self._snapshots.pop(0)[1].close()


class Reading:
    """Reads the objects of one org and their records. Thread-safe.

    Args:
        store: The store with the records.
        past: The state of the store that clients read.

    Attributes:
        visibility: What is hidden from which user.
    """

    def __init__(self, store: Store, past: Past) -> None:
        self._store = store
        self._past = past
        self.visibility: Visibility = Visibility(store)
        # Replaced as a whole when an object changes, so that readers need no lock.
        self._tables: dict[str, Table] = {}
        self._cursor_lock = threading.Lock()  # guards the cursors
        self._cursors: dict[str, _Cursor] = {}
        self._cursor_number = 0

    # Objects.

    def objects(self) -> list[str]:
        """Return the names of all objects, sorted."""
        return sorted(table.of.name for table in self._tables.values())

    def describe(self, name: str) -> SObject:
        """Return the object with this name, ignoring case.

        Raises:
            RecordProblem: There is no such object.
        """
        return self.table(name).of

    def seen(self, name: str, user: User | None) -> SObject:
        """Return the object with this name, ignoring case, with the fields that a user may see.

        Args:
            name: Name of the object.
            user: The requesting user; None may see everything.

        Raises:
            RecordProblem: There is no such object, or the user may not see it.
        """
        of = self.table(name).of
        return of if user is None else self.visibility.shown(of, user.username)

    def table(self, name: str) -> Table:
        """Return the table of the object with this name, ignoring case.

        Raises:
            RecordProblem: There is no such object.
        """
        found = self._tables.get(name.lower())
        if found is None:
            raise no_object(name)
        return found

    def by_prefix(self, record_id: str) -> SObject | None:
        """Return the object with the key prefix of a record id; None if no object has it."""
        for table in self._tables.values():
            if table.of.key_prefix == record_id[:3]:
                return table.of
        return None

    # Visibility.

    def may_see(self, of: SObject, row: Row, user: User) -> bool:
        """Return whether a user may see a row: any row with View All, otherwise a row that the user
        owns or that has no owner.
        """
        return user.sees_all(of.name) or row.get("OwnerId", user.user_id) == user.user_id

    def missed(self, record_id: str) -> None:
        """Called when a client requests a record that does not exist or that the client's user may
        not see. This implementation does nothing.
        """

    # Reading.

    def get(
        self,
        name: str,
        record_id: str,
        fields: Sequence[str] | None = None,
        user: User | None = None,
    ) -> dict[str, Any]:
        """Return the values of a record, converted for JSON, by field name.

        Args:
            name: Name of the object.
            record_id: 15- or 18-character id.
            fields: Names of the fields to return; None returns all.
            user: The requesting user; None allows access to all records.

        Raises:
            RecordProblem: The object, the record or a field does not exist, the record was deleted,
                or the user may not see it.
        """
        table, shown = self.table(name), self.seen(name, user)
        full = values.full_id(record_id)
        row = table.get(full, self._past.rows)
        if row is None or (user is not None and not self.may_see(table.of, row, user)):
            self.missed(full)
            raise no_record(record_id)
        if row["IsDeleted"]:
            raise is_deleted()
        return self._shown(shown, row, fields)

    def find(
        self, name: str, field: str, value: str, fields: Sequence[str] | None, user: User
    ) -> list[dict[str, Any]]:
        """Return the records that have a given value in an external id field and that the user may
        see, each as JSON values by field name.

        Args:
            name: Name of the object.
            field: Name of the external id field.
            value: The value, as text.
            fields: Names of the fields to return; None returns all.
            user: The requesting user.

        Raises:
            RecordProblem: The object or a field does not exist, *field* is not an external id, or
                the value is not valid for it.
        """
        table, shown = self.table(name), self.seen(name, user)
        item = shown.field(field)
        if item is None or not item.external_id:
            text = f"Provided external ID field does not exist or is not accessible: {field[:80]}"
            raise RecordProblem("NOT_FOUND", text, status=404)
        rows = table.where(
            f'"{item.name}" = ? AND NOT IsDeleted', [values.keep(item, value)], self._past.rows
        )
        return [
            self._shown(shown, row, fields) for row in rows if self.may_see(table.of, row, user)
        ]

    def query(self, text: str, user: User, *, deleted: bool = False) -> Found:
        """Run a query, and return all of its rows.

        Args:
            text: The query in SOQL; see `soql`.
            user: The requesting user.
            deleted: Whether to include rows in the Recycle Bin and archived rows.

        Raises:
            RecordProblem: The query cannot be parsed, uses an unknown object or field, or uses a
                field in an unsupported way.
        """
        plan = self.plan(text, user, deleted=deleted)
        if plan.select.counts:
            return Found(plan.of, self._past.rows(plan.count, *plan.values)[0][0], [])
        show = plan.shower()
        rows = [show(row) for row in self._past.rows(plan.rows, *plan.values)]
        return Found(plan.of, len(rows), rows)

    def plan(
        self,
        text: str,
        user: User,
        *,
        deleted: bool = False,
        computed: Mapping[str, queries.Virtual] = _NOTHING,
    ) -> queries.Plan:
        """Prepare a query without running it.

        Args:
            text: The query in SOQL; see `soql`.
            user: The requesting user.
            deleted: Whether to include rows in the Recycle Bin and archived rows.
            computed: Objects whose rows are not stored, by name in lower case.

        Raises:
            RecordProblem: As for `query`.
        """
        try:
            select = soql.parse(text)
        except soql.Malformed as error:
            raise malformed(error) from error

        def find(name: str) -> SObject | queries.Virtual:
            if name.lower() in computed and name.lower() not in self._tables:
                return computed[name.lower()]
            return self.seen(name, user)

        def owner(of: SObject) -> str | None:
            return None if user.sees_all(of.name) else user.user_id

        return queries.plan(select, queries.View(find, owner, deleted, self._past.now()))

    def page(
        self,
        plan: queries.Plan,
        user: User,
        size: int,
        link: queries.Link | None = None,
    ) -> Page:
        """Return the first page of a query.

        Args:
            plan: The query.
            user: The requesting user.
            size: Maximum number of rows in a page. A query with aggregates has only one page.
            link: Makes the member `attributes` of each record; None omits it.

        Raises:
            RecordProblem: The query has aggregates and finds more rows than fit in a page.
        """
        if plan.select.counts:
            return Page(plan, self._past.rows(plan.count, *plan.values)[0][0], [], "")
        if plan.select.aggregates:
            found = self._past.rows(plan.rows, *plan.values)
            if len(found) > size:
                text = "Aggregate query does not support queryMore(), use LIMIT to restrict"
                raise RecordProblem("EXCEEDED_ID_LIMIT", f"{text} the results to a single batch")
            return Page(plan, len(found), [*map(plan.shower(link), found)], "")
        numbers = array("q", (row[0] for row in self._past.rows(plan.numbers, *plan.values)))
        cursor = _Cursor(user.user_id, plan, numbers, size)
        name = ""
        if len(numbers) > size:
            with self._cursor_lock:
                self._cursor_number += 1
                name = eighteen(f"01gSB{self._cursor_number:010d}")
                self._cursors[name] = cursor
                own = [key for key, item in self._cursors.items() if item.user_id == user.user_id]
                for old in own[:-_CURSORS]:
                    del self._cursors[old]
        return self._page(name, cursor, 0, link)

    def next_page(self, rest: str, user: User, link: queries.Link | None = None) -> Page:
        """Return the next page of a query.

        Args:
            rest: The locator from the previous page.
            user: The user who ran the query.
            link: As for `page`.

        Raises:
            RecordProblem: The locator does not belong to an open query of this user.
        """
        name, _, start = rest.partition("-")
        with self._cursor_lock:
            cursor = self._cursors.get(name)
        if (
            cursor is None
            or cursor.user_id != user.user_id
            or not (start.isdecimal() and len(start) <= _PLACE_DIGITS)
        ):
            raise RecordProblem("INVALID_QUERY_LOCATOR", "invalid query locator")
        return self._page(name, cursor, int(start), link)

    def close_queries(self, of: SObject) -> None:
        """Close the unfinished queries of an object, whose columns have changed."""
        with self._cursor_lock:
            for name in [key for key, one in self._cursors.items() if one.plan.of.name == of.name]:
                del self._cursors[name]

    def _page(self, name: str, cursor: _Cursor, start: int, link: queries.Link | None) -> Page:
        plan, numbers = cursor.plan, cursor.numbers[start : start + cursor.size]
        show = plan.shower(link)
        sql = plan.numbered(len(numbers))
        found = {row[0]: row[1:] for row in self._past.rows(sql, *plan.shared, *numbers)}
        rows = [show(found[number]) for number in numbers if number in found]
        end = start + len(numbers)
        rest = f"{name}-{end}" if end < len(cursor.numbers) else ""
        return Page(plan, len(cursor.numbers), rows, rest)

    def _shown(self, of: SObject, row: Row, names: Sequence[str] | None) -> dict[str, Any]:
        fields: list[Field] = []
        for name in names if names is not None else [field.name for field in of.fields]:
            found = of.field(name)
            if found is None:
                raise no_column(name, of.name)
            fields.append(found)
        return {
            field.name: values.show(field, row.get(field.name))
            if field.is_stored
            else values.compound(
                {part: row.get(item.name) for part, item in of.parts(field.name).items()}
            )
            for field in fields
        }
