"""Schemas and payloads that the benchmark servers send, created from the test corpus."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from tests.avro.schemas import schema_text, values

from sfpubsub.emulator.org.schemas import Schema

WINDOW = 100  # events that may be outstanding, as with the service
COUNT = 200  # different payloads of a kind, sent repeatedly with new ids
FIELDS = 58  # number of fields of the change event; the schema in the corpus has more
# Pattern of CREATEs (True), which have most fields, and UPDATEs, which have few: on average, an
# event has 630 bytes and 33 fields with a value.
CREATES = (True, False, True, False, True, True, False, True)
SPARSE = 6  # minimum number of fields with a value in a sparse update; its mean size is 270 bytes


@dataclass(frozen=True)
class Kind:
    """A kind of event: its topic and its schema."""

    topic: str
    """Topic of the kind in the emulator; the benchmark servers use other names."""
    schema: str
    """Name of the schema in the test corpus."""


KINDS = {
    "change": Kind("/data/AccountChangeEvent", "account_change"),
    "sparse": Kind("/data/AccountChangeEvent", "account_change"),
    "platform": Kind("/event/Order_Event__e", "order_event"),
}


def corpus(kind: str) -> tuple[Schema, list[bytes]]:
    """Return the schema of a kind and `COUNT` payloads, with the current time as event time."""
    name = KINDS[kind].schema
    text = json.loads(schema_text(name))
    text["fields"] = text["fields"][:FIELDS]
    if kind == "sparse":  # so that each kind has a different schema id
        text["doc"] = kind
    schema, kept = Schema(json.dumps(text)), {field["name"] for field in text["fields"]}
    payloads: dict[bool, list[bytes]] = {True: [], False: []}
    for value in values(name, 5 * COUNT):  # a quarter of the events are CREATEs
        is_create = value.get("ChangeEventHeader", {}).get("changeType") == "CREATE"
        fields = {field: part for field, part in young(value).items() if field in kept}
        if kind == "sparse" and sum(part is not None for part in fields.values()) < SPARSE:
            continue
        payloads[is_create].append(schema.encode(fields, now=0.0))
    wanted = [kind == "change" and CREATES[n % len(CREATES)] for n in range(COUNT)]
    return schema, [payloads[is_create].pop() for is_create in wanted]


def young(value: dict[str, Any]) -> dict[str, Any]:
    """Return *value* with the current time, so that a writer does not look it up in the table."""
    now = round(time.time() * 1000)
    if "ChangeEventHeader" in value:
        return {**value, "ChangeEventHeader": value["ChangeEventHeader"] | {"commitTimestamp": now}}
    return {**value, "CreatedDate": now}


def write(directory: Path) -> Path:
    """Write the events for a server and its TLS certificate into *directory*.

    Returns:
        The PEM file of the certificate authority that clients must trust.
    """
    authority = trustme.CA(organization_name="sfpubsub benchmarks")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    with (directory / "certificate.pem").open("wb") as out:
        out.writelines(blob.bytes() for blob in issued.cert_chain_pems)
    kinds = {}
    for kind in KINDS:
        schema, payloads = corpus(kind)
        kinds[kind] = {
            "schema_id": schema.schema_id,
            "schema": schema.text,
            "payloads": [base64.b64encode(payload).decode() for payload in payloads],
        }
    feed = {"certificate": "certificate.pem", "key": "key.pem", "kinds": kinds}
    (directory / "feed.json").write_text(json.dumps(feed))
    return directory / "ca.pem"
