"""The ingest job as a program of your own: a topic into a raw Parquet table, each event once.

    python examples/ingest_job.py /event/Order_Event__e orders

`sfpubsub ingest` does the same, and more: several sources, progress, signals, schemas kept beside
the table. Take this where the session of Spark is yours.
"""

from __future__ import annotations

import sys

from sfpubsub import PubSubClient
from sfpubsub.spark import EventWriter, IngestJob, TableReplayStore, spark_session


def main() -> None:
    """Write what there is, then end."""
    topic, table = sys.argv[1:]
    # Spark first: its JVM is started by a fork, which must not happen beside gRPC's threads.
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
