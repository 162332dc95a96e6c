"""Twenty sources that write small batches to one table: one commit for all, or one for each.

``python -m benchmarks sources delta --seconds 60``; prints one JSON line. Each source submits a
batch every ten seconds, at a random offset. The benchmark shows whether each write ends before the
source's next batch is due, and how many commits the table gets.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.spark import EventWriter, spark_session
from sfpubsub.spark.ingest.schedule import DEFAULT_PATIENCE
from sfpubsub.spark.ingest.shared_writer import SharedWriter
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.types import RawEvent, ReplayId

# Seconds between two batches of a source, the default of the ingest job.
PERIOD = 10.0

SCHEMA = {
    "type": "record",
    "name": "Order_Event__e",
    "fields": [
        {"name": "CreatedDate", "type": "long"},
        {"name": "CreatedById", "type": "string"},
        {"name": "Notes__c", "type": "string"},
    ],
}


def batch_of(source: str, codec: Codec, count: int) -> EventRows:
    """Return *count* new events of *source* as rows, with 100 bytes of text each."""
    now = time.time()
    value = {"CreatedDate": round(now * 1000), "CreatedById": "005", "Notes__c": "x" * 100}
    payload = codec.encode(value)
    events = tuple(
        RawEvent(str(uuid.uuid4()), "schema", payload, ReplayId(uuid.uuid4().bytes))
        for _ in range(count)
    )
    batch = EventBatch(
        subscription=source,
        topic=source,
        events=events,
        codecs={"schema": codec},
        first_seq=0,
        received_at=now,
        ack=lambda first, last: None,
    )
    rows = EventRows()
    rows.extend(batch, now)
    return rows


def main() -> None:
    """Write batches from all sources for some time, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=["parquet", "delta", "iceberg"])
    parser.add_argument("--sources", type=int, default=20)
    parser.add_argument("--events", type=int, default=100, help="events per batch")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--apart", action="store_true", help="make one commit for each batch")
    options = parser.parse_args()
    codec = Codec("schema", json.dumps(SCHEMA))
    names = [f"/event/Topic_{number}__e" for number in range(options.sources)]
    late: list[float] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session(format=options.format) as spark,
        EventWriter(spark, Path(directory, "raw"), format=options.format, topic=names) as writer,
    ):
        commits: list[int] = []
        write = writer.write_parts

        def counted(parts, moves=None):  # type: ignore[no-untyped-def]
            commits.append(len(parts))
            return write(parts, moves)

        writer.write_parts = counted  # type: ignore[method-assign]
        most = 1 if options.apart else 10_000
        shared = SharedWriter(writer, max_events=most, max_bytes=1 << 30, patience=DEFAULT_PATIENCE)
        # Spark's first write is slow.
        writer.write_collected(batch_of(names[0], codec, 1), names[0])
        end = time.monotonic() + options.seconds

        def run(source: str, offset: float) -> None:
            member = shared.of(next(s for s in writer.sources if s.name == source))
            due = time.monotonic() + offset
            while due < end:
                # Like a job: write when due, or earlier together with other sources.
                while time.monotonic() < due and not member.flush_requested:
                    time.sleep(0.25)
                member.write_collected(batch_of(source, codec, options.events))
                late.append(max(0.0, time.monotonic() - due))
                due = max(due, time.monotonic()) + PERIOD

        threads = [
            threading.Thread(target=run, args=(name, random.uniform(0, PERIOD))) for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(
        json.dumps(
            {
                "format": options.format,
                "sources": options.sources,
                "apart": options.apart,
                "seconds": options.seconds,
                "batches": len(late),
                "commits": len(commits) - 1,
                "median_s": round(statistics.median(late), 2),
                "longest_s": round(max(late), 2),
                "in_time": max(late) < PERIOD,
            }
        )
    )


if __name__ == "__main__":
    main()
