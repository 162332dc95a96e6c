"""A program for any Spark master: a query with the streaming source, then the ingest job.

``python cluster_job.py MASTER SETTINGS DIRECTORY EVENTS [no-grpc]`` reads from the emulator in the
settings file, and prints the results as JSON. With ``no-grpc``, the executors' Python cannot import
grpc, which is checked first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sfpubsub import PubSubClient
from sfpubsub.spark import (
    EventWriter,
    ForeachBatchWriter,
    IngestJob,
    PubSubDataSource,
    TableReplayStore,
    spark_session,
)

TOPIC = "/event/Order_Event__e"

# Spark passes the executors' environment to the source's process as well, which needs grpc.
BLOCK = """
import importlib, os, sys
if not any("streaming_source_runner" in part for part in sys.orig_argv):
    raise ImportError("no grpc here")
sys.path.remove(os.path.dirname(__file__))
del sys.modules["grpc"]
sys.modules["grpc"] = importlib.import_module("grpc")
"""


def main() -> None:
    master, settings, place, events, *more = sys.argv[1:]
    directory = Path(place)
    wanted = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (directory / "eventlog").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if more:
        (directory / "block").mkdir()
        (directory / "block" / "grpc.py").write_text(BLOCK)
        wanted["spark.executorEnv.PYTHONPATH"] = str(directory / "block")
    (directory / "eventlog").mkdir()
    with spark_session(master, settings=wanted) as spark:
        report = {
            "executors": sorted(set(spark.range(4, numPartitions=4).rdd.map(probe).collect()))
        }
        report |= query(spark, directory, settings)
        report |= job(spark, directory, settings, int(events))
    print(json.dumps(report))


def probe(_row: object) -> str:
    """Return whether an executor can import grpc, and its number of SFPUBSUB_ environment
    variables.
    """
    import os

    try:
        import grpc  # noqa: F401
    except ImportError:
        found = "no grpc"
    else:
        found = "grpc"
    names = [name for name in os.environ if name.startswith("SFPUBSUB_")]
    return f"{found}, {len(names)} settings"


def query(spark, directory: Path, settings: str) -> dict:
    """Run the streaming query once, and return its number of batches, its rows and its plan."""
    spark.dataSource.register(PubSubDataSource)
    events = (
        spark.readStream.format("sfpubsub")
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("idleTimeout", 1)
        .option("maxOffsetsPerTrigger", 100)
        .option("configFile", settings)
        .load()
    )
    with ForeachBatchWriter(spark, directory / "streamed", topic=TOPIC) as writer:
        running = (
            events.writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        plan = running._jsq.explainInternal(True)
    return {
        "batches": len(running.recentProgress),
        "streamed": spark.read.parquet(str(directory / "streamed")).count(),
        "plan": plan,
    }


def job(spark, directory: Path, settings: str, events: int) -> dict:
    """Run the ingest job until it has received *events* events, and return the number of rows."""
    with (
        EventWriter(spark, directory / "ingested", topic=TOPIC) as writer,
        PubSubClient.from_env({"config": settings}) as client,
        client.subscribe(TOPIC, replay=TableReplayStore(writer), ack="manual") as subscription,
    ):
        IngestJob(subscription, writer, max_events=events).run()
    return {"ingested": spark.read.parquet(str(directory / "ingested")).count()}


if __name__ == "__main__":
    main()
