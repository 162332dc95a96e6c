"""The streaming reader that Spark calls for the topics of a query.

Spark keeps one instance alive for a query, in a Python process next to the driver, and calls it in
this order (observed with PySpark 4.2 and 4.3)::

    initialOffset()                twice at the first start; again after a crash in the first batch
    partitions(start, end)         first of all, if a crash left the last batch unfinished
    latestOffset(start, limit)     start is the end of the last finished batch
    partitions(start, end)         possibly more than once
    commit(end)                    late, and never for the last batch: nothing relies on it
    reportLatestOffset()           for the query's progress

`read` runs on executors, in a copy that was never opened. An exception ends the query, so only
errors from which the client could not recover reach Spark. Each topic has its own stream and offset
(topic.py). This module only divides the size of a batch and the waiting time among the topics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.stream.feed import Schemas
from sfpubsub.spark.stream.offsets import Offset, Offsets
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.topic import Share, TopicReader
from sfpubsub.stores.schema_store import FileSchemaStore

if TYPE_CHECKING:
    import pyarrow as pa

    from sfpubsub.client.client import PubSubClient
    from sfpubsub.spark.stream.partition import EventPartition

# Seconds that `latestOffset` waits for a first event. If none arrives, Spark calls it again after
# 10 ms, so this limits the cost of an idle query. It adds no delay, because an event ends the wait.
_PATIENCE = 0.1


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one or more topics. Not thread-safe; only its options are pickled.

    No connection is opened before the first method call.

    Args:
        options: Options of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        kept = options.schema_store
        self._schemas = Schemas(FileSchemaStore(kept) if kept else None)
        self._client: PubSubClient | None = None
        self._until_now = False
        ahead = self._share(options.max_events, options.max_bytes)
        self._topics = [
            TopicReader(topic, options, self._schemas, self._connected, ahead)
            for topic in options.topics
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]  # a copy starts like a new one

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        """Return the offsets, as a JSON object, at which a query without a checkpoint starts."""
        for topic in self._topics:
            topic.is_new = True
        return self._offsets({}).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of events per batch, from the options."""
        return ReadMaxRows(self._options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to events published before now. The query ends after the last of them."""
        self.stop_at_now(keeps_position=True)

    def stop_at_now(self, *, keeps_position: bool) -> None:
        """Limit the query to events published before now. The query ends after the last of them.

        Args:
            keeps_position: Whether there is a checkpoint from which the next run continues.
        """
        self._until_now = True
        for topic in self._topics:
            topic.stop_at_now(keeps_position)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or *start* if there are no events.

        Even without events, the result differs from *start* if a keepalive has renewed the position
        of a quiet topic.

        Args:
            start: The end of the last finished batch.
            limit: Maximum number of rows or bytes in the batch; for any other kind of limit, the
                options apply.

        Raises:
            ConfigurationError: *start* is not a valid offset, or belongs to other topics.
            ReplayIdRejectedError: A position is no longer retained, and option failOnDataLoss is
                true.
            SfPubSubError: A subscription has failed.
        """
        known = Offsets.parse(start, self._options.topics)
        begins = self._offsets(known.by_topic)
        for topic in self._topics:
            topic.follow(begins.by_topic[topic.topic])
        share = self._share(
            limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_events,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes,
        )
        while True:
            ends = self._planned(begins, share)
            if ends != begins:
                return ends.json()
            if not self._until_now or all(topic.is_finished for topic in self._topics):
                return start

    def _planned(self, begins: Offsets, share: Share) -> Offsets:
        """Plan the next batch of each topic, and return the ends of these batches.

        The topics are planned one after another. Once one of them has events, this method does not
        wait for the others: they contribute only events that are already available.
        """
        ends = dict(begins.by_topic)
        began = time.monotonic()
        for place, topic in enumerate(self._topics):
            rest = max(0.0, began + _PATIENCE - time.monotonic())
            waits = 0.0 if ends != begins.by_topic else rest / (len(self._topics) - place)
            ends[topic.topic] = topic.plan(share, waits)
        return Offsets(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return each topic's metrics for the query's progress; None if no stream is open."""
        found = [latest for topic in self._topics if (latest := topic.latest()) is not None]
        if not found:
            return None
        return found[0] if len(self._topics) == 1 else {"topics": found}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the events of all topics after *start* up to *end*, in partitions.

        Raises:
            ConfigurationError: *start* or *end* is not a valid offset, or belongs to other topics.
            ReplayIdRejectedError: Some events are no longer retained, and option failOnDataLoss is
                true.
            SfPubSubError: A subscription has failed.
        """
        known = Offsets.parse(start, self._options.topics)
        first = self._offsets(known.by_topic).by_topic
        last = Offsets.parse(end, self._options.topics).by_topic
        return [
            partition
            for topic in self._topics
            if topic.topic in last
            for partition in topic.partitions(first[topic.topic], last[topic.topic])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition into rows. Spark calls it on executors."""
        return cast("EventPartition", partition).rows()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the *start* passed to `latestOffset` already shows what is finished."""

    def stop(self) -> None:
        """Close the client and the streams.

        Spark does not call this when a query is stopped; instead, it ends the process.
        """
        if self._client is not None:
            self._client.close()
        self._client = None
        for topic in self._topics:
            topic.close()

    def _offsets(self, known: dict[str, Offset]) -> Offsets:
        """Return *known*, extended by the initial offsets of the topics that it lacks."""
        new = {t.topic: t.initial for t in self._topics if t.topic not in known}
        return Offsets({**known, **new})

    def _share(self, events: int, size: int) -> Share:
        """Divide the limits of a batch equally among the topics; return the share of each."""
        count = len(self._options.topics)
        return Share(max(1, events // count), max(1, size // count))

    def _connected(self) -> PubSubClient:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> PubSubClient:
        return connect(self._options, self._schemas)


def connect(options: SourceOptions, schemas: Schemas) -> PubSubClient:
    """Create a client from the settings file, the profile and the environment variables.

    Raises:
        ConfigurationError: A setting is missing or not valid.
    """
    from sfpubsub.client.client import PubSubClient  # loads grpc

    places = {"config": options.config_file, "profile": options.profile}
    try:
        return PubSubClient.from_env(places, schema_store=schemas)
    except ConfigurationError as error:
        if options.config_file is not None:
            raise
        raise ConfigurationError(
            f"{error}. The source runs in a separate Python process, which gets no SFPUBSUB_… "
            f"variables from a session started by spark_session(): set option configFile to the "
            f"path of a settings file"
        ) from error
