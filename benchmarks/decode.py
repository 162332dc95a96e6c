"""Speed of decoding payloads to dicts, relative to fastavro in the same run.

    python -m benchmarks decode [--events 1000] [--repeats 21]

Prints one JSON line. ``pe`` is a platform event of 10 fields. ``acct`` is an Account change event
of 58 fields with a header, two addresses and a union of three branches; a quarter of the events are
CREATEs. Both are from the test corpus. fastavro reads each payload from a new `BytesIO`, as in a
client. The decoders are interleaved, with one pass over all events at a time. The figures are
medians of CPU time, and the ratio is the median of the ratios per round. Only ratios can be
compared between machines.
"""

from __future__ import annotations

import argparse
import io
import json
import operator
import platform
import statistics
import time
from collections.abc import Iterable
from typing import Any

import fastavro
from tests.avro.schemas import schema_text, values

from benchmarks.cpu import for_each, interleaved
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.json import to_json

ACCOUNT_FIELDS = 58


def reference(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a reference schema, and events that match it."""
    if name == "pe":
        return schema_text("order_event"), list(values("order_event", arguments.events))
    schema = json.loads(schema_text("account_change"))
    schema["fields"] = schema["fields"][:ACCOUNT_FIELDS]
    kept = {field["name"] for field in schema["fields"]}
    events = values("account_change", arguments.events)
    return json.dumps(schema), [{k: v for k, v in e.items() if k in kept} for e in events]


def measure(name: str) -> dict[str, float]:
    """Return the times and the ratio for one reference schema."""
    text, events = reference(name)
    schema = fastavro.parse_schema(json.loads(text))
    payloads = []
    for event in events:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, event)
        payloads.append(out.getvalue())
    started = time.process_time()
    codec = Codec("id", text)
    codec.decode(payloads[0])
    compiled = time.process_time() - started

    def theirs(payload: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(payload), schema, None)

    assert all(codec.decode(payload) == theirs(payload) for payload in payloads)
    decoded = [codec.decode(payload) for payload in payloads]
    times = interleaved(
        {
            "fastavro": for_each(theirs, payloads),
            "codec": for_each(codec.decode, payloads),
            "json": for_each(json.dumps, decoded),
            "to_json": for_each(to_json, decoded),
        },
        rounds=arguments.repeats,
        events=len(payloads),
    )
    return {
        "bytes": round(statistics.mean(map(len, payloads))),
        "fastavro_us": median(times["fastavro"]),
        "decode_us": median(times["codec"]),
        "ratio": median(map(operator.truediv, times["fastavro"], times["codec"])),
        "json_dumps_us": median(times["json"]),
        "to_json_us": median(times["to_json"]),
        "compile_ms": round(compiled * 1e3, 1),
    }


def median(figures: Iterable[float]) -> float:
    return round(statistics.median(figures), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    print(
        json.dumps(
            {
                "benchmark": "decode",
                "python": platform.python_version(),
                "fastavro": fastavro.__version__,
                **{name: measure(name) for name in ("pe", "acct")},
            }
        )
    )
