"""Ingest: write the events of subscriptions, topics and channels to one raw table.

Spark is started first, because it forks a JVM, which must not happen while gRPC's threads run. The
client is opened second, so that a missing topic does not leave a table behind. The table is opened
third, because its positions determine where to subscribe. The subscriptions are opened last and
closed first, so that they are drained before the table is closed. This module makes no decisions
about events: each source has an `IngestJob`, and `Streams` runs them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TypeAlias

from pyspark.sql import SparkSession

from sfpubsub.client.batch import EventBatch
from sfpubsub.client.client import PubSubClient
from sfpubsub.client.last_confirmed import LastConfirmed
from sfpubsub.config import WINDOW, Limits
from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.channels import ChannelSubscription
from sfpubsub.spark.ingest.job import IngestJob, Writer
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.ingest.progress import Progress, Summary
from sfpubsub.spark.ingest.rights import OrgGrants, RightsWatch
from sfpubsub.spark.ingest.service import Service
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.spark.ingest.shared_writer import SharedWriter, SourceWriter
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.ingest.streams import SourceSubscription, Stream, Streams
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.destination import check_sources
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.session import is_session, spark_session
from sfpubsub.spark.runtime.threaded import ThreadedJob
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.types import Health

_log = logging.getLogger("sfpubsub.spark")

# File patterns by which a table's directory is recognised: parquet, delta, iceberg.
_MARKS = ("_table.json", "_delta_log", "metadata/*.metadata.json")

Spark: TypeAlias = SparkSession | AbstractContextManager[SparkSession] | None

OnProgress: TypeAlias = Callable[[Source, Progress], None]
OnAcked: TypeAlias = Callable[[Source, EventBatch, int], None]
Wrap: TypeAlias = Callable[[Source, SourceSubscription, Writer], tuple[SourceSubscription, Writer]]


class Ingest(ThreadedJob):
    """Writes the events of several sources to one raw table, each event exactly once.

    ::

        with Ingest([Source("topic", "/event/Order_Event__e")], to="./orders") as ingest:
            ingest.run()  # until another thread or a signal handler calls stop()

    An event is acked only after it is durable in the table, so the process can be killed at any
    moment: the next run resumes. For topics under ``/data/``, the org is asked every five minutes
    whether the user may see every record; if not, a gap is stored.

    Use it as a context manager, and run it once. If Ctrl-C interrupts a call, the job stops as with
    `stop`, and KeyboardInterrupt is raised once everything is closed; a second Ctrl-C ends it
    without draining. What belongs to the caller is never closed. `stop` and `health` are
    thread-safe.

    Args:
        sources: The sources to read.
        to: The raw table; see `EventWriter`.
        format: ``parquet``, ``delta`` or ``iceberg``.
        settings: All other settings.
        options: Settings of the service, as for `PubSubClient.from_env`.
        spark: A session of the caller's, or what `spark_session` returns, which is entered and
            left. By default, a session is started, unless the process has one already.
        client: A client of the caller's, whose session is also used for HTTP requests. By default,
            one is opened. It must be created after Spark's JVM was started.
        on_progress: Called after each write, in the source's thread.
        on_acked: Called after *on_progress*, with the last response of the write, and how many of
            its events the write included.
        wrap: Called for each source when it is opened; returns what the source's job uses instead
            of its subscription and writer, for instance to trace calls.

    Raises:
        ConfigurationError: A setting is missing or not valid, there is no source, or the
            destination is not valid, or is inside another table.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        to: str | os.PathLike[str],
        format: str = "parquet",  # noqa: A002  # named as in Spark
        settings: IngestSettings | None = None,
        options: Mapping[str, str | None] | None = None,
        spark: Spark = None,
        client: PubSubClient | None = None,
        on_progress: OnProgress | None = None,
        on_acked: OnAcked | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        self.settings: IngestSettings = settings or IngestSettings()
        self.table: Destination = _checked(Destination.parse(to, format, self.settings.staging))
        super().__init__(f"ingest into {self.table.name}")
        self.sources: tuple[Source, ...] = Source.several(*_names(sources))
        check_sources(self.table, self.sources)
        self.service: Service = Service(options, client)
        self.streams: list[Stream] = []
        """For each source, its job, subscription and outcome, once they are open. Empty if the job
        was stopped before.
        """
        self._given = spark
        self._on_progress = on_progress
        self._on_acked = on_acked
        self._wrap = wrap

    def run(self) -> dict[Source, Summary]:
        """Read and write until every source has ended or the job is stopped; close everything.

        Returns:
            Why each source ended, and what it has done. Empty if the job was stopped before its
            sources were open.

        Raises:
            AuthenticationError: The sign-in was rejected.
            ReplayIdRejectedError: A position was rejected, and there is no fallback.
            WriteError: The table could not be written, or Spark has exited. Nothing was acked that
                is not in the table.
            SfPubSubError: A source has failed for another reason. `streams` has the errors of all.
        """
        self._run()
        ended = {stream.source: stream.summary for stream in self.streams}
        return {source: summary for source, summary in ended.items() if summary is not None}

    def health(self) -> dict[Source, Health]:
        """Return the health of each source's subscription, or its last one if it has ended."""
        return {stream.source: stream.subscription.health() for stream in self.streams}

    def _open(self, opened: ExitStack) -> None:
        self.spark: SparkSession = opened.enter_context(
            session_of(self._given, self.table.format, f"sfpubsub ingest {self.table.name}")
        )
        if self._is_stopping:
            return
        schemas = _Schemas()
        client = None
        if any(source.kind != "channel" for source in self._subscribed):
            client = opened.enter_context(self.service.client(schemas))
            self._check_names(client)
        self.sidecars: Sidecars = Sidecars(self.spark, self.table)
        settings, (managed, topics, channels) = self.settings, _names(self.sources)
        quarantines = settings.on_undecodable == "quarantine"
        self.writer: EventWriter = EventWriter(
            self.spark,
            self.table.address,
            format=self.table.format,
            on_undecodable=settings.on_undecodable,
            quarantine=self.sidecars.quarantine if quarantines else None,
            subscription=managed,
            topic=topics,
            channel=channels,
            staging=self.table.staging,
            maintain=settings.maintain,
            org_id=self.service.org_id,
            table_properties=settings.table_properties,
            window_keys=settings.window_keys,
        )
        opened.callback(self.writer.close)
        self.sidecars.open()
        opened.callback(self.sidecars.close)
        schemas.store = self.sidecars.schemas
        shared = SharedWriter(
            self.writer, max_events=settings.batch_events, max_bytes=settings.batch_bytes
        )
        streams = []
        for source in self._subscribed:
            member = shared.of(source)
            subscription = self._subscribe(source, member, client)
            opened.callback(subscription.abort)  # if it is not run
            streams.append(self._stream(source, subscription, member))
        self.streams = streams

    @property
    def _subscribed(self) -> Sequence[Source]:
        """The sources that are subscribed to."""
        return self.sources

    def _work(self) -> None:
        if self.streams:
            jobs = Streams(self.streams, self.settings.on_source_failure)
            if self._is_stopping:
                jobs.stop()
            jobs.run()

    def _stop(self) -> None:
        for stream in self.streams:
            stream.job.stop()

    def _abort(self) -> None:
        for stream in self.streams:
            stream.subscription.abort()

    def _check_names(self, client: PubSubClient) -> None:
        """Look up the topics, so that a table is created only if their names are correct.

        Managed subscriptions and channels cannot be looked up in this way.

        Raises:
            SfPubSubError: A topic cannot be read, and the error is not transient. If the others
                continue after a failure, this is raised only if no source can be read.
        """
        failures: list[SfPubSubError] = []
        for source in self.sources:
            if source.kind != "topic":
                continue
            try:
                client.get_topic(source.name)
            except SfPubSubError as error:
                if not error.retryable:  # otherwise the subscription retries
                    failures.append(error)
        # With "continue", ignore a failure if other sources work. The source's subscription reports
        # it.
        stops = self.settings.on_source_failure == "stop"
        if failures and (stops or len(failures) == len(self.sources)):
            raise failures[0]

    def _stream(
        self, source: Source, subscription: SourceSubscription, member: SourceWriter
    ) -> Stream:
        read_from: SourceSubscription = subscription
        write_with: Writer = member
        if self._wrap is not None:
            read_from, write_with = self._wrap(source, subscription, member)
        settings, rights = self.settings, self._rights(source, subscription)
        job = IngestJob(
            read_from,
            write_with,
            sidecars=self.sidecars,
            last_confirmed=self._last_confirmed(source),
            on_progress=None if self._on_progress is None else partial(self._on_progress, source),
            on_acked=None if self._on_acked is None else partial(self._on_acked, source),
            on_health=lambda health: self._note_health(health, rights),
            batch_events=settings.batch_events,
            batch_bytes=settings.batch_bytes,
            batch_seconds=settings.batch_seconds,
            max_events=settings.max_events,
            idle_timeout=settings.idle_timeout,
            until_caught_up=settings.until_caught_up,
        )

        def finish() -> None:
            try:
                job.settle()
            finally:
                member.leave()

        return Stream(source, job, subscription, _block(read_from, rights), finish)

    def _note_health(self, health: Health, rights: RightsWatch | None) -> None:
        """Called in a source's thread a few times a second, and before each write."""
        if rights is not None:
            rights.advance(health.last_position)

    def _rights(self, source: Source, subscription: SourceSubscription) -> RightsWatch | None:
        # A managed subscription's topic is asked for, because the API does not name it.
        has_changes = source.kind == "managed" or source.name.startswith("/data/")
        if source.kind == "channel" or not has_changes:
            return None
        return RightsWatch(
            source.name,
            OrgGrants(self.service.sessions, self.service.http, source),
            subscription.report_gap,
            partial(_log.warning, "%s: %s", source),
            # Finding its topic needs a permission of administrators, and it may have no changes.
            level=logging.INFO if source.kind == "managed" else logging.WARNING,
        )

    def _last_confirmed(self, source: Source) -> LastConfirmed | None:
        if source.kind != "managed":
            return None  # the service rejects a lost position, instead of starting elsewhere
        stored = self.sidecars.confirmed(source.name)
        return LastConfirmed(source.name, stored, self.service.settings.timings)

    def _subscribe(
        self, source: Source, member: SourceWriter, client: PubSubClient | None
    ) -> SourceSubscription:
        # A batch is acked as a whole, and the next batch is received while Spark writes this one.
        unacked = max(Limits.max_unacked, 2 * self.settings.batch_events + WINDOW)
        if client is None or source.kind == "channel":
            position = member.positions.get(source.name)
            return ChannelSubscription(
                self.service.streaming_client,
                source.name,
                position,
                fallback=self.settings.fallback,
            )
        if source.kind == "managed":
            return client.subscribe_managed(source.name, ack="manual", max_unacked=unacked)
        return client.subscribe(
            source.name,
            replay=self._replay_store(member),
            replay_fallback=self.settings.fallback,
            ack="manual",
            max_unacked=unacked,
        )

    def _replay_store(self, member: SourceWriter) -> TableReplayStore:
        return TableReplayStore(member)


@contextmanager
def _block(subscription: SourceSubscription, rights: RightsWatch | None) -> Iterator[None]:
    with rights or nullcontext(), subscription:
        yield


def session_of(given: Spark, format: str, name: str) -> AbstractContextManager[SparkSession]:  # noqa: A002
    """Return a context manager of a job's session, which leaves a session of the caller's open."""
    if given is None:
        return spark_session(format=format, app_name=name)
    return nullcontext(given) if is_session(given) else given


def _checked(table: Destination) -> Destination:
    for above in table.local.parents if table.local is not None else ():
        if any(next(above.glob(mark), None) is not None for mark in _MARKS):
            raise ConfigurationError(
                f"{table} would be inside the table {above}: choose another directory"
            )
    return table


def _names(sources: Sequence[Source]) -> list[list[str]]:
    return [
        [source.name for source in sources if source.kind == kind]
        for kind in ("managed", "topic", "channel")
    ]


class _Schemas(SchemaStore):
    """Schema store for the client. Looks up schemas in the table.

    `put` does nothing, because each job stores an event's schema before it writes the event.
    """

    def __init__(self) -> None:
        self.store: SchemaStore | None = None

    def get(self, schema_id: str) -> str | None:
        return None if self.store is None else self.store.get(schema_id)

    def put(self, schema_id: str, schema_json: str) -> None:
        pass
