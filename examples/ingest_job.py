"""Run the ingest job from your own program: write a topic to a raw Parquet table, each event once.

    python examples/ingest_job.py /event/Order_Event__e ./orders

`sfpubsub ingest` does the same, and more: several sources, progress, signals, schemas stored next
to the table. Use this program if you need your own Spark session.
"""

from __future__ import annotations

import sys

from sfpubsub import PubSubClient
from sfpubsub.spark import EventWriter, IngestJob, TableReplayStore, spark_session


def main() -> None:
    """Write all events that the service has, then end."""
    topic, table = sys.argv[1:]
    # Spark first: its JVM is started by a fork, which must not happen while gRPC's threads run.
    with (
        spark_session() as spark,
        EventWriter(spark, table, topic=topic) as writer,
        PubSubClient.from_env() as client,
        client.subscribe(topic, replay=TableReplayStore(writer), ack="manual") as subscription,
    ):
        summary = IngestJob(subscription, writer, idle_timeout=5).run()
    print(summary)


if __name__ == "__main__":
    main()
