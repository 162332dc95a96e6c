"""The records of one org: what all wires use. Knows none of them.

A record and the event of its change become durable in one transaction of the bus. All changes of
records run one after another, in the order of their events.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.accounts import Accounts, User
from sfpubsub.emulator.org.bus import Batch, Bus, Draft
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records import changes, queries, values
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import (
    RecordProblem,
    is_deleted,
    no_column,
    no_object,
    no_record,
)
from sfpubsub.emulator.org.records.schemas import ChangeSchema, change_schema
from sfpubsub.emulator.org.records.table import Catalog, Row, Table
from sfpubsub.emulator.org.records.writing import Transaction
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

ALL_CHANGES = "/data/ChangeEvents"
"""The channel of every selected object."""

_COMMIT_BASE = 10_000_000_000
"""Commit numbers begin above this, as those of an org that has lived for a while."""


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


class Records:
    """Objects and their records. Thread-safe.

    Args:
        store: Where they live, beside the events.
        bus: Where their changes are published.
        clock: What time it is.
        settings: Limits and habits.
        faults: Programmed failures.
        accounts: Who can own records and change them.
    """

    def __init__(
        self,
        store: Store,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        faults: FaultPlan,
        accounts: Accounts,
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._faults = faults
        self._accounts = accounts
        self._catalog = Catalog(store)
        # Replaced as a whole when an object changes, so that readers need no lock.
        self._tables: dict[str, Table] = {}
        self._schemas: dict[str, tuple[ChangeSchema, Schema]] = {}
        self._numbers: dict[str, int] = {}  # guarded by the transaction of the bus
        for definition in self._catalog.definitions():
            self._take(SObject(json.loads(definition)))

    # Objects.

    def objects(self) -> list[str]:
        """The names of all objects."""
        return sorted(table.of.name for table in self._tables.values())

    def describe(self, name: str) -> SObject:
        """One object, by its name in either case.

        Raises:
            RecordProblem: There is none.
        """
        return self.table(name).of

    def put_object(self, of: SObject) -> None:
        """Make an object, or change its fields; its change events have the new schema from now on.

        Raises:
            ValueError: Its key prefix belongs to another object.
        """
        other = self.by_prefix(of.key_prefix)
        if other is not None and other.name != of.name:
            raise ValueError(f"{of.name}: the key prefix {of.key_prefix} belongs to {other.name}")
        self._catalog.put(of.name, json.dumps(of.definition))
        self._take(of)

    # Records.

    def create(self, name: str, given: Mapping[str, Any], user: User, origin: str = "") -> str:
        """Make a record.

        Args:
            name: Its object.
            given: Values by field.
            user: Who makes it.
            origin: Which API and client, for the header of the change event.

        Returns:
            Its id.

        Raises:
            RecordProblem: There is no such object, or the values do not fit.
        """
        with self.transaction(user, origin) as changing:
            return changing.create(name, given)

    def update(
        self, name: str, record_id: str, given: Mapping[str, Any], user: User, origin: str = ""
    ) -> None:
        """Change fields of a record.

        Raises:
            RecordProblem: It is not there, or the values do not fit.
        """
        with self.transaction(user, origin) as changing:
            changing.update(name, record_id, given)

    def upsert(
        self,
        name: str,
        external_field: str,
        value: Any,
        given: Mapping[str, Any],
        user: User,
        origin: str = "",
    ) -> tuple[str, bool]:
        """Change the record that has a value in an external id field, or make it.

        Returns:
            Its id, and whether it was made.

        Raises:
            RecordProblem: As `create` and `update`.
        """
        with self.transaction(user, origin) as changing:
            return changing.upsert(name, external_field, value, given)

    def delete(self, name: str, record_id: str, user: User, origin: str = "") -> None:
        """Put a record into the Recycle Bin.

        Raises:
            RecordProblem: It is not there.
        """
        with self.transaction(user, origin) as changing:
            changing.delete(name, record_id)

    def undelete(self, name: str, record_id: str, user: User, origin: str = "") -> None:
        """Take a record out of the Recycle Bin.

        Raises:
            RecordProblem: It is not in it.
        """
        with self.transaction(user, origin) as changing:
            changing.undelete(name, record_id)

    @contextlib.contextmanager
    def transaction(self, user: User, origin: str = "") -> Iterator[Transaction]:
        """Several changes that become durable together, with their events.

        An exception takes all of them back.
        """
        with self._bus.together() as batch:
            changing = Transaction(self, user, batch.at)
            yield changing
            if changing.changes:
                self._publish(batch, changing.changes, user, origin)

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
        row = table.get(full)
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
        rows = table.where(f'"{item.name}" = ? AND NOT IsDeleted', [values.keep(item, value)])
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
            return Found(plan.of, self._store.rows(plan.count, *plan.values)[0][0], [])
        show = plan.shower()
        rows = [show(row) for row in self._store.rows(plan.rows, *plan.values)]
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

    # For transactions.

    def table(self, name: str) -> Table:
        """The table of an object, by its name in either case.

        Raises:
            RecordProblem: There is no such object.
        """
        found = self._tables.get(name.lower())
        if found is None:
            raise no_object(name)
        return found

    def number(self, of: SObject) -> int:
        """A number that no row of the object ever had."""
        self._numbers[of.name] += 1
        return self._numbers[of.name]

    def by_prefix(self, record_id: str) -> SObject | None:
        """The object that an id belongs to; None if it is none's."""
        for table in self._tables.values():
            if table.of.key_prefix == record_id[:3]:
                return table.of
        return None

    def is_user(self, record_id: str) -> bool:
        """Whether it is the id of a user."""
        return self._accounts.by_id(record_id) is not None

    def may_see(self, of: SObject, row: Row, user: User) -> bool:
        """Whether a user may see a row."""
        return self.sees_all(user) or row.get("OwnerId", user.user_id) == user.user_id

    def sees_all(self, user: User) -> bool:
        """Whether a user sees the records of everybody."""
        return True

    def missed(self, record_id: str) -> None:
        """Somebody asked for a record that is not there."""

    # Inside.

    def _take(self, of: SObject) -> None:
        """Make the tables and the topic of an object ready, and use it from now on."""
        table = Table(self._store, of)
        number = table.prepare()
        layout = change_schema(of)
        schema = self._topic(of, layout.text)
        with self._bus.together():  # no change is under way
            self._numbers[of.name] = max(number, self._numbers.get(of.name, 0))
            self._schemas = {**self._schemas, of.name: (layout, schema)}
            self._tables = {**self._tables, of.name.lower(): table}

    def _topic(self, of: SObject, text: str) -> Schema:
        """Give the topic of an object its schema; what is so already stays."""
        try:
            known = self._bus.schema(self._bus.topic(of.topic).schema_id)
        except Refused:
            known = None
        if known is not None and known.text == text:
            return known
        schema = Schema(text)
        if of.change_events and (known is None or known.schema_id != schema.schema_id):
            self._bus.put_topic(of.topic, schema, can_publish=False)
        return schema

    def _publish(
        self, batch: Batch, made: Sequence[changes.Change], user: User, origin: str
    ) -> None:
        commit = changes.Commit(
            batch.at, _COMMIT_BASE + batch.tip, user.user_id, origin, str(uuid.uuid4())
        )
        events = changes.events(
            [change for change in made if change.of.change_events],
            commit,
            lambda of: self._schemas[of.name][0],
            most_records=self._settings.change_event_records,
            most_changes=self._settings.overflow_changes,
        )
        for event in events:
            schema = self._schemas[event.of.name][1]
            payload = schema.encode(event.values, batch.at)
            if len(payload) > self._settings.event_bytes:
                payload = schema.encode(event.as_gap().values, batch.at)
            batch.add(event.of.topic, [Draft(payload, schema.schema_id)])

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
