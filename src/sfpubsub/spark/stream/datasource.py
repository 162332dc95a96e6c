"""The Structured Streaming source ``sfpubsub``.

Spark makes a `PubSubDataSource` in several short-lived processes and pickles it, so it holds its
options and opens nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import pyspark

from sfpubsub.errors import ConfigurationError


def check_version(version: str) -> None:
    """Make sure that PySpark can run the source.

    Raises:
        ConfigurationError: It cannot: sources written in Python can bound a batch since 4.2.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (4, 2):
        raise ConfigurationError(
            f"the streaming source needs PySpark 4.2 or newer, and this is {version}: pip install "
            f"'sfpubsub[spark]' into an environment without Iceberg, or use sfpubsub ingest"
        )


check_version(pyspark.__version__)  # before the imports that would fail with less of a reason

from pyspark.sql.datasource import DataSource  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from sfpubsub.spark.raw.frames import spark_schema  # noqa: E402
from sfpubsub.spark.stream.batch import EventReader  # noqa: E402
from sfpubsub.spark.stream.options import SourceOptions  # noqa: E402
from sfpubsub.spark.stream.partition import SOURCE_SCHEMA  # noqa: E402
from sfpubsub.spark.stream.reader import EventStreamReader  # noqa: E402


class PubSubDataSource(DataSource):
    """Reads topics as a stream of rows, those of the raw table, or as a frame of what is there now.

    ::

        spark.dataSource.register(PubSubDataSource)
        events = spark.readStream.format("sfpubsub").option("topic", "/data/ChangeEvents").load()
        today = spark.read.format("sfpubsub").option("topic", "/data/ChangeEvents").load()

    Args:
        options: What the query says; see `SourceOptions`.

    Raises:
        ConfigurationError: One of them is not valid, or looks like a credential.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sfpubsub"

    def schema(self) -> StructType:
        """Return the columns of the raw table, and the Avro schema, which some rows have."""
        return spark_schema(SOURCE_SCHEMA)

    def reader(self, schema: StructType) -> EventReader:
        """Return what reads from a position to now."""
        return EventReader(self._parsed)

    def streamReader(self, schema: StructType) -> EventStreamReader:  # noqa: N802  # Spark's name
        """Return what reads."""
        return EventStreamReader(self._parsed)
