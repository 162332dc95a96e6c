"""Reading the records of an org: one, a query, a query page by page. Changes nothing.

With a lag, what is read is what the org held that long ago, as the answers of a real org stay
behind its bus: see `Past`.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
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
    no_column,
    no_object,
    no_record,
)
from sfpubsub.emulator.org.records.table import Row, Table
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Snapshot, Store

_CURSORS = 10
"""Queries of one user whose rows are not all fetched; one more ends the oldest. Documented."""

_PLACE_DIGITS = 12
"""More than any number of rows has."""

_SNAPSHOTS = 4
"""Of the time that reads lag behind, into how many parts it is cut."""


@dataclass(frozen=True)
class Found:
    """The rows of a query.

    Attributes:
        of: The object that was asked for.
        total: How many rows there are; of COUNT() the count, and no rows.
        rows: Values by field, in the order of the query.
    """

    of: SObject
    total: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Page:
    """Some rows of a query.

    Attributes:
        of: The object that was asked for.
        total: How many rows the query has; of COUNT() the count, and no rows.
        rows: Values by field, in the order of the query.
        ids: The ids of the rows.
        rest: What the next page is asked for with; blank if there is none.
    """

    of: SObject
    total: int
    rows: list[dict[str, Any]]
    ids: list[str]
    rest: str


@dataclass(frozen=True)
class _Cursor:
    user_id: str
    plan: queries.Plan
    numbers: array[int]
    size: int


class Past:
    """What the store held a while ago. Thread-safe.

    A snapshot is taken before a change, so that the oldest one that is younger than the lag is what
    was there then; with changes in quick succession some share one, and are seen up to a quarter
    of the lag too early.

    Args:
        store: Whose past.
        clock: What time it is.
        lag_s: How long ago; 0 is now.
    """

    def __init__(self, store: Store, clock: Clock, lag_s: float) -> None:
        self._store = store
        self._clock = clock
        self._lag_s = lag_s
        self._lock = threading.Lock()  # held over a read, so that nobody closes what is read
        self._snapshots: list[tuple[float, Snapshot]] = []

    def remember(self) -> None:
        """A change comes: keep what is there before it."""
        if not self._lag_s:
            return
        with self._lock:
            now = self._clock.now()
            self._forget(now)
            if not self._snapshots or now - self._snapshots[-1][0] > self._lag_s / _SNAPSHOTS:
                self._snapshots.append((now, self._store.snapshot()))

    def rows(self, sql: str, *given: object) -> list[Any]:
        """All rows of a query, as they were."""
        if not self._lag_s:
            return self._store.rows(sql, *given)
        with self._lock:
            self._forget(self._clock.now())
            source = self._snapshots[0][1] if self._snapshots else self._store
            return source.rows(sql, *given)

    def _forget(self, now: float) -> None:
        while self._snapshots and self._snapshots[0][0] <= now - self._lag_s:
            self._snapshots.pop(0)[1].close()


class Reading:
    """The objects of one org, and reads of their records. Thread-safe.

    Args:
        store: Where they live.
        past: What is read from.
    """

    def __init__(self, store: Store, past: Past) -> None:
        self._store = store
        self._past = past
        # Replaced as a whole when an object changes, so that readers need no lock.
        self._tables: dict[str, Table] = {}
        self._cursor_lock = threading.Lock()  # guards the cursors
        self._cursors: dict[str, _Cursor] = {}
        self._cursor_number = 0

    # Objects.

    def objects(self) -> list[str]:
        """The names of all objects."""
        return sorted(table.of.name for table in self._tables.values())

    def describe(self, name: str) -> SObject:
        """One object, by its name in either case.

        Raises:
            RecordProblem: There is no such object.
        """
        return self.table(name).of

    def table(self, name: str) -> Table:
        """The table of an object, by its name in either case.

        Raises:
            RecordProblem: There is no such object.
        """
        found = self._tables.get(name.lower())
        if found is None:
            raise no_object(name)
        return found

    def by_prefix(self, record_id: str) -> SObject | None:
        """The object that an id belongs to; None if no object has its prefix."""
        for table in self._tables.values():
            if table.of.key_prefix == record_id[:3]:
                return table.of
        return None

    # Who may see what.

    def may_see(self, of: SObject, row: Row, user: User) -> bool:
        """Whether a user may see a row."""
        return self.sees_all(user) or row.get("OwnerId", user.user_id) == user.user_id

    def sees_all(self, user: User) -> bool:
        """Whether a user sees the records of everybody."""
        return user.view_all

    def missed(self, record_id: str) -> None:
        """Somebody asked for a record that is not there."""

    # Reading.

    def get(
        self,
        name: str,
        record_id: str,
        fields: Sequence[str] | None = None,
        user: User | None = None,
    ) -> dict[str, Any]:
        """A record as JSON has it.

        Args:
            name: Its object.
            record_id: 15 or 18 characters.
            fields: Which fields; None is all.
            user: Who asks; None may see everything.

        Raises:
            RecordProblem: It is not there, was deleted, or has no such field.
        """
        table = self.table(name)
        full = values.full_id(record_id)
        row = table.get(full, self._past.rows)
        if row is None or (user is not None and not self.may_see(table.of, row, user)):
            self.missed(full)
            raise no_record(record_id)
        if row["IsDeleted"]:
            raise is_deleted()
        return self._shown(table.of, row, fields)

    def find(
        self, name: str, field: str, value: str, fields: Sequence[str] | None, user: User
    ) -> list[dict[str, Any]]:
        """The records that have a value in an external id field.

        Raises:
            RecordProblem: The field is not an external id.
        """
        table = self.table(name)
        item = table.of.field(field)
        if item is None or not item.external_id:
            text = f"Provided external ID field does not exist or is not accessible: {field[:80]}"
            raise RecordProblem("NOT_FOUND", text, status=404)
        rows = table.where(
            f'"{item.name}" = ? AND NOT IsDeleted', [values.keep(item, value)], self._past.rows
        )
        return [
            self._shown(table.of, row, fields) for row in rows if self.may_see(table.of, row, user)
        ]

    def query(self, text: str, user: User, *, deleted: bool = False) -> Found:
        """The rows of a query, all at once.

        Args:
            text: SOQL; see `soql`.
            user: Who asks.
            deleted: Whether rows in the Recycle Bin are found too.

        Raises:
            RecordProblem: It cannot be read, or asks for what there is not.
        """
        plan = self.plan(text, user, deleted=deleted)
        if plan.select.counts:
            return Found(plan.of, self._past.rows(plan.count, *plan.values)[0][0], [])
        show = plan.shower()
        rows = [show(row) for row in self._past.rows(plan.rows, *plan.values)]
        return Found(plan.of, len(rows), rows)

    def plan(self, text: str, user: User, *, deleted: bool = False) -> queries.Plan:
        """A query made ready.

        Raises:
            RecordProblem: As `query`.
        """
        try:
            select = soql.parse(text)
        except soql.Malformed as error:
            raise RecordProblem("MALFORMED_QUERY", str(error)) from error
        of = self.table(select.of).of
        owner = None if self.sees_all(user) else user.user_id
        return queries.plan(of, select, deleted=deleted, owner=owner)

    def page(self, text: str, user: User, size: int, *, deleted: bool = False) -> Page:
        """The first rows of a query.

        Args:
            text: SOQL.
            user: Who asks.
            size: How many rows, at most.
            deleted: Whether rows in the Recycle Bin are found too.

        Raises:
            RecordProblem: As `query`.
        """
        plan = self.plan(text, user, deleted=deleted)
        if plan.select.counts:
            return Page(plan.of, self._past.rows(plan.count, *plan.values)[0][0], [], [], "")
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
        return self._page(name, cursor, 0)

    def next_page(self, rest: str, user: User) -> Page:
        """More rows of a query.

        Args:
            rest: As of the page before.
            user: Who asked.

        Raises:
            RecordProblem: It is not a locator of a query of this user, or no longer.
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
        return self._page(name, cursor, int(start))

    def _page(self, name: str, cursor: _Cursor, start: int) -> Page:
        plan, numbers = cursor.plan, cursor.numbers[start : start + cursor.size]
        show = plan.shower()
        marks = ", ".join("?" * len(numbers))
        found = {
            row[0]: row[1:]
            for row in self._past.rows(
                f"SELECT n, Id, {', '.join(plan.columns)} FROM {plan.table} WHERE n IN ({marks})",  # noqa: S608
                *numbers,
            )
        }
        there = [found[number] for number in numbers if number in found]
        end = start + len(numbers)
        rest = f"{name}-{end}" if end < len(cursor.numbers) else ""
        rows, ids = [show(row[1:]) for row in there], [str(row[0]) for row in there]
        return Page(plan.of, len(cursor.numbers), rows, ids, rest)

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
