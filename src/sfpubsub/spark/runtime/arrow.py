"""Pass Arrow data to Spark and back, with each PySpark version that the package supports.

PySpark 4.0 and newer do it themselves. With 3.5, the rows travel as binary values, each with one
message of Arrow's IPC format, and `mapInArrow` converts them on the executors.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

# Largest IPC message, in bytes: Spark sends the rows within tasks, and rejects those above 128 MB.
_MESSAGE_BYTES = 8 * 1024 * 1024

_IPC = "ipc BINARY"

_HAS_ARROW = hasattr(DataFrame, "toArrow")


def arrow_schema(columns: StructType) -> pa.Schema:
    """Convert a Spark schema to an Arrow schema. Timestamps get the time zone UTC."""
    # PySpark 4.2 needs the zone, whereas earlier versions always use UTC.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(columns, timezone="UTC")
    return to_arrow_schema(columns)


def frame_of_rows(
    spark: SparkSession, rows: pa.Table | list[Any], schema: StructType | None = None
) -> DataFrame:
    """Create a DataFrame with `createDataFrame`, but do not leave *spark* as the active session.

    `createDataFrame` makes its session that of the calling thread, so another thread calls it.

    Args:
        spark: The session of the DataFrame.
        rows: An Arrow table, whose timestamps must have a time zone; or a list of rows.
        schema: Schema of a list of rows.
    """
    if isinstance(rows, pa.Table) and not len(rows):  # Spark Connect infers no schema from it
        return frame_of_rows(spark, [], from_arrow_schema(rows.schema))
    with ThreadPoolExecutor(1) as another:
        if isinstance(rows, pa.Table) and not _HAS_ARROW:
            return another.submit(_from_messages, spark, rows).result()
        create: Any = spark.createDataFrame
        frame: DataFrame = another.submit(create, rows, schema).result()
        return frame


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame, as its method `toArrow` does."""
    if _HAS_ARROW:
        return frame.toArrow()
    columns = arrow_schema(frame.schema)
    # `mapInArrow` looks up columns by their unquoted names.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(columns))))
    messages = numbered.mapInArrow(_encoder(), _IPC).collect()
    batches = [batch for (message,) in messages for batch in pa.ipc.open_stream(message)]
    if not batches:
        return columns.empty_table()
    return pa.Table.from_batches(batches).rename_columns(columns.names).cast(columns)


def _from_messages(spark: SparkSession, rows: pa.Table) -> DataFrame:
    pieces = max(1, -(-rows.nbytes // _MESSAGE_BYTES))
    size = max(1, -(-len(rows) // pieces))
    messages = [(_message(rows.slice(first, size)),) for first in range(0, len(rows), size)]
    found = spark.createDataFrame(messages, _IPC).coalesce(pieces)
    return found.mapInArrow(_decoder(), from_arrow_schema(rows.schema))


def _message(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


# The functions for executors are made by others, so that they are sent there as a whole, and the
# executors need pyarrow, but not this package.


def _decoder() -> Any:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for message in batch.column(0):
                yield from pa.ipc.open_stream(message.as_buffer())

    return decode


def _encoder() -> Any:
    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            message = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([message], ["ipc"])

    return encode
