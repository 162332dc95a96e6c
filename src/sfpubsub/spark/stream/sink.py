"""Publish rows from Spark as events. A retried task publishes them again with the same event ids.

Each task publishes its rows over its own stream, with its own session, so that no plan contains
credentials. It succeeds only after all its events have results, so every row is published at least
once. If the task is retried, its events have the same ids as before. There are two kinds of ids:

- The ids in a column (option ``idColumn``). Only these also stay the same if a job is started over.
- Ids derived from the write, the partition, the row's content, and the number of earlier rows with
  the same content in the partition. So the order of the rows does not matter, and two equal rows
  are two events. The write is identified by the ids of a query and its batch, which stay the same
  after a restart from the checkpoint, or by a random id for each ``save``.

Like every sink, this relies on Spark passing the same rows to a retried task.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from sfpubsub.errors import ConfigurationError, PublishError
from sfpubsub.spark.stream.options import named_options
from sfpubsub.types import PublishCounts

logger = logging.getLogger("sfpubsub.spark")

NAMES = ("topic", "idColumn", "createdBy", "timeout", "configFile", "profile")

# Options of the query itself, which Spark also passes to the sink.
SPARKS_OWN = ("checkpointlocation",)

# Seconds to wait for the result of an event. After that the task fails, and Spark retries it.
DEFAULT_TIMEOUT = 120.0

# Local properties that Spark sets in the tasks of a streaming query.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

# Namespace of the generated ids, so that they do not collide with UUIDs from other sources.
_NAMESPACE = uuid.UUID("6f0b9a39-6a5c-4b0e-9a0e-5b2f6f6e7375")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SinkOptions:
    """Options of a write. Contains no secrets, and is pickled."""

    topic: str
    id_column: str | None = None
    """Column with the event ids, which is not published as a field; None generates ids."""
    created_by: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    config_file: str | None = None
    """Path of a settings file on every executor."""
    profile: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse Spark's options. Names are case-insensitive, as in Spark.

        Raises:
            ConfigurationError: An option is missing, unknown, malformed, or looks like a
                credential.
        """
        given = named_options(
            {name: value for name, value in options.items() if name.lower() not in SPARKS_OWN},
            NAMES,
            "sink",
        )
        topic = given.get("topic", "")
        if not topic.startswith("/"):
            raise ConfigurationError(
                f"option topic is {topic!r}: name a topic by its path, such as "
                f"/event/Order_Event__e"
            )
        try:
            timeout = float(given.get("timeout", DEFAULT_TIMEOUT))
        except ValueError:
            timeout = 0.0
        if not 0 < timeout < 86_400:
            raise ConfigurationError(
                f"option timeout is {given['timeout']!r}: it must be a number of seconds above 0 "
                f"and below 86400"
            )
        return cls(
            topic=topic,
            id_column=given.get("idColumn"),
            created_by=given.get("createdBy"),
            timeout=timeout,
            config_file=given.get("configFile"),
            profile=given.get("profile"),
        )


class Published(WriterCommitMessage):
    """Counts of the events that a task has published."""

    def __init__(self, counts: PublishCounts) -> None:
        self.accepted: int = counts.accepted
        self.sent_again: int = counts.sent_again


class EventSink(DataSourceWriter):
    """Publishes the rows of a DataFrame. Spark pickles it and sends it to executors.

    Args:
        options: See `SinkOptions`.
        columns: Names of the DataFrame's columns.
        write_id: Id of this ``save``; part of the event ids.
    """

    def __init__(self, options: SinkOptions, columns: Sequence[str], write_id: str) -> None:
        _check(options, columns)
        self._options = options
        self._write_id = write_id

    def write(self, iterator: Iterator[Row]) -> Published:
        """Publish the rows of one task, wait for all results, and return the counts.

        Raises:
            PublishError: An event was rejected, got no result in time, or lacks an id (idColumn).
            SfPubSubError: A setting is not valid, or the publisher has failed.
        """
        return _publish(self._options, iterator, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the number of published events."""
        _log(self._options.topic, messages)


class EventStreamSink(DataSourceStreamWriter):
    """Publishes the rows of a query, batch by batch. Spark pickles it and sends it to executors.

    Args:
        options: See `SinkOptions`.
        columns: Names of the query's columns.
    """

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        _check(options, columns)
        self._options = options

    def write(self, iterator: Iterator[Row]) -> Published:
        """Publish the rows of one task, wait for all results, and return the counts.

        Raises:
            ConfigurationError: Spark did not pass the ids of the query and the batch.
            PublishError: An event was rejected, got no result in time, or lacks an id (idColumn).
            SfPubSubError: A setting is not valid, or the publisher has failed.
        """
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise ConfigurationError(
                "Spark did not pass the query and batch ids to its tasks, so event ids cannot be "
                "derived from them: set option idColumn to the name of a column that contains ids"
            )
        return _publish(self._options, iterator, f"{query}/{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the number of published events."""
        _log(f"batch {batchId} to {self._options.topic}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that a batch is incomplete. If Spark retries it, the event ids are the same."""
        logger.warning("batch %d was not completely published to %s", batchId, self._options.topic)


class Ids:
    """Generates the ids of one task's events.

    Args:
        write: Id of the write that the task belongs to.
        partition: Number of the task's partition.
    """

    def __init__(self, write: str, partition: int) -> None:
        self._prefix = f"{write}/{partition}/"
        self._seen: Counter[bytes] = Counter()

    def next(self, value: Mapping[str, Any]) -> str:
        """Return the event id for the next row, whose fields are *value*."""
        text = json.dumps(value, sort_keys=True, default=repr)
        content = hashlib.blake2b(text.encode(), digest_size=16).digest()
        number = self._seen[content]
        self._seen[content] += 1
        return str(uuid.uuid5(_NAMESPACE, f"{self._prefix}{content.hex()}/{number}"))


def field_value(value: Any) -> Any:
    """Convert the value of a column to the value of an event's field.

    A timestamp becomes milliseconds since the epoch, and a decimal becomes a double. Other values
    are unchanged.
    """
    if isinstance(value, datetime):
        # Spark passes a timestamp in the local time zone of the process.
        return round((value.astimezone(UTC) - _EPOCH).total_seconds() * 1000)
    return float(value) if isinstance(value, Decimal) else value


def _publish(options: SinkOptions, rows: Iterator[Row], write: str) -> Published:
    from sfpubsub.client.client import PubSubClient  # loads grpc

    first = next(rows, None)
    if first is None:  # do not sign in: many tasks of a small batch have no rows
        return Published(PublishCounts())
    ids = Ids(write, _context().partitionId())
    places = {"config": options.config_file, "profile": options.profile}
    with (
        PubSubClient.from_env(places) as client,
        client.open_publisher(
            options.topic, timeout=options.timeout, created_by=options.created_by
        ) as publisher,
    ):
        for row in itertools.chain([first], rows):
            value = {name: field_value(column) for name, column in row.asDict().items()}
            if options.id_column is None:
                event_id = ids.next(value)
            else:
                event_id = _given_id(options.topic, value, options.id_column)
            publisher.send(value, event_id=event_id)
        publisher.flush()
        return Published(publisher.counts)


def _given_id(topic: str, value: dict[str, Any], column: str) -> str:
    event_id = value.pop(column)
    if event_id is None:
        raise PublishError(
            f"{topic}: a row has no id in column {column}: fill the column, or omit option idColumn"
        )
    return str(event_id)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError(
            "the sink can only write within Spark tasks: use DataFrame.write or writeStream"
        )
    return context


def _check(options: SinkOptions, columns: Sequence[str]) -> None:
    if options.id_column is not None and options.id_column not in columns:
        raise ConfigurationError(
            f"option idColumn is {options.id_column!r}, which is not a column: use one of "
            f"{', '.join(columns)}"
        )


def _log(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    found = [message for message in messages if isinstance(message, Published)]
    accepted = sum(message.accepted for message in found)
    again = sum(message.sent_again for message in found)
    logger.info("%s: published %d events, with %d resends", what, accepted, again)
