"""A typical streaming query: the source `sfpubsub`, and foreachBatch into a raw table.

``python source_job.py TABLE CHECKPOINT TOPIC START [now]`` requires the ``SFPUBSUB_…`` variables.
Prints the pid of Spark's JVM, and "done" at the end. `source_killer.py` runs and kills it.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from sfpubsub.spark import ForeachBatchWriter, PubSubDataSource

# Small batches, so that kills hit many boundaries between them.
BATCH_EVENTS = 200


def main() -> None:
    table, checkpoint, topic, start, *more = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    print(f"jvm {jvm}", flush=True)
    spark.dataSource.register(PubSubDataSource)
    events = (
        spark.readStream.format("sfpubsub")
        .option("topic", topic)
        .option("startingOffsets", start)
        .option("maxOffsetsPerTrigger", BATCH_EVENTS)
        .option("idleTimeout", 5)
        .load()
    )
    with ForeachBatchWriter(spark, table, topic=topic) as writer:
        query = events.writeStream.foreachBatch(writer).option("checkpointLocation", checkpoint)
        if more:
            query = query.trigger(availableNow=True)
        query.start().awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
