"""Run a streaming query over a topic: write the sum of orders by city to a Parquet directory.

    python examples/streaming_query.py pubsub.toml /event/Order_Event__e totals checkpoint

It reads the available events and ends; the next run continues from its checkpoint. The settings
file sets the org and the credentials, because the source runs in a separate process, which gets no
SFPUBSUB_ variables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.spark import PubSubDataSource, spark_session


def main() -> None:
    """Run the query once."""
    settings, topic, totals, checkpoint = sys.argv[1:]

    def write(rows: DataFrame, number: int) -> None:
        # A batch that is repeated after a crash has the same number, and overwrites its first copy.
        rows.write.mode("overwrite").parquet(str(Path(totals) / f"batch={number}"))

    with spark_session() as spark:
        spark.dataSource.register(PubSubDataSource)
        events = (
            spark.readStream.format("sfpubsub")
            .option("configFile", settings)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("idleTimeout", 5)
            .load()
        )
        orders = (
            events.select(
                f.from_json("payload_json", "City__c STRING, Amount__c DOUBLE").alias("order")
            )
            .groupBy("order.City__c")
            .agg(f.sum("order.Amount__c").alias("amount"))
        )
        query = (
            orders.writeStream.outputMode("complete")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .foreachBatch(write)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
