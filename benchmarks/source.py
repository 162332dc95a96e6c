"""Cost of the connection for the streaming source, in triggers of 100,000 events.

Prints one JSON line. Two sources are interleaved within one session: the real source, which is
subscribed to a server on loopback, and the same source with a generator instead of the connection
and the client. Spark times each trigger (``triggerExecution``: offsets, journal, partitions,
decoding on executors). The sink discards the rows, so that it adds almost no time. Triggers run at
an interval, as in production, which gives the source time to receive the next events.
``end_to_end`` compares triggers without pauses instead, in which the server and the client use the
same cores as Spark.

The target (0.7) applies to triggers with an interval. The server is that of the other benchmarks;
its events are platform events of about 140 bytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.feed import corpus
from benchmarks.server import serving
from sfpubsub.spark import PubSubDataSource, spark_session
from sfpubsub.spark.stream.feed import ReceivedEvent
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.reader import EventStreamReader
from sfpubsub.types import RawEvent, ReplayId

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

KIND = "platform"
TOPIC = f"/data/{KIND}_100_0_0"  # the topic's name on the benchmark server
EVENTS = 100_000  # per trigger
RESPONSE = 100  # maximum number of events per response
DISTINCT = 2  # triggers until ids repeat; the source never holds more events than this
TARGET = 0.7
DEADLINE = 900.0  # seconds for a few triggers, even on a busy machine


def events(count: int) -> list[RawEvent]:
    """Return *count* events like those that the server sends."""
    schema, payloads = corpus(KIND)
    return [
        RawEvent(
            f"{number:08x}-0000-4000-8000-000000000000",
            schema.schema_id,
            payloads[number % len(payloads)],
            ReplayId(number.to_bytes(8, "big") + b"\0\0"),
        )
        for number in range(count)
    ]


# The same source, fed from memory.


class GeneratorReader(EventStreamReader):
    """The source's reader, with a generator instead of the subscription."""

    def _open(self, base: Any, start: Any) -> Any:
        self._base, self._held = base, []
        self._feed = GeneratorFeed()  # type: ignore[assignment]
        schema, _ = corpus(KIND)
        self._schemas.put(schema.schema_id, schema.text)
        return self._feed


class GeneratorFeed:
    """Supplies events from memory without waiting."""

    def __init__(self) -> None:
        self._events = [ReceivedEvent(raw, time.time()) for raw in events(DISTINCT * EVENTS)]
        self._place = 0
        gc.collect()
        gc.freeze()  # otherwise so many objects would slow down every garbage collection

    def take(self, _timeout: float) -> list[ReceivedEvent]:
        """Return the next `RESPONSE` events."""
        place, self._place = self._place, (self._place + RESPONSE) % len(self._events)
        return self._events[place : place + RESPONSE]

    def gaps(self) -> list[Any]:
        """Return an empty list: no position is ever lost."""
        return []

    tip = None
    idle = 0.0


class GeneratorDataSource(PubSubDataSource):
    """The Spark data source ``generator``, which reads events from memory."""

    @classmethod
    def name(cls) -> str:
        """Return the format name of the data source in Spark."""
        return "generator"

    def streamReader(self, schema: Any) -> EventStreamReader:  # noqa: N802
        """Return a `GeneratorReader` with the options of the query."""
        return GeneratorReader(SourceOptions.parse(self.options))


# The measurement.


def triggers(spark: Any, source: str, settings: str, count: int, interval: float) -> list[Any]:
    """Run a query until *count* full triggers follow the first one; return their progress."""
    query = (
        spark.readStream.format(source)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", EVENTS)
        .option("configFile", settings)
        .load()
        .writeStream.format("noop")
        .trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        .start()
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            full = [p for p in query.recentProgress if p.numInputRows == EVENTS]
            if len(full) > count:
                return full[1:]  # the first trigger starts workers and compiles
            if not query.isActive or time.monotonic() > deadline:
                raise SystemExit(f"{source}: the query stopped or is too slow: {query.exception()}")
            time.sleep(0.2)
    finally:
        query.stop()


def seconds(progress: list[Any]) -> list[float]:
    """Return the duration of each trigger, in seconds."""
    return [p.durationMs["triggerExecution"] / 1000 for p in progress]


def measure(spark: Any, settings: str, rounds: int, each: int, interval: float) -> dict[str, Any]:
    """Measure both sources in turn, and return their times and ratios."""
    spark.dataSource.register(PubSubDataSource)
    spark.dataSource.register(GeneratorDataSource)
    taken: dict[str, list[float]] = {"sfpubsub": [], "generator": []}
    flat: dict[str, list[float]] = {"sfpubsub": [], "generator": []}
    waited: dict[str, list[float]] = {"sfpubsub": [], "generator": []}
    for _ in range(rounds):
        for source in taken:
            progress = triggers(spark, source, settings, each, interval)
            taken[source] += seconds(progress)
            waited[source] += [p.durationMs["latestOffset"] / 1000 for p in progress]
            flat[source] += seconds(triggers(spark, source, settings, each, 0.0))
    offsets = {name: statistics.median(times) for name, times in waited.items()}
    medians = {name: statistics.median(times) for name, times in taken.items()}
    flats = {name: statistics.median(times) for name, times in flat.items()}
    ratio = medians["generator"] / medians["sfpubsub"]
    return {
        "trigger_events": EVENTS,
        "triggers": len(taken["sfpubsub"]),
        "source_s": round(medians["sfpubsub"], 3),
        "generator_s": round(medians["generator"], 3),
        "source_latest_offset_s": round(offsets["sfpubsub"], 3),
        "generator_latest_offset_s": round(offsets["generator"], 3),
        "ratio": round(ratio, 2),
        "end_to_end_ratio": round(flats["generator"] / flats["sfpubsub"], 2),
        "source_events_per_s": round(EVENTS / medians["sfpubsub"]),
        "target": TARGET,
        "ok": ratio >= TARGET,
    }


def main() -> None:
    """Start Spark and the server, measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triggers", type=int, default=4, help="triggers per source and round")
    parser.add_argument("--interval", type=float, default=8.0, help="seconds between triggers")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session(settings={"spark.driver.memory": "2g"}) as spark,
        serving() as server,
    ):
        settings = Path(directory, "settings.toml")
        settings.touch(mode=0o600)
        settings.write_text(
            f'endpoint = "{server.target(0)}"\nca_file = "{server.ca_file}"\naccess_token = "x"\n'
            f'instance_url = "https://localhost"\ntenant_id = "00D000000000000EAA"\n'
        )
        rate = measure(spark, str(settings), options.rounds, options.triggers, options.interval)
    print(json.dumps({"warning": server.warning, **rate}))
    sys.exit(0 if rate["ok"] else 1)


if __name__ == "__main__":
    main()
