"""The records of one org, used by the REST API, the Bulk API and the web page.

A change to a record and the event for the change become durable in one transaction of the bus.
Only one such transaction runs at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sfpubsub.emulator.faults.plan import Fault, FaultPlan
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.accounts import Accounts, User
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.cometd.channels import Channels
from sfpubsub.emulator.org.event_channels import Member
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.late import LateEvents
from sfpubsub.emulator.org.records.problems import RecordProblem, no_object, no_record
from sfpubsub.emulator.org.records.publishing import Publishing
from sfpubsub.emulator.org.records.reading import Past, Reading
from sfpubsub.emulator.org.records.schemas import ChangeSchema, change_schema
from sfpubsub.emulator.org.records.table import Catalog, Table
from sfpubsub.emulator.org.records.writing import Transaction, computed
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

_ROWS = 1000
"""Number of rows in one transaction when all rows of an object are recomputed."""


class Records(Reading):
    """The objects of one org and their records. Thread-safe.

    Args:
        store: The store for the records.
        bus: The bus to which change events are published.
        clock: The org's clock.
        settings: The org's settings.
        faults: The fault plan.
        accounts: The users who can own and change records.
        channels: The PushTopics. A change also publishes events to those that it concerns.
        late: Publishes delayed change events when they are due.

    Attributes:
        publishing: Publishes the events for changes.
    """

    def __init__(
        self,
        store: Store,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        faults: FaultPlan,
        accounts: Accounts,
        channels: Channels,
        late: LateEvents,
    ) -> None:
        super().__init__(store, Past(store, clock, settings.rest_lag_s))
        self._bus = bus
        self.publishing: Publishing = Publishing(store, bus, settings, faults, channels, late)
        self._settings = settings
        self._faults = faults
        self._accounts = accounts
        self._catalog = Catalog(store)
        # Purged records by id, with the fault that purged them. Not stored: lost with the process.
        self._purged: dict[str, Fault | None] = {}
        self._numbers: dict[str, int] = {}  # guarded by the transaction of the bus
        self._removed: dict[str, SObject] = {}  # by name in lower case
        gone = self.visibility.removed()
        for definition in self._catalog.definitions():
            of = SObject(json.loads(definition))
            if of.name in gone:
                self._removed[of.name.lower()] = of
            else:
                self._take(of)

    # Objects.

    def put_object(self, of: SObject, *, convert: bool = False) -> None:
        """Create an object, or change the fields of an existing one.

        Later change events use the new schema. The values of removed fields are deleted. Records
        get neither an event nor a new SystemModstamp.

        Args:
            of: The object.
            convert: Whether fields may get another type. Their values are converted; those that
                the new type does not allow are deleted.

        Raises:
            ValueError: The key prefix belongs to another object, or a field has a different type
                than before although *convert* is false.
        """
        other = self.by_prefix(of.key_prefix)
        if other is not None and other.name != of.name:
            raise ValueError(
                f"{of.name}: the key prefix {of.key_prefix} belongs to {other.name}: use"
                " another prefix"
            )
        known = self._tables.get(of.name.lower())
        old = {} if known is None else {field.name: field for field in known.of.fields}
        for field in of.fields:
            if field.name in old and field.type != old[field.name].type and not convert:
                raise ValueError(
                    f"{of.name}.{field.name}: {old[field.name].type} cannot become"
                    f" {field.type}: remove the field first"
                )
        retyped = {
            field.name: old[field.name]
            for field in of.stored
            if field.name in old and field.type != old[field.name].type
        }
        self._catalog.put(of.name, json.dumps(of.definition))
        self._removed.pop(of.name.lower(), None)
        self.visibility.set_removed(of.name, False)
        if known is not None and retyped:
            self._convert(known, of, retyped)
        self._take(of)
        self._past.catch_up()
        self.close_queries(of)
        if known is not None and any(
            field.name not in old or field.formula != old[field.name].formula
            for field in of.calculated
        ):
            self._compute(of)

    def remove_object(self, name: str) -> None:
        """Remove an object from the org: it is neither described nor found by queries. Its topic
        stays, without new events. `restore_object` brings it back with its records.

        Raises:
            RecordProblem: There is no such object.
        """
        of = self.describe(name)
        self.visibility.set_removed(of.name, True)
        with self._bus.together():  # waits for a change in progress
            self._removed[of.name.lower()] = of
            self._tables = {key: one for key, one in self._tables.items() if one.of.name != of.name}

    def restore_object(self, name: str) -> None:
        """Bring back an object that `remove_object` removed.

        Raises:
            RecordProblem: No object with this name was removed.
        """
        of = self._removed.get(name.lower())
        if of is None:
            raise no_object(name)
        self.put_object(of)

    def offer(self, event_name: str) -> None:
        """Create the topic for an object's change events, unless it exists. Do nothing if
        *event_name* is not the name of a change event.
        """
        of = self._by_event(event_name)
        if of is not None and not self._has_topic(of):
            self._bus.put_topic(of.topic, Schema(self._layout(of).text), can_publish=False)

    def check_member(self, member: Member) -> None:
        """Check a member's filter and enriched fields against its object.

        Raises:
            BadValue: The filter or an enriched field is not valid for the object.
        """
        of = self._by_event(member.entity)
        if of is not None:
            try:
                self.publishing.check(of, member)
            except RecordProblem as problem:
                raise BadValue("INVALID_INPUT", problem.text, "filterExpression") from problem

    def selected(self, members: Sequence[Member], gone: Sequence[Member]) -> None:
        """Start publishing change events for the objects that *members* select. Stop publishing
        them for objects that were selected only by removed members.

        Args:
            members: All current members of all channels.
            gone: The members that were removed.
        """
        events = {member.entity for member in members}
        for name in events | {member.entity for member in gone}:
            of = self._by_event(name)
            if of is not None and of.change_events != (name in events):
                self.put_object(SObject({**of.definition, "change_events": name in events}))
        with self._bus.together():  # waits for a change in progress
            self.publishing.select([one for one in members if self._by_event(one.entity)])

    # Records.

    def create(self, name: str, given: Mapping[str, Any], user: User, origin: str = "") -> str:
        """Create a record.

        Args:
            name: Name of the object.
            given: Values by field name, as sent by a client.
            user: The user who creates the record.
            origin: The changeOrigin for the header of the change event.

        Returns:
            The record's 18-character id.

        Raises:
            RecordProblem: There is no such object, or the values are not valid.
        """
        with self.transaction(user, origin) as changing:
            return changing.create(name, given)

    def update(
        self, name: str, record_id: str, given: Mapping[str, Any], user: User, origin: str = ""
    ) -> None:
        """Change fields of a record.

        Args:
            name: Name of the object.
            record_id: 15- or 18-character id.
            given: Values by field name, as sent by a client.
            user: The user who makes the change.
            origin: The changeOrigin for the header of the change event.

        Raises:
            RecordProblem: The record does not exist, or the values are not valid.
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
        """Update the record with a given external id, or create it.

        Args:
            name: Name of the object.
            external_field: Name of the external id field, or Id.
            value: The value of that field; an empty Id creates a record.
            given: Values of the other fields by name, as sent by a client.
            user: The user who makes the change.
            origin: The changeOrigin for the header of the change event.

        Returns:
            The record's id, and whether it was created.

        Raises:
            RecordProblem: There is no such object, the field is not an external id, no record has
                the given Id, several records have the external id, or the values are not valid.
        """
        with self.transaction(user, origin) as changing:
            return changing.upsert(name, external_field, value, given)

    def delete(self, name: str, record_id: str, user: User, origin: str = "") -> None:
        """Move a record to the Recycle Bin. Takes the arguments of `update` except `given`.

        Raises:
            RecordProblem: The record does not exist.
        """
        with self.transaction(user, origin) as changing:
            changing.delete(name, record_id)

    def undelete(self, name: str, record_id: str, user: User, origin: str = "") -> None:
        """Restore a record from the Recycle Bin. Takes the arguments of `update` except `given`.

        Raises:
            RecordProblem: The record is not in the Recycle Bin.
        """
        with self.transaction(user, origin) as changing:
            changing.undelete(name, record_id)

    @contextlib.contextmanager
    def transaction(self, user: User, origin: str = "") -> Iterator[Transaction]:
        """Run the body of a `with` statement as a transaction, and yield the `Transaction` for its
        changes.

        The changes become durable together, with their events. An exception rolls back everything.
        """
        with self._bus.together() as batch:
            self._past.remember()
            changing = Transaction(self, user, batch.at)
            yield changing
            if changing.changes:
                self.publishing.publish(batch, changing.changes, user, origin)
            changing.finish()

    # Changes without an event.

    def derive(self, name: str, record_id: str, given: Mapping[str, Any]) -> None:
        """Set fields that no event contains, as the org does by itself: the SystemModstamp of the
        record moves, and nothing else changes.

        Args:
            name: Name of the object.
            record_id: 15- or 18-character id.
            given: Values by field name.

        Raises:
            RecordProblem: The record does not exist, a value is not valid, or a field does not
                exist or can be in events.
        """
        of = self.describe(name)
        kept = {}
        for field_name, value in given.items():
            field = of.field(field_name)
            if field is None or field.in_events:
                text = f"{of.name}.{field_name[:80]} is not a field that events leave out"
                raise RecordProblem("INVALID_FIELD", text)
            kept[field.name] = values.keep(field, value)
        self._set_silently(of, record_id, kept)

    def archive(self, name: str, record_id: str) -> None:
        """Archive a record: queries no longer find it unless they include deleted records. Its
        SystemModstamp moves; there is no event.

        Raises:
            RecordProblem: The record does not exist, or the object's records cannot be archived.
        """
        of = self.describe(name)
        if not of.archivable:
            raise RecordProblem("INVALID_TYPE", f"records of {of.name} cannot be archived")
        self._set_silently(of, record_id, {"IsArchived": 1})

    # For transactions.

    def number(self, of: SObject) -> int:
        """Return a new row number for an object. A number is never reused, even after its row has
        been deleted.
        """
        self._numbers[of.name] += 1
        return self._numbers[of.name]

    @property
    def deletes_move_stamp(self) -> bool:
        """See `Settings.deletes_move_stamp`."""
        return self._settings.deletes_move_stamp

    def user(self, username: str) -> User:
        """Return the user with this name. For a blank name, return the org's first user; for an
        unknown name, a placeholder.
        """
        return self._accounts.holder(username)

    def is_user(self, record_id: str) -> bool:
        """Return whether this 18-character id is that of a user."""
        return self._accounts.by_id(record_id) is not None

    def missed(self, record_id: str) -> None:
        """If a fault purged the record, add 1 to the fault's count. Called when a client requests
        a record that does not exist or that the client's user may not see.
        """
        self._faults.met(self._purged.get(record_id))

    def purge(self, record_id: str, cause: Fault | None = None) -> None:
        """Delete a record permanently, without an event.

        Args:
            record_id: 15- or 18-character id.
            cause: The fault whose count increases when a client requests the record.

        Raises:
            ValueError: There is no such record.
        """
        full = values.full_id(record_id)
        of = self.by_prefix(full)
        with self._bus.together():
            if of is None or self.table(of.name).get(full) is None:
                raise ValueError(f"there is no record {record_id!r}")
            self._past.remember()
            self.table(of.name).remove(full)
            self._purged[full] = cause

    # Internal.

    def _set_silently(self, of: SObject, record_id: str, kept: Mapping[str, Any]) -> None:
        full, table = values.full_id(record_id), self.table(of.name)
        with self._bus.together() as batch:
            row = table.get(full)
            if row is None or row["IsDeleted"]:
                raise no_record(record_id)
            self._past.remember()
            table.update(full, {**kept, "SystemModstamp": values.stamp(batch.at)})

    def _compute(self, of: SObject) -> None:
        """Recompute the formula fields of all rows of an object, without publishing events."""
        table = self.table(of.name)
        for start in range(0, self._numbers[of.name], _ROWS):
            with self._bus.together():
                for row in table.where("n > ? AND n <= ?", [start, start + _ROWS]):
                    table.update(row["Id"], computed(of, row))

    def _convert(self, known: Table, of: SObject, retyped: Mapping[str, Field]) -> None:
        """Replace the columns of fields that get another type, and convert their values.

        Args:
            known: The object's table until now.
            of: The object from now on.
            retyped: The fields that get another type, as they were until now, by name.
        """
        with self._bus.together():
            rows = known.where("1", [])
            bare = SObject(
                {
                    **of.definition,
                    "fields": [
                        row for row in of.definition["fields"] if row["name"] not in retyped
                    ],
                }
            )
            Table(self._store, bare).prepare()  # drops the columns
            table = Table(self._store, of)
            table.prepare()
            for row in rows:
                changed = {
                    name: values.converted(field, of.field(name), row[name])
                    for name, field in retyped.items()
                }
                table.update(row["Id"], changed)

    def _layout(self, of: SObject) -> ChangeSchema:
        return change_schema(of, formulas=self._settings.change_event_formulas)

    def _by_event(self, event_name: str) -> SObject | None:
        for table in self._tables.values():
            if table.of.event_name.lower() == event_name.lower():
                return table.of
        return None

    def _has_topic(self, of: SObject) -> bool:
        return any(topic.name == of.topic for topic in self._bus.topics())

    def _take(self, of: SObject) -> None:
        """Prepare the table and the topic of an object, and replace the object's definition."""
        table = Table(self._store, of)
        number = table.prepare()
        layout = self._layout(of)
        schema = self._topic(of, layout.text)
        with self._bus.together():  # waits for a change in progress
            self._numbers[of.name] = max(number, self._numbers.get(of.name, 0))
            self.publishing.use(of, layout, schema)
            self._tables = {**self._tables, of.name.lower(): table}

    def _topic(self, of: SObject, text: str) -> Schema:
        """Return the schema for an object's topic. If changes to the object are published, create
        the topic or, if its schema has changed, update it.

        Args:
            of: The object.
            text: The Avro schema as JSON.
        """
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
