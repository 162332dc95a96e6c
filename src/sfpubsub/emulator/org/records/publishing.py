"""Publishes the events for the changes of a transaction: change events and PushTopic events.

A change event is published to the topic of its object and to the channels that select the event. A
channel whose member has a filter or enriched fields receives separate events at separate positions.
Conditions are evaluated in SQL on the stored row, so that filters, PushTopics and queries agree.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.faults.kinds import CHANGE
from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.bus import Batch, Bus, Draft, Topic
from sfpubsub.emulator.org.cometd.channels import Channels
from sfpubsub.emulator.org.event_channels import STANDARD, Member
from sfpubsub.emulator.org.records import changes, queries, values
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.late import LateEvents
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.schemas import ChangeSchema
from sfpubsub.emulator.org.records.table import Row, table_of
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

_COMMIT_BASE = 10_000_000_000
"""Commit numbers start above this, as in an org that has existed for a while."""

_MOVED_BASE = 1_000_000
"""After a move to another instance, commit numbers start above this, and are lower than before."""

_HEADER = "changeeventheader."
_OPERATIONS = {
    "CREATE": ("created", "NotifyForOperationCreate"),
    "UPDATE": ("updated", "NotifyForOperationUpdate"),
    "DELETE": ("deleted", "NotifyForOperationDelete"),
    "UNDELETE": ("undeleted", "NotifyForOperationUndelete"),
}


@dataclass(frozen=True)
class _Special:
    """A channel that receives its own variant of an object's events.

    Attributes:
        channel: Name of the channel's topic.
        condition: The filter; None for all events.
        enriched: Fields to include in update and delete events even if their values are
            unchanged. Among them are all fields that the filter uses.
    """

    channel: str
    condition: soql.Condition | None
    enriched: tuple[str, ...]


class Publishing:
    """Publishes the events for changes. Call `publish` inside a transaction of the bus.

    Args:
        store: The store with the rows.
        bus: The bus to which the events are published.
        settings: Limits and behaviours.
        faults: The fault plan.
        channels: The channels of the Streaming API, including the PushTopics.
        late: Publishes delayed change events when they are due.
    """

    def __init__(
        self,
        store: Store,
        bus: Bus,
        settings: Settings,
        faults: FaultPlan,
        channels: Channels,
        late: LateEvents,
    ) -> None:
        self._store = store
        self._bus = bus
        self._settings = settings
        self._faults = faults
        self._channels = channels
        self._late = late
        # Replaced as a whole, never modified in place.
        self._schemas: Mapping[str, tuple[ChangeSchema, Schema]] = {}
        self._special: Mapping[str, tuple[_Special, ...]] = {}  # by the event's name

    def use(self, of: SObject, layout: ChangeSchema, schema: Schema) -> None:
        """Set the schema for an object's change events from now on.

        Args:
            of: The object.
            layout: The schema with the positions of the fields.
            schema: The same schema, for encoding.
        """
        self._schemas = {**self._schemas, of.name: (layout, schema)}

    def select(self, members: Sequence[Member]) -> None:
        """Set the channel members whose filters and enriched fields apply to change events from
        now on.
        """
        special: dict[str, tuple[_Special, ...]] = {}
        for member in members:
            if not (member.filter_expression or member.enriched):
                continue
            condition = None
            enriched = member.enriched
            if member.filter_expression:
                condition = soql.parse_condition(member.filter_expression)
                enriched = tuple(dict.fromkeys((*enriched, *_fields_of(condition))))
            channel = f"/data/{member.channel or STANDARD}"
            one = _Special(channel, condition, enriched)
            special[member.entity] = (*special.get(member.entity, ()), one)
        self._special = special

    def check(self, of: SObject, member: Member) -> None:
        """Check a member's filter and enriched fields against an object.

        Raises:
            RecordProblem: The filter or an enriched field is not valid for the object.
        """
        for name in member.enriched:
            if of.field(name) is None:
                raise RecordProblem("INVALID_INPUT", f"{of.name} has no field {name}")
        if member.filter_expression:
            try:
                condition = soql.parse_condition(member.filter_expression)
            except soql.Malformed as error:
                raise RecordProblem("INVALID_INPUT", f"filterExpression: {error}") from error
            queries.condition(of, _without_header(condition, {}))

    def move(self) -> None:
        """Restart the commit numbers of change events, as Salesforce does when it moves an org to
        another instance.
        """
        self._store.set_meta("commit_base", str(_MOVED_BASE - self._bus.tip()))

    def publish(
        self, batch: Batch, made: Sequence[changes.Change], user: User, origin: str
    ) -> None:
        """Publish the events for a transaction.

        Args:
            batch: The open transaction of the bus.
            made: The changes, in order.
            user: The user who made the changes.
            origin: The changeOrigin for the header of the change events.
        """
        made = changes.settled(made)
        base = int(self._store.meta("commit_base", str(_COMMIT_BASE)))
        commit = changes.Commit(
            batch.at, base + batch.tip + 1, user.user_id, origin, str(uuid.uuid4())
        )
        events = changes.events(
            [change for change in made if change.of.change_events],
            commit,
            lambda of: self._schemas[of.name][0],
            most_records=self._settings.change_event_records,
            most_changes=self._settings.overflow_changes,
        )
        for event in events:
            self._change_event(batch, event)
        topics = self._channels.records("PushTopic")
        for change in made if topics else ():
            for topic in topics:
                self._push_topic(batch, change, topic.name, topic.fields)

    # Change events.

    def _change_event(self, batch: Batch, event: changes.ChangeEvent) -> None:
        topic = event.of.topic
        is_gap = event.header["changeType"].startswith("GAP_")
        if not is_gap and self._faults.take("gap_event", CHANGE, topic):
            event, is_gap = event.as_gap(), True
        if self._faults.take("lose_event", CHANGE, topic):
            return
        late = self._faults.take("delay_event", CHANGE, topic)
        due = None if late is None else batch.at + float(late.params["seconds"])
        special = {item.channel: item for item in self._special.get(event.of.event_name, ())}
        carriers = self._bus.carriers(topic)
        self._add(batch, event, [one for one in carriers if one.name not in special], due)
        for carrier in carriers:
            if carrier.name in special:
                for one in self._variants(event, special[carrier.name], is_gap=is_gap):
                    self._add(batch, one, [carrier], due)

    def _variants(
        self, event: changes.ChangeEvent, special: _Special, *, is_gap: bool
    ) -> list[changes.ChangeEvent]:
        """Return the events that a channel with a filter or enriched fields receives instead of
        *event*. Records that the filter rejects are omitted. Records with the same enriched values
        share an event.
        """
        of, found = event.of, dict[str, changes.ChangeEvent]()
        enriches = event.header["changeType"] in ("UPDATE", "DELETE")
        names = [part for name in special.enriched for part in _parts(of, name)]
        rows: Sequence[Row | None] = event.rows or [None]
        for record_id, row in zip(event.header["recordIds"], rows, strict=True):
            holds = special.condition is None or is_gap or row is None
            if not holds and special.condition is not None:
                asked = _without_header(special.condition, event.header)
                try:
                    holds = self._holds(of, record_id, asked)
                except RecordProblem:
                    # A field of the filter was removed: an extra event is better than a missing
                    # one.
                    holds = True
            if not holds:
                continue
            added = changes.body(of, row, names) if enriches and row else {}
            same = json.dumps(added)
            if same not in found:
                body = _merged(added, event.body)
                header = {**event.header, "recordIds": []}
                found[same] = changes.ChangeEvent(of, header, body)
            found[same].header["recordIds"].append(record_id)
        return list(found.values())

    def _add(
        self,
        batch: Batch,
        event: changes.ChangeEvent,
        carriers: Sequence[Topic],
        due: float | None,
    ) -> None:
        schema = self._schemas[event.of.name][1]
        payload = schema.encode(event.values, batch.at)
        if len(payload) > self._settings.event_bytes:
            payload = schema.encode(event.as_gap().values, batch.at)
        draft = Draft(payload, schema.schema_id)
        if due is None:
            batch.add(event.of.topic, [draft], only=carriers)
        else:
            self._late.add(due, carriers, draft)

    # PushTopics.

    def _push_topic(
        self, batch: Batch, change: changes.Change, name: str, topic: Mapping[str, Any]
    ) -> None:
        kind, wanted = _OPERATIONS[change.kind]
        if not (topic.get("IsActive", True) and topic.get(wanted, True)):
            return
        try:
            select = soql.parse(str(topic["Query"]))
            if select.of.lower() != change.of.name.lower():
                return
            where = set() if select.where is None else set(_fields_of(select.where))
            notify = topic.get("NotifyForFields", "Referenced")
            selected = [column.field for column in select.columns]
            watched = {
                "Select": set(selected),
                "Where": where,
                "Referenced": {*selected, *where},
            }.get(notify)
            if change.kind == "UPDATE" and watched is not None:
                names = {one.lower() for one in watched}
                if not any(one.lower() in names for one in change.changed):
                    return
            if select.where is not None and not self._holds(
                change.of, change.record_id, select.where
            ):
                return
        except (soql.Malformed, RecordProblem):
            return  # the query is no longer valid for its object
        shown: dict[str, Any] = {"Id": change.record_id}
        if change.kind != "DELETE":
            for one in selected:
                field = change.of.field(one)
                if field is not None and field.is_stored:
                    shown[field.name] = values.show(field, change.new.get(field.name))
        self._channels.add(batch, f"/topic/{name}", {"type": kind, "sobject": shown})

    def _holds(self, of: SObject, record_id: str, asked: soql.Condition) -> bool:
        """Return whether the stored row of a record meets the condition *asked*."""
        text, given = queries.condition(of, asked)
        sql = f"SELECT 1 FROM {table_of(of)} WHERE Id = ? AND ({text})"  # noqa: S608 - built here
        return bool(self._store.rows(sql, record_id, *given))


def _parts(of: SObject, name: str) -> list[str]:
    """Return the names of a compound field's components, or only the field's own name if it is not
    compound.
    """
    parts = of.parts(name)
    return [part.name for part in parts.values()] or [name]


def _merged(added: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's body with the values *added* by enrichment. If a field is in both, the
    value in the body is kept. Compound fields are merged component by component.
    """
    merged = {**added, **body}
    for name, value in body.items():
        if isinstance(value, dict) and isinstance(added.get(name), dict):
            merged[name] = {**added[name], **value}
    return merged


def _fields_of(asked: soql.Condition) -> list[str]:
    """Return the names of the fields that a condition uses, except fields of ChangeEventHeader."""
    if isinstance(asked, soql.Joined):
        return [name for item in asked.conditions for name in _fields_of(item)]
    return [] if asked.field.lower().startswith(_HEADER) else [asked.field]


def _without_header(asked: soql.Condition, header: Mapping[str, Any]) -> soql.Condition:
    """Return the condition *asked* without comparisons of ChangeEventHeader fields. Each of them is
    evaluated for *header*, and replaced by a comparison that is always true or always false.
    """
    if isinstance(asked, soql.Joined):
        decided = tuple(_without_header(item, header) for item in asked.conditions)
        return soql.Joined(asked.by, decided)
    if not asked.field.lower().startswith(_HEADER):
        return asked
    names = {name.lower(): value for name, value in header.items()}
    value = str(names.get(asked.field.lower().removeprefix(_HEADER), "")).lower()
    same = any(value == soql.unescaped(item.text).lower() for item in asked.values)
    holds = same == (asked.sign in ("=", "IN"))
    null = soql.Literal("word", "null")
    # Every row has an id, so this condition is either always true or always false.
    return soql.Comparison("Id", "!=" if holds else "=", (null,))
