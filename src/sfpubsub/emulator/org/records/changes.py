"""Builds the change events for one transaction: their headers, bitmaps and bodies.

Independent of the store and the bus. As on the service, the same change to several records of an
object becomes one event that names all of these records. Changes beyond the org's limit for a
transaction become one overflow event for each object. `publishing` replaces an event that is too
large, or selected by a fault, with a gap event.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.bitmaps import bitmaps
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.schemas import ChangeSchema
from sfpubsub.emulator.org.records.table import Row

_NO_RECORD = "000000000000000AAA"
"""The record id in an overflow event. Documented."""

_DIFF_CHARS = 1000
"""Minimum length, in characters, of a text value that is sent as a diff. Shorter ones are sent in
full. Documented.
"""

_DIFF_SHARE, _DIFF_LINES = 0.5, 0.25
"""A diff is sent instead of the whole text only if at most these shares of its characters and of
its lines changed. Documented.
"""


@dataclass(frozen=True)
class Change:
    """A change to one record.

    Attributes:
        of: The object that the record belongs to.
        record_id: 18-character id.
        kind: CREATE, UPDATE, DELETE or UNDELETE.
        old: The row before the change; None for CREATE.
        new: The row after the change; for DELETE, the same as `old`.
    """

    of: SObject
    record_id: str
    kind: str
    old: Row | None
    new: Row

    @property
    def changed(self) -> list[str]:
        """The names of the fields that an update changed."""
        old = self.old or {}
        return [name for name, value in self.new.items() if value != old.get(name)]


@dataclass(frozen=True)
class Commit:
    """The values that all events of one transaction share.

    Attributes:
        at: The time of the transaction, in seconds since the epoch.
        number: The commitNumber for the headers.
        user_id: The commitUser for the headers: id of the user who made the changes.
        origin: The changeOrigin for the headers: the API and the client; may be blank.
        key: The transactionKey for the headers, a UUID.
    """

    at: float
    number: int
    user_id: str
    origin: str
    key: str


@dataclass
class ChangeEvent:
    """One event to be published.

    Attributes:
        of: The object whose records changed.
        header: The ChangeEventHeader.
        body: Values by field name, in the format of the schema.
        rows: The rows after the change, one for each record in the event. Empty for an overflow
            event, and for an event that is built for a single channel with a filter or enriched
            fields.
        weight: How many changes this event counts as toward the org's limit for a transaction.
    """

    of: SObject
    header: dict[str, Any]
    body: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    weight: int = 1

    @property
    def values(self) -> dict[str, Any]:
        """The values to encode: the header and the body."""
        return {"ChangeEventHeader": self.header, **self.body}

    def as_gap(self) -> ChangeEvent:
        """Return the gap event to publish in place of this event. It has only a header."""
        lists: dict[str, Any] = {"nulledFields": [], "diffFields": [], "changedFields": []}
        header = {**self.header, **lists, "changeType": f"GAP_{self.header['changeType']}"}
        return ChangeEvent(self.of, header, {}, self.rows, self.weight)


def settled(changes: Sequence[Change]) -> list[Change]:
    """Merge the changes of a transaction, so that each record has one change, from its initial to
    its final state. Records that exist neither before nor after the transaction are omitted.
    """
    first: dict[str, Change] = {}
    last: dict[str, Change] = {}
    for change in changes:
        first.setdefault(change.record_id, change)
        last[change.record_id] = change
    found: list[Change] = []
    for record_id, begin in first.items():
        end = last[record_id]
        was_there = begin.kind in ("UPDATE", "DELETE")
        if end.kind != "DELETE":
            kind = "UPDATE" if was_there else begin.kind
            found.append(replace(begin, kind=kind, new=end.new))
        elif was_there:
            found.append(end)
    return found


def events(
    changes: Sequence[Change],
    commit: Commit,
    schema: Callable[[SObject], ChangeSchema],
    *,
    most_records: int,
    most_changes: int,
) -> list[ChangeEvent]:
    """Return the events for a transaction, in order.

    Args:
        changes: The changes, in order.
        commit: The values that all of the events share.
        schema: Function that returns the schema of an object's change events.
        most_records: Maximum number of records in one event.
        most_changes: Maximum number of changes that become regular events; those beyond it
            become one overflow event for each object. Each field that an update changed counts as
            one change.
    """
    made: list[ChangeEvent] = []
    open_events: dict[str, ChangeEvent] = {}  # by content: events to which records can be added
    overflowed: dict[str, SObject] = {}
    count = 0
    for change in changes:
        event = _event(change, commit, schema(change.of))
        count += event.weight
        if count > most_changes:
            overflowed.setdefault(change.of.name, change.of)
            continue
        # Skip the JSON of a single change, which has no others to be merged with.
        says = json.dumps([change.of.name, event.values]) if len(changes) > 1 else ""
        same = open_events.get(says)
        if same is not None and len(same.header["recordIds"]) < most_records:
            same.header["recordIds"].append(change.record_id)
            same.rows.append(change.new)
            continue
        open_events[says] = event
        event.header["recordIds"].append(change.record_id)
        event.rows.append(change.new)
        made.append(event)
    for of in overflowed.values():
        header = {**_header(of, "GAP_OVERFLOW", commit), "recordIds": [_NO_RECORD]}
        made.append(ChangeEvent(of, header, {}))
    for number, event in enumerate(made, start=1):
        event.header["sequenceNumber"] = number
    return made


def body(of: SObject, row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the fields *names* of a row in the format of a change event: components
    are nested in their compound field, and empty fields are omitted.
    """
    found: dict[str, Any] = {}
    for name in names:
        item = of.field(name)
        if item is None or (kept := row.get(item.name)) is None:
            continue
        if item.compound:
            found.setdefault(item.compound, {})[item.part] = values.in_event(item, kept)
        else:
            found[item.name] = values.in_event(item, kept)
    return found


def _event(change: Change, commit: Commit, schema: ChangeSchema) -> ChangeEvent:
    header = _header(change.of, change.kind, commit)
    if change.kind == "DELETE":
        return ChangeEvent(change.of, header, {})
    known = _known(change.of, schema)
    if change.kind != "UPDATE":
        return ChangeEvent(change.of, header, body(change.of, change.new, known))
    changed = [name for name in change.changed if name in known]
    said = body(change.of, change.new, changed)
    diffs = _differences(change, changed, said)
    header["changedFields"] = _list(schema, changed)
    header["nulledFields"] = _list(schema, [n for n in changed if change.new[n] is None])
    header["diffFields"] = _list(schema, diffs)
    return ChangeEvent(change.of, header, said, weight=max(1, len(changed)))


def _known(of: SObject, schema: ChangeSchema) -> list[str]:
    """Return the names of the fields whose values an event can contain. For a compound field, these
    are the names of its components.
    """
    return [
        item.name
        for item in of.stored
        if item.name in schema.parts or (item.name in schema.places and item.type != "name")
    ]


def _list(schema: ChangeSchema, names: Sequence[str]) -> list[str]:
    parts: dict[int, list[int]] = {}
    for name in names:
        if name in schema.parts:
            place, inner = schema.parts[name]
            parts.setdefault(place, []).append(inner)
    return bitmaps((schema.places[name] for name in names if name not in schema.parts), parts)


def _header(of: SObject, kind: str, commit: Commit) -> dict[str, Any]:
    return {
        "entityName": of.name,
        "recordIds": [],
        "changeType": kind,
        "changeOrigin": commit.origin,
        "transactionKey": commit.key,
        "sequenceNumber": 0,  # set once all events are built
        "commitTimestamp": int(commit.at * 1000),
        "commitNumber": commit.number,
        "commitUser": commit.user_id,
        "nulledFields": [],
        "diffFields": [],
        "changedFields": [],
    }


def _differences(change: Change, changed: Sequence[str], said: dict[str, Any]) -> list[str]:
    """For each long text value of which only a small part changed, replace the value in the event
    body *said* with a diff. Return the names of the fields with a diff.
    """
    found = []
    for name in changed:
        item = change.of.field(name)
        if item is None or item.type != "textarea" or item.compound or change.old is None:
            continue
        old, new = change.old.get(name), change.new.get(name)
        if old and new and len(new) >= _DIFF_CHARS and (text := _difference(old, new)):
            said[item.name] = text
            found.append(name)
    return found


def _difference(old: str, new: str) -> str | None:
    """Return a unified diff from the old to the new string, or None if the new string should be
    sent in full.
    """
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    touched = [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
    lines = sum(max(i2 - i1, j2 - j1) for i1, i2, j1, j2 in touched)
    letters = sum(len("".join(after[j1:j2])) for _, _, j1, j2 in touched)
    if lines > _DIFF_LINES * len(after) or letters > _DIFF_SHARE * len(new):
        return None
    digest = hashlib.sha256(new.encode()).hexdigest()
    rows = list(difflib.unified_diff(before, after, n=0))[2:]
    text = f"--- \n+++ {digest}\n" + "".join(rows)
    return text if len(text) < len(new) else None
