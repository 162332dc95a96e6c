"""Cost of decoding the field lists of a change event, relative to the cost of the whole event.

Prints one JSON line. The schema is the Account schema of the test corpus. The events are updates of
about four fields; about half of them also change parts of an address. The measurements are
interleaved, and medians of the CPU time are compared. There are two streams:

- ``common``: 20 different events, like those of an org's automations, which the cache covers.
- ``random``: every event has different bitmaps, so the cache hardly helps.

``changed`` expands changedFields, ``lists`` expands all three lists. Each is compared with
``event``, which takes an event from the bytes of a response to ``event.value``, without the
network; with ``decode``, the decoder alone; and with ``fastavro`` instead of the decoder.
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

EVENTS = 2_000  # four times the number of bitmaps that a schema caches
ROUNDS = 15  # enough for a stable median on a busy machine


def bitmap(indices: list[int]) -> str:
    """Return the bitmap of field *indices* in the hexadecimal form that the service uses."""
    number = sum(1 << index for index in indices)
    return f"0x{number.to_bytes((number.bit_length() + 7) // 8 or 1, 'big').hex().upper()}"


def update(rng: random.Random, fields: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Return an update of four fields; half of the updates also change parts of an address."""
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
    """Return the bytes of a FetchResponse with one event per payload."""
    events = [
        pb.ConsumerEvent(
            event=pb.ProducerEvent(id=f"{number:036}", schema_id="bench", payload=payload),
            replay_id=number.to_bytes(10, "big"),
        )
        for number, payload in enumerate(payloads)
    ]
    return pb.FetchResponse(events=events, latest_replay_id=b"x").SerializeToString()


def measure(codec: Codec, parsed: Any, values: list[dict[str, Any]]) -> dict[str, float]:
    """Return the CPU times of decoding and expanding *values*, and the shares of expanding."""
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
    works["lists"]()  # fills the cache, which happens once per process
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
    """Measure both streams and print the result."""
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
