"""The Spark data source ``sfpubsub``, which reads events from topics and publishes rows as events.

Spark creates a `PubSubDataSource` in several short-lived processes and pickles it, so it contains
only its options and opens no connections.
"""

from __future__ import annotations

import uuid
from collections.abc import MutableMapping

import pyspark

from sfpubsub.errors import ConfigurationError


def check_version(version: str) -> None:
    """Check that PySpark supports the source.

    Raises:
        ConfigurationError: *version* is older than 4.2, the first version in which a Python data
            source can limit the size of a batch.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (4, 2):
        raise ConfigurationError(
            f"the streaming source needs PySpark 4.2 or newer, but this is {version}: run pip "
            f"install 'sfpubsub[spark]' in an environment without Iceberg, or use sfpubsub ingest"
        )


check_version(pyspark.__version__)  # before the imports, which would fail with a less helpful error

from pyspark.sql.datasource import DataSource  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from sfpubsub.spark.formats.frames import spark_schema  # noqa: E402
from sfpubsub.spark.stream.batch import EventReader  # noqa: E402
from sfpubsub.spark.stream.options import SourceOptions, refuse_credential  # noqa: E402
from sfpubsub.spark.stream.partition import SOURCE_SCHEMA  # noqa: E402
from sfpubsub.spark.stream.reader import EventStreamReader  # noqa: E402
from sfpubsub.spark.stream.sink import EventSink, EventStreamSink, SinkOptions  # noqa: E402


class PubSubDataSource(DataSource):
    """Reads topics as a stream of raw table rows, or as a DataFrame of the events available now.

    It also publishes the rows of a DataFrame or query to a topic, one event per row.

    ::

        spark.dataSource.register(PubSubDataSource)
        events = spark.readStream.format("sfpubsub").option("topic", "/data/ChangeEvents").load()
        today = spark.read.format("sfpubsub").option("topic", "/data/ChangeEvents").load()
        sink = orders.write.format("sfpubsub").option("topic", "/event/Order_Event__e")
        sink.mode("append").save()

    Args:
        options: Options of the query; see `SourceOptions`, or `SinkOptions` for writing.

    Raises:
        ConfigurationError: An option is not valid, or looks like a credential.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        for name, value in self._given.items():
            refuse_credential(name, value)

    @property
    def _parsed(self) -> SourceOptions:
        # Parsed only when reading, because writing has other options.
        return SourceOptions.parse(self._given)

    @classmethod
    def name(cls) -> str:
        """Return ``sfpubsub``, the name of the format in Spark."""
        return "sfpubsub"

    def schema(self) -> StructType:
        """Return the columns of the raw table, and ``schema_json`` for the Avro schemas.

        Raises:
            ConfigurationError: An option is not valid.
        """
        SourceOptions.parse(self._given)  # a wrong option fails before a query starts
        return spark_schema(SOURCE_SCHEMA)

    def reader(self, schema: StructType) -> EventReader:
        """Return a reader for ``spark.read``.

        Raises:
            ConfigurationError: An option is not valid, or a topic would start at ``latest``.
        """
        return EventReader(self._parsed)

    def streamReader(self, schema: StructType) -> EventStreamReader:  # noqa: N802  # Spark's name
        """Return a reader for ``spark.readStream``.

        Raises:
            ConfigurationError: An option is not valid.
        """
        return EventStreamReader(self._parsed)

    def writer(self, schema: StructType, overwrite: bool) -> EventSink:
        """Return a writer that publishes the rows of a DataFrame.

        Raises:
            ConfigurationError: *overwrite* is set, or an option is not valid.
        """
        if overwrite:
            raise ConfigurationError("published events cannot be overwritten: use mode('append')")
        return EventSink(SinkOptions.parse(self._given), schema.names, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EventStreamSink:  # noqa: N802
        """Return a writer that publishes the rows of a streaming query.

        Raises:
            ConfigurationError: *overwrite* is set, or an option is not valid.
        """
        if overwrite:
            raise ConfigurationError(
                "published events cannot be overwritten: use outputMode('append')"
            )
        return EventStreamSink(SinkOptions.parse(self._given), schema.names)
