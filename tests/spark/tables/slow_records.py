"""Compute the expected current, history and queue tables from all events, simply but slowly.

This follows the documentation of change events and of the tables, and shares no code with the
engine. To find a field's value, it searches all changes backwards, in quadratic time; the engine
applies one change at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from tests.spark.tables.change_streams import Published

LEAVES = ["Phone", "Amount__c", "Note__c", "Rating__c", "Name"]
LEAVES += ["Name.FirstName", "Name.LastName", "Address.City", "Address.Zip", "Address.Country"]


class SlowRecord:
    """A record, computed from all events about it in order of arrival."""

    def __init__(self, record_id: str, events: Sequence[Published | None]) -> None:
        self.record_id = record_id
        self.counting: list[tuple[int, Published]] = []
        self.flags: list[tuple[bool, bool, str | None]] = []  # after each event in `counting`
        self.cues: list[tuple[str, str, int, int]] = []
        self.deleted = self.complete = False
        self.reason: str | None = None
        for seq, event in enumerate(events):
            if event is not None:
                self._arrived(seq, event)

    def _arrived(self, seq: int, event: Published) -> None:
        head = event.head
        if self.record_id in head["recordIds"] and head["changeType"] != "GAP_OVERFLOW":
            if self.counting and place(event) < place(self.counting[-1][1]):
                self._cue("late", seq, event)
            else:
                self._counts(seq, event)
        reason = range_uncertainty(event, self.record_id)
        if reason and self.counting:
            self.reason = self.reason or reason

    def _cue(self, reason: str, seq: int, event: Published) -> None:
        self.cues.append((reason, event.head["changeType"], event.head["commitTimestamp"], seq))
        self.reason = self.reason or reason

    def _counts(self, seq: int, event: Published) -> None:
        kind = event.head["changeType"]
        known = bool(self.counting) and not self.deleted
        self.counting.append((seq, event))
        if kind in ("CREATE", "UNDELETE"):
            self.deleted, self.complete, self.reason = False, True, None
        elif kind == "DELETE":
            self.deleted, self.complete = True, self.complete and self.reason is None
            self.reason = None
        elif kind == "UPDATE" and not known:
            self.deleted, self.complete, self.reason = False, False, None
            self._cue("missing_base", seq, event)
        elif kind == "UPDATE":
            if any(self._text_after_diff(len(self.counting) - 1, name)[1] for name in event.diffs):
                self._cue("diff", seq, event)
        else:
            if kind != "SNAPSHOT":
                self.deleted = kind == "GAP_DELETE"
            self._cue("gap", seq, event)
        self.flags.append((self.deleted, self.complete, self.reason))

    def _value(self, last: int, leaf: str) -> Any:
        """Return the value of *leaf*, a field or a part of one (``Field.Part``), after change
        number *last*.
        """
        parent, _, part = leaf.partition(".")
        for number in range(last, -1, -1):
            event = self.counting[number][1]
            kind, said = event.head["changeType"], [*event.changed, *event.nulled]
            if kind in ("CREATE", "UNDELETE"):
                return inside(event.fields.get(parent), part)
            if kind != "UPDATE":
                continue
            if parent in event.diffs:
                text, unknown = self._text_after_diff(number, parent)
                if unknown:
                    continue
                return text
            if parent in said or leaf in said:
                return inside(event.fields.get(parent), part)
            if leaf == "Name" and any(name.startswith("Name.") for name in said):
                return None  # the name now has parts instead of text
        return None

    def _text_after_diff(self, number: int, name: str) -> tuple[str | None, bool]:
        """Return the text that results from a diff, and whether the result is unknown."""
        sent = self.counting[number][1].fields[name]
        old = self._value(number - 1, name)
        header, *lines = sent.split("\n")[1:]
        if old is None:
            return None, True
        new = merged(old.split("\n"), lines)
        if hashlib.sha256(new.encode()).hexdigest() != header.removeprefix("+++ "):
            return None, True
        return new, False

    def values(self, last: int) -> dict[str, Any]:
        """Return the non-null columns after change number *last*, with the parts of a field in a
        struct.
        """
        found: dict[str, Any] = {}
        for leaf in LEAVES:
            value = self._value(last, leaf)
            if value is None:
                continue
            parent, _, part = leaf.partition(".")
            if leaf == "Name":
                found["Name"] = {"string": value}
            elif parent == "Name":
                found.setdefault("Name", {}).setdefault("Switchable_PersonName", {})[part] = value
            elif part:
                found.setdefault(parent, {})[part] = value
            elif leaf == "Amount__c" and isinstance(value, str):
                found["Amount__c__string"] = value
            else:
                found[leaf] = value
        return found

    def row(self, last: int, flags: tuple[bool, bool, str | None]) -> dict[str, Any]:
        seq, event = self.counting[last]
        return {
            "record_id": self.record_id,
            "values": self.values(last),
            "_is_deleted": flags[0],
            "_complete": flags[1],
            "_reread": flags[2] is not None,
            "_reread_reason": flags[2],
            "_commit_timestamp": event.head["commitTimestamp"],
            "_commit_number": event.head["commitNumber"],
            "_sequence_number": event.head["sequenceNumber"],
            "_ingest_seq": seq,
            "_change_type": event.head["changeType"],
        }

    def current(self) -> dict[str, Any]:
        return self.row(len(self.counting) - 1, (self.deleted, self.complete, self.reason))

    def history(self) -> Iterator[dict[str, Any]]:
        times = [event.head["commitTimestamp"] for _, event in self.counting]
        for number, end in enumerate([*times[1:], None]):
            row = self.row(number, self.flags[number])
            yield {**row, "valid_from": times[number], "valid_to": end}


def place(event: Published) -> tuple[int, int, int]:
    head = event.head
    return head["commitTimestamp"], head["commitNumber"], head["sequenceNumber"]


def range_uncertainty(event: Published, record_id: str) -> str | None:
    """Return why a gap or overflow event for a range of records makes *record_id* uncertain.

    Return None if it does not.
    """
    ids = event.head["recordIds"]
    if event.head["changeType"] == "GAP_OVERFLOW":
        return "overflow"
    if not ids or any(i.endswith("*") and record_id.startswith(i[:-1]) for i in ids):
        return "gap"
    return None


def inside(value: Any, part: str) -> Any:
    if not part:
        return None if isinstance(value, dict) else value
    return value.get(part) if isinstance(value, dict) else None


def merged(old: list[str], diff: list[str]) -> str:
    """Apply a diff to the old lines, hunk by hunk from the end; return the new text."""
    starts = [number for number, line in enumerate(diff) if line.startswith("@@ ")]
    for begin, end in reversed(list(zip(starts, [*starts[1:], len(diff)], strict=True))):
        first, _, count = diff[begin].split(" ")[1][1:].partition(",")
        removed = int(count or 1)
        top = int(first) - 1 if removed else int(first)
        new = [line[1:] for line in diff[begin + 1 : end] if not line.startswith("-")]
        old = [*old[:top], *new, *old[top + removed :]]
    return "\n".join(old)


class SlowTables:
    """The expected current, history and queue tables of one object.

    Args:
        events: All events in order of arrival, at the index of their ``ingest_seq``; None for an
            event of another object.
    """

    def __init__(self, events: Sequence[Published | None]) -> None:
        known = [(seq, event) for seq, event in enumerate(events) if event is not None]
        ids = {
            each
            for _, event in known
            for each in event.head["recordIds"]
            if not each.endswith("*") and event.head["changeType"] != "GAP_OVERFLOW"
        }
        records = [SlowRecord(each, events) for each in sorted(ids)]
        self.current = {record.record_id: record.current() for record in records}
        self.history = [row for record in records for row in record.history()]
        self.queue = sorted(
            [(record.record_id, *cue) for record in records for cue in record.cues]
            + [cue for seq, event in known for cue in _object_cues(seq, event)],
            key=lambda cue: (cue[4], cue[0] or ""),
        )


def _object_cues(seq: int, event: Published) -> Iterator[tuple[str | None, str, str, int, int]]:
    head = event.head
    more = (head["changeType"], head["commitTimestamp"], seq)
    if head["changeType"] == "GAP_OVERFLOW":
        yield (None, "overflow", *more)
        return
    if not head["recordIds"]:
        yield (None, "gap", *more)
    yield from ((each, "gap", *more) for each in head["recordIds"] if each.endswith("*"))


def pruned(value: Any) -> Any:
    """Return *value* without its null parts, or None if nothing is left."""
    if not isinstance(value, dict):
        return value
    parts = {name: pruned(part) for name, part in value.items()}
    return {name: part for name, part in parts.items() if part is not None} or None


def truth(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the org in the format of the tables' columns."""
    found = {}
    for name, value in record.items():
        if name == "Name" and value is not None:
            member = "Switchable_PersonName" if isinstance(value, dict) else "string"
            value = {member: value}
        elif name == "Amount__c" and isinstance(value, str):
            name = "Amount__c__string"
        found[name] = value
    return pruned(found) or {}
