"""Schemas and events for tests: two small schemas, and the corpus of ``tests/data``."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order_Event__e",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {"name": "CreatedDate", "type": "long", "doc": "CreatedDate:DateTime"},
            {"name": "CreatedById", "type": "string", "doc": "CreatedBy:EntityId"},
            {"name": "City__c", "type": ["null", "string"], "default": None},
            {"name": "Amount__c", "type": ["null", "double"], "default": None},
        ],
    }
)

CHANGE = json.dumps(
    {
        "type": "record",
        "name": "AccountChangeEvent",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {
                "name": "ChangeEventHeader",
                "type": {
                    "type": "record",
                    "name": "ChangeEventHeader",
                    "fields": [{"name": "commitTimestamp", "type": "long"}],
                },
            },
            {"name": "Name", "type": ["null", "string"], "default": None},
        ],
    }
)

DATA = Path(__file__).parent.parent / "data"

# The corpus: a description of each schema, by file name.
CORPUS = {
    "order_event": "a platform event",
    "order_event_v2": "the same event after a field was added",
    "account_change": "60+ nullable fields, Address and Location by definition and by reference, "
    "Switchable_PersonName",
    "account_change_2023": "the older shape: Address with Xyz, no SNAPSHOT",
    "contact_change": "PersonName",
    "person_account_change": "the required Switchable_PersonName, without null",
    "shipment_change": "one entity of a channel",
    "carrier_change": "another entity of the same channel",
}


def schema_text(name: str) -> str:
    """Return the JSON text of a schema in the corpus."""
    return (DATA / "schemas" / f"{name}.avsc").read_text()


def values(name: str, count: int, *, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield *count* random events of a schema in the corpus; equal seeds give equal events.

    A quarter of the change events are CREATEs with most fields, the rest UPDATEs with a few.
    """
    schema = json.loads(schema_text(name))
    for index in range(count):
        yield Maker(random.Random(f"{name} {seed} {index}")).event(schema)


def payload(name: str, value: Mapping[str, Any]) -> bytes:
    """Return *value* encoded in Avro by fastavro, independently of this package."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema_text(name)), value)
    return out.getvalue()


def golden(name: str) -> Iterator[tuple[bytes, str]]:
    """Yield each stored payload of a schema, with the JSON text that fastavro decoded from it."""
    for line in (DATA / "payloads" / f"{name}.jsonl").read_text().splitlines():
        kept = json.loads(line)
        yield base64.b64decode(kept["payload"]), kept["json"]


def changes() -> list[dict[str, Any]]:
    """Return the change events of ``changes.json`` with their payloads and expected results.

    ``event`` contains the fields that are not null, ``fields`` the expected state and value of each
    changed field. The expected results were written by hand.
    """
    cases: list[dict[str, Any]] = json.loads((DATA / "changes.json").read_text())
    for case in cases:
        case["payload"] = base64.b64decode(case["payload"])
    return cases


class Maker:
    """Creates random events for Avro schemas, with values like those that Salesforce sends.

    The values depend on the type and doc of each field.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.named: dict[str, Any] = {}
        self.filled = 1.0  # share of the nullable fields that have a value

    def event(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a random event of *schema*, with a header if it is a change event."""
        header = schema["fields"][0]["name"] == "ChangeEventHeader"
        create = not header or self.rng.random() < 0.25
        self.filled = 0.85 if create else 0.08
        event: dict[str, Any] = {}
        for field in schema["fields"]:
            event[field["name"]] = self.value(field["type"], field.get("doc", ""))
        if header:
            event["ChangeEventHeader"] = self.header(schema["name"], create)
        return event

    def header(self, name: str, create: bool) -> dict[str, Any]:
        """Return a random header for a change event of type *name*."""
        rng = self.rng
        return {
            "entityName": name.removesuffix("ChangeEvent").removesuffix("__") or name,
            "recordIds": [self.id("001") for _ in range(1 if rng.random() < 0.9 else 3)],
            "changeType": "CREATE" if create else "UPDATE",
            "changeOrigin": "" if rng.random() < 0.3 else "com/salesforce/api/soap/64.0;client=X",
            "transactionKey": f"{rng.getrandbits(128):032x}",
            "sequenceNumber": rng.randint(1, 70),
            "commitTimestamp": 1_771_300_995_000 + rng.randrange(10**9),
            "commitNumber": 11_000_000_000_000 + rng.randrange(10**9),
            "commitUser": self.id("005"),
            "nulledFields": [],
            "diffFields": [],
            "changedFields": [] if create else [f"0x{rng.getrandbits(24):06X}"],
        }

    def id(self, prefix: str) -> str:
        """Return a random id of 18 characters that begins with *prefix*."""
        return prefix + "".join(self.rng.choices("ABCDEFGHIJabcdefghij0123456789", k=15))

    def value(self, kind: Any, doc: str) -> Any:
        """Return a random value of the Avro type *kind*."""
        if isinstance(kind, list):
            full = [branch for branch in kind if branch != "null"]
            for branch in full:
                self.declare(branch)
            if "null" in kind and self.rng.random() >= self.filled:
                return None
            return self.value(self.rng.choice(full), doc)
        if isinstance(kind, dict) and kind["type"] == "record":
            self.declare(kind)
            return {
                field["name"]: self.value(field["type"], field.get("doc", ""))
                for field in kind["fields"]
            }
        if isinstance(kind, dict):  # part of the header, which event() replaces
            return None
        if kind in self.named:
            return self.value(self.named[kind], doc)
        return self.plain(kind, doc)

    def declare(self, kind: Any) -> None:
        """Remember a named type, so that later fields can refer to it."""
        if isinstance(kind, dict):
            self.named[kind["name"]] = kind

    def plain(self, kind: str, doc: str) -> Any:
        """Return a random value of a primitive type; *doc* is the field's doc in the schema."""
        rng = self.rng
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "int":
            return rng.choice((0, 1, 63, 64, -1, 250_000, 2**31 - 1, -(2**31)))
        if kind == "long":
            return 1_771_300_995_000 + rng.randrange(10**9)
        if kind == "double":
            return round(rng.uniform(-1e4, 1e6), 2)
        if kind == "string" and ":EntityId" in doc:
            return self.id("005")
        if kind == "string" and "Clob" in doc:
            return "Ein längerer Text with some words. " * rng.randrange(5)
        return rng.choice(("Hot", "Zürich", "Energy", "+41 44 000 00 00", "", "東京都", "warm 🙂"))


def regenerate() -> None:
    """Regenerate the stored payloads and expected JSON: python -m tests.avro.schemas."""
    (DATA / "payloads").mkdir(exist_ok=True)
    for name in CORPUS:
        with open(DATA / "payloads" / f"{name}.jsonl", "w") as out:
            for value in values(name, 12):
                raw = payload(name, value)
                schema = json.loads(schema_text(name))
                read = fastavro.schemaless_reader(io.BytesIO(raw), schema, None)
                text = json.dumps(read, separators=(",", ":"), ensure_ascii=False)
                line = {"payload": base64.b64encode(raw).decode(), "json": text}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
    cases = json.loads((DATA / "changes.json").read_text())
    for case in cases:
        case["payload"] = base64.b64encode(payload(case["schema"], case["event"])).decode()
    text = json.dumps(cases, indent=1, ensure_ascii=False)
    (DATA / "changes.json").write_text(text + "\n")


if __name__ == "__main__":
    regenerate()
