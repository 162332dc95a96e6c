"""A streaming query over a topic: the sum of all orders by city, in a Parquet directory.

    python examples/streaming_query.py pubsub.toml /event/Order_Event__e totals checkpoint

It reads what there is and ends; run again, it goes on from its checkpoint. Where to read and as
whom is in the settings file: the source runs in a process of its own, which gets no variables.
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
        # A batch that is repeated after a crash has the same number, and replaces itself.
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
