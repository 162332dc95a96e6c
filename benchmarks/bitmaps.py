"""What naming the fields of a change event costs, as a share of the event's own cost.

Prints one JSON line. The schema is the Account of the tests' corpus; the events are
updates of about four fields, every second one with some parts of an address. All work is done by
turns, and medians of the CPU time are compared. Two streams:

- ``common``: 20 different events, as an org's automations make them; the cache answers.
- ``random``: every event has bitmaps of its own, so the cache hardly helps.

``changed`` expands changedFields, ``lists`` all three. Each is compared with ``event``, an event's
way from the bytes of a response to ``event.value`` without the network; with ``decode``, the
decoder alone; and with ``fastavro`` in its place.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

import fastavro

from benchmarks.cpu import for_each, interleaved
from benchmarks.feed import corpus
from sfpubsub.avro.bitmaps import ChangeSchema
from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.transports import wire
from sfpubsub_grpc import pubsub_api_pb2 as pb

EVENTS = 2_000  # four times the bitmaps that a schema keeps
ROUNDS = 15  # enough for a stable median on a busy machine


def bitmap(indices: list[int]) -> str:
    """Write a bitmap as the service does."""
    number = sum(1 << index for index in indices)
    return f"0x{number.to_bytes((number.bit_length() + 7) // 8 or 1, 'big').hex().upper()}"


def update(rng: random.Random, fields: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Make an update of about four fields; every second one changes parts of an address."""
    scalars = [i for i, field in enumerate(fields) if "string" in field["type"]]
    touched = sorted(rng.sample(scalars, 4))
    nulled = touched[:1] if rng.random() < 0.3 else []
    value: dict[str, Any] = {fields[i]["name"]: f"text {i}" for i in touched if i not in nulled}
    changed = [bitmap(touched)]
    if rng.random() < 0.5:
        address = next(i for i, field in enumerate(fields) if field["name"] == "BillingAddress")
        value["BillingAddress"] = {"Street": "One Market", "City": "San Francisco"}
        changed.append(f"{address}-{bitmap([0, 1])}")
    value["ChangeEventHeader"] = {
        "entityName": "Account",
        "recordIds": [f"001{number:012}AAA"],
        "changeType": "UPDATE",
        "changeOrigin": "com/salesforce/api/soap/60.0;client=SfdcInternalAPI/",
        "transactionKey": "000f2c32-5f2b-4a0e-9d62-0d1a3ce5bd0c",
        "sequenceNumber": 1,
        "commitTimestamp": 1_771_300_995_000,
        "commitNumber": 1_136_478_295_000 + number,
        "commitUser": "005SB0000000001AAA",
        "nulledFields": [bitmap(nulled)] if nulled else [],
        "diffFields": [],
        "changedFields": changed,
    }
    return value


def response(payloads: list[bytes]) -> bytes:
    """Return the bytes of a response with events of these payloads."""
    events = [
        pb.ConsumerEvent(
            event=pb.ProducerEvent(id=f"{number:036}", schema_id="bench", payload=payload),
            replay_id=number.to_bytes(10, "big"),
        )
        for number, payload in enumerate(payloads)
    ]
    return pb.FetchResponse(events=events, latest_replay_id=b"x").SerializeToString()


def measure(codec: Codec, parsed: Any, values: list[dict[str, Any]]) -> dict[str, float]:
    """Decode and expand *values*, by turns."""
    payloads = [codec.encode(value) for value in values]
    responses = [response(payloads[start : start + 100]) for start in range(0, EVENTS, 100)]
    headers = [codec.decode(payload)["ChangeEventHeader"] for payload in payloads]
    schema = ChangeSchema(codec.schema_id, codec.schema_json)

    def oracle(payload: bytes) -> None:
        fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)

    def whole() -> None:
        for message in responses:
            batch = EventBatch(
                subscription="bench",
                topic=None,
                events=wire.response(pb.FetchResponse.FromString(message)).events,
                codecs={codec.schema_id: codec},
                first_seq=0,
                received_at=0.0,
                ack=lambda _first, _last: None,
            )
            for event in batch:
                _ = event.value

    def changed(header: dict[str, Any]) -> None:
        schema.expand(header["changedFields"])

    def lists(header: dict[str, Any]) -> None:
        schema.expand(header["changedFields"])
        schema.expand(header["nulledFields"])
        schema.expand(header["diffFields"])

    works: dict[str, Callable[[], None]] = {
        "fastavro": for_each(oracle, payloads),
        "decode": for_each(codec.decode, payloads),
        "event": whole,
        "changed": for_each(changed, headers),
        "lists": for_each(lists, headers),
    }
    works["lists"]()  # what a process does once
    times = interleaved(works, rounds=ROUNDS, events=EVENTS)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        **{f"{name}_us": round(median, 3) for name, median in medians.items()},
        **{
            f"{part}_share_of_{of}": round(medians[part] / medians[of], 4)
            for part in ("changed", "lists")
            for of in ("event", "decode", "fastavro")
        },
    }


def main() -> None:
    """Measure and print."""
    rng = random.Random(4)
    text = corpus("change")[0].text
    codec = Codec("bench", text)
    fields = json.loads(text)["fields"]
    common = [update(rng, fields, number) for number in range(20)]
    results = {
        "common": [common[number % len(common)] for number in range(EVENTS)],
        "random": [update(rng, fields, number) for number in range(EVENTS)],
    }
    parsed = fastavro.parse_schema(json.loads(text))
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "events": EVENTS,
                "rounds": ROUNDS,
                **{name: measure(codec, parsed, values) for name, values in results.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
