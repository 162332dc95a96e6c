"""Run the ingest job from your own program: write a topic to a raw Parquet table, each event once.

    python examples/ingest_job.py /event/Order_Event__e ./orders

`sfpubsub ingest` runs the same job, with progress messages and monitoring.
"""

from __future__ import annotations

import sys

from sfpubsub.spark import Ingest, IngestSettings, Source


def main() -> None:
    """Write all events that the service has, then end."""
    topic, table = sys.argv[1:]
    settings = IngestSettings(until_caught_up=True, idle_timeout=5)
    with Ingest([Source("topic", topic)], to=table, settings=settings) as ingest:
        for source, summary in ingest.run().items():
            print(source, summary)


if __name__ == "__main__":
    main()
