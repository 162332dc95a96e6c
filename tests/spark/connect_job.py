"""Use the package with Spark Connect: ``python connect_job.py SETTINGS DIRECTORY``.

Prints as JSON how many rows were streamed, and the error of the writer that is not supported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sfpubsub.errors import SfPubSubError
from sfpubsub.spark import ForeachBatchWriter, PubSubDataSource

TOPIC = "/event/Order_Event__e"


def main() -> None:
    settings, place = sys.argv[1:]
    directory = Path(place)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.dataSource.register(PubSubDataSource)
    events = (
        spark.readStream.format("sfpubsub")
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("idleTimeout", 1)
        .option("configFile", settings)
        .load()
    )
    query = (
        events.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "streamed"))
    )
    query.awaitTermination()
    try:
        ForeachBatchWriter(spark, directory / "refused", topic=TOPIC)
    except SfPubSubError as error:
        refusal = str(error)
    else:
        refusal = "nothing"
    count = spark.read.parquet(str(directory / "streamed")).count()
    print(json.dumps({"streamed": count, "refusal": refusal}))
    spark.stop()


if __name__ == "__main__":
    main()
