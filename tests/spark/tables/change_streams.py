"""A small model of an org whose records change, and the change events that it publishes.

The org keeps its records, so that a test can check whether a complete row equals its record. Events
are created according to the documentation of Change Data Capture, with fastavro.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import random
from dataclasses import dataclass
from typing import Any

import fastavro

NULL_TEXT = ["null", "string"]
TEXTS = {"type": "array", "items": "string"}
TYPES = ["CREATE", "UPDATE", "DELETE", "UNDELETE", "GAP_CREATE", "GAP_UPDATE", "GAP_DELETE"]
TYPES += ["GAP_UNDELETE", "GAP_OVERFLOW", "SNAPSHOT"]
HEADER = {
    "entityName": "string",
    "recordIds": TEXTS,
    "changeType": {"type": "enum", "name": "ChangeType", "symbols": TYPES},
    "changeOrigin": "string",
    "transactionKey": "string",
    "sequenceNumber": "int",
    "commitTimestamp": "long",
    "commitNumber": "long",
    "commitUser": "string",
    "nulledFields": TEXTS,
    "diffFields": TEXTS,
    "changedFields": TEXTS,
}


def _record(name: str, *parts: str) -> dict[str, Any]:
    fields = [{"name": part, "type": NULL_TEXT, "default": None} for part in parts]
    return {"type": "record", "name": name, "fields": fields}


# Two schema versions: the second has a changed type, a new field and a new part of a field.
PARTS = [
    {"Name": ["FirstName", "LastName"], "Address": ["City", "Zip"]},
    {"Name": ["FirstName", "LastName"], "Address": ["City", "Zip", "Country"]},
]
FIELDS = [
    {
        "Name": [*NULL_TEXT, _record("Switchable_PersonName", "FirstName", "LastName")],
        "Phone": NULL_TEXT,
        "Amount__c": ["null", "string" if version else "double"],
        "Note__c": NULL_TEXT,
        "Address": ["null", _record("Address", *PARTS[version]["Address"])],
        **({"Rating__c": NULL_TEXT} if version else {}),
    }
    for version in (0, 1)
]
NAMES = [["ChangeEventHeader", *fields] for fields in FIELDS]


def schema_text(event_type: str, version: int) -> str:
    header = {
        "type": "record",
        "name": "ChangeEventHeader",
        "fields": [{"name": name, "type": kind} for name, kind in HEADER.items()],
    }
    fields = [{"name": "ChangeEventHeader", "type": header}]
    fields += [{"name": n, "type": t, "default": None} for n, t in FIELDS[version].items()]
    record = {"type": "record", "name": event_type, "namespace": "com.sforce.eventbus"}
    return json.dumps({**record, "fields": fields})


_AVRO = [fastavro.parse_schema(json.loads(schema_text("X", version))) for version in (0, 1)]


def bits(version: int, names: list[str]) -> list[str]:
    """Return the bitmap entries that a change event contains for the fields *names*.

    A part of a compound field is named ``Parent.Child``.
    """
    entries, places = [], [NAMES[version].index(name) for name in names if "." not in name]
    if places:
        entries.append(f"0x{sum(1 << place for place in places):02X}")
    for parent, parts in PARTS[version].items():
        inner = [parts.index(n.partition(".")[2]) for n in names if n.startswith(f"{parent}.")]
        if inner:
            bitmap = sum(1 << place for place in inner)
            entries.append(f"{NAMES[version].index(parent)}-0x{bitmap:02X}")
    return entries


@dataclass
class Published:
    """A change event with its decoded content, which tests use to compute the expected tables."""

    version: int
    head: dict[str, Any]
    fields: dict[str, Any]
    changed: list[str]
    nulled: list[str]
    diffs: list[str]

    @property
    def payload(self) -> bytes:
        value = {
            "ChangeEventHeader": {
                **self.head,
                "changedFields": bits(self.version, self.changed),
                "nulledFields": bits(self.version, self.nulled),
                "diffFields": bits(self.version, self.diffs),
            },
            **{name: _branch(self.fields.get(name)) for name in FIELDS[self.version]},
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, _AVRO[self.version], value)
        return out.getvalue()


def _branch(value: Any) -> Any:
    if isinstance(value, dict) and "FirstName" in value:
        return ("com.sforce.eventbus.Switchable_PersonName", value)
    return value


class Org:
    """An org with one object, whose records change randomly and publish events.

    Args:
        seed: Seed of all random decisions.
        entity: Name of the object, such as ``Account``.
        records: Number of record ids.
    """

    def __init__(self, seed: int, entity: str = "Account", records: int = 6) -> None:
        self.rng = random.Random(seed)
        self.entity = entity
        self.ids = [f"001{entity[:1]}{number:02}" for number in range(records)]
        self.live: dict[str, dict[str, Any]] = {}
        self.bin: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.time = 1_771_300_995_000
        self.commit = 1000
        self.sequence = 1

    def publish(self, count: int) -> list[Published]:
        """Make random changes; return at least *count* events, in commit order."""
        found: list[Published] = []
        while len(found) < count:
            self._next_commit()
            if self.version == 0 and self.rng.random() < 1.5 / count:
                found.append(self._change_type_of_amount())
            else:
                found += self._change()
        return found

    def _next_commit(self) -> None:
        rng = self.rng
        if rng.random() < 0.25:
            self.sequence += 1  # another change in the same transaction
            return
        self.sequence = 1
        self.time += rng.choice([0, 1, 1, 5])
        self.commit += rng.randint(1, 3)
        if rng.random() < 0.01:  # a move to another instance, whose clock may be slightly behind
            self.commit = rng.randint(1, 900)
            self.time += rng.choice([1000, 1000, 0, -3])

    def _change(self) -> list[Published]:
        rng = self.rng
        ids = rng.sample(self.ids, rng.choice([1, 1, 1, 2, 3]))
        kind = rng.choices(
            ["CREATE", "UPDATE", "DELETE", "UNDELETE", "GAP", "OVERFLOW", "WILD", "SNAPSHOT"],
            [4, 16, 2, 2, 1, 0.2, 0.1, 0.2],
        )[0]
        if kind == "OVERFLOW":
            return [self._untold(ids)]
        if kind == "WILD":
            self._untold(ids)
            prefix = rng.choice(["001*", f"{self.ids[0][:-1]}*"])
            if not all(each.startswith(prefix[:-1]) for each in ids):
                prefix = "001*"
            return [self._event("GAP_UPDATE", [prefix])]
        if kind == "SNAPSHOT":
            return [self._event("SNAPSHOT", ids)]
        if kind == "GAP":
            return self._gap(ids[0])
        return self._told(kind, ids)

    def _told(self, kind: str, ids: list[str]) -> list[Published]:
        if kind == "CREATE":
            # The id of a new record may be that of a purged one.
            made = [i for i in ids if i not in self.live]
            values = self._values()
            for each in made:
                self.bin.pop(each, None)
                self.live[each] = dict(values)
            return [self._event("CREATE", made, self._with_parts(values))] if made else []
        if kind == "DELETE":
            gone = [i for i in ids if i in self.live]
            for each in gone:
                self.bin[each] = self.live.pop(each)
            return [self._event("DELETE", gone)] if gone else []
        if kind == "UNDELETE":
            back = [i for i in ids if i in self.bin][:1]
            for each in back:
                self.live[each] = self.bin.pop(each)
            return [self._event(kind, back, self._with_parts(self.live[back[0]]))] if back else []
        return self._update([i for i in ids if i in self.live])

    def _update(self, ids: list[str]) -> list[Published]:
        if not ids:
            return []
        rng = self.rng
        if len(ids) == 1 and self.live[ids[0]].get("Note__c") and rng.random() < 0.3:
            return [self._update_by_diff(ids[0])]
        new: dict[str, Any] = {}
        names = [name for name in FIELDS[self.version] if rng.random() < 0.3] or ["Phone"]
        for name in names:
            parts = PARTS[self.version].get(name)
            if parts is None or rng.random() < 0.3:
                new[name] = self._value(name)
            else:
                for part in rng.sample(parts, rng.randint(1, len(parts))):
                    new[f"{name}.{part}"] = rng.choice([None, "x", "y"])
        for each in ids:
            for path, value in new.items():
                _set(self.live[each], path, value)
        return [self._update_event(ids, new)]

    def _update_event(self, ids: list[str], new: dict[str, Any]) -> Published:
        fields: dict[str, Any] = {}
        for path, value in new.items():
            _set(fields, path, value)
        nulled = [path for path, value in new.items() if value is None and self.rng.random() < 0.8]
        changed = [path for path in new if path not in nulled]
        return self._event("UPDATE", ids, self._with_parts(fields), changed, nulled)

    def _update_by_diff(self, record_id: str) -> Published:
        old = self.live[record_id]["Note__c"]
        lines = old.split("\n")
        lines[self.rng.randrange(len(lines))] = f"line {self.commit}.{self.sequence}"
        new = self.live[record_id]["Note__c"] = "\n".join(lines)
        made = list(difflib.unified_diff(old.split("\n"), lines, lineterm=""))[2:]
        text = "\n".join(["--- ", f"+++ {hashlib.sha256(new.encode()).hexdigest()}", *made])
        # A field that is sent as a diff is in both lists, as documented.
        return self._event("UPDATE", [record_id], {"Note__c": text}, ["Note__c"], [], ["Note__c"])

    def _gap(self, record_id: str) -> list[Published]:
        """Change a record, and return a gap event instead of the change event."""
        choices = ["UPDATE", "DELETE"] if record_id in self.live else ["CREATE"]
        if record_id in self.bin:
            choices.append("UNDELETE")
        kind = self.rng.choice(choices)
        self._told(kind, [record_id])
        return [self._event(f"GAP_{kind}", [record_id])]

    def _untold(self, ids: list[str]) -> Published:
        for each in ids:
            self._told(self.rng.choice(["CREATE", "UPDATE", "DELETE"]), [each])
        about = self.rng.choice([[], [ids[0]]])
        return self._event("GAP_OVERFLOW", about)

    def _change_type_of_amount(self) -> Published:
        self.version = 1
        for record in (*self.live.values(), *self.bin.values()):
            if record.get("Amount__c") is not None:
                record["Amount__c"] = str(record["Amount__c"])
        return self._event("GAP_UPDATE", ["001*"])

    def _values(self) -> dict[str, Any]:
        return {n: self._value(n) for n in FIELDS[self.version] if self.rng.random() < 0.6}

    def _value(self, name: str) -> Any:
        rng = self.rng
        if name == "Amount__c":
            number = rng.choice([None, 0.0, -1.5, 1e16])
            return number if number is None or self.version == 0 else str(number)
        if name == "Note__c":
            return rng.choice([None, "\n".join(rng.choice(["a", "b", ""]) for _ in range(9))])
        if name == "Address" or (name == "Name" and rng.random() < 0.5):
            return {part: rng.choice([None, "x", "y"]) for part in PARTS[self.version][name]}
        return rng.choice([None, "", 'q"u\\o', "Zürich", "1"])

    def _with_parts(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return *values* with all parts of each compound field, as in an event.

        Parts without a value are None.
        """
        found = {}
        for name, value in values.items():
            if isinstance(value, dict):
                value = {part: value.get(part) for part in PARTS[self.version][name]}
            found[name] = value
        return found

    def _event(
        self,
        kind: str,
        ids: list[str],
        fields: dict[str, Any] | None = None,
        changed: list[str] | None = None,
        nulled: list[str] | None = None,
        diffs: list[str] | None = None,
    ) -> Published:
        head = {
            "entityName": self.entity,
            "recordIds": list(ids),
            "changeType": kind,
            "changeOrigin": "",
            "transactionKey": "t",
            "sequenceNumber": self.sequence,
            "commitTimestamp": self.time,
            "commitNumber": self.commit,
            "commitUser": "005",
        }
        return Published(
            self.version, head, dict(fields or {}), changed or [], nulled or [], diffs or []
        )


def _set(record: dict[str, Any], path: str, value: Any) -> None:
    name, _, part = path.partition(".")
    if part:
        old = record.get(name)
        record[name] = {**(old if isinstance(old, dict) else {}), part: value}
    else:
        record[name] = value


def arrivals(org: Org, count: int) -> list[Published]:
    """Publish random changes; return their events in the order in which they arrive.

    Sometimes the oldest events are missing, and sometimes a few arrive late.
    """
    events = org.publish(count)
    rng = org.rng
    if rng.random() < 0.5:
        del events[: len(events) // 5]
    for _ in range(rng.choice([0, 0, count // 60 + 1])):
        place = rng.randrange(len(events))
        late = events.pop(place)
        events.insert(rng.randint(place, len(events)), late)
    return events
