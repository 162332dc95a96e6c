"""The records of one org: what all wires use. Knows none of them.

A record and the event of its change become durable in one transaction of the bus. All changes of
records run one after another, in the order of their events.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.accounts import Accounts, User
from sfpubsub.emulator.org.bus import Batch, Bus, Draft
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records import changes
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.reading import Past, Reading
from sfpubsub.emulator.org.records.schemas import ChangeSchema, change_schema
from sfpubsub.emulator.org.records.table import Catalog, Table
from sfpubsub.emulator.org.records.writing import Transaction
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

ALL_CHANGES = "/data/ChangeEvents"
"""The channel of every selected object."""

_COMMIT_BASE = 10_000_000_000
"""Commit numbers begin above this, as those of an org that has lived for a while."""


class Records(Reading):
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
        super().__init__(store, Past(store, clock, settings.rest_lag_s))
        self._bus = bus
        self._settings = settings
        self._faults = faults
        self._accounts = accounts
        self._catalog = Catalog(store)
        self._schemas: dict[str, tuple[ChangeSchema, Schema]] = {}
        self._numbers: dict[str, int] = {}  # guarded by the transaction of the bus
        for definition in self._catalog.definitions():
            self._take(SObject(json.loads(definition)))

    # Objects.

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
            self._past.remember()
            changing = Transaction(self, user, batch.at)
            yield changing
            if changing.changes:
                self._publish(batch, changing.changes, user, origin)

    # For transactions.

    def number(self, of: SObject) -> int:
        """A number that no row of the object ever had."""
        self._numbers[of.name] += 1
        return self._numbers[of.name]

    def user(self, username: str) -> User:
        """The user of a name; the first one if it is gone."""
        return self._accounts.holder(username)

    def is_user(self, record_id: str) -> bool:
        """Whether it is the id of a user."""
        return self._accounts.by_id(record_id) is not None

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
