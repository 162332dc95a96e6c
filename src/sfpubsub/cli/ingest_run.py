"""One run of ``sfpubsub ingest``: opens its resources in order, and closes them in reverse."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession, org_id_of
from sfpubsub.cli.ingest_report import Report
from sfpubsub.cli.live import echo
from sfpubsub.cli.service import StopRequest, connected_client
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.tracing import Subscription as Reading
from sfpubsub.cli.tracing import TracedSubscription, TracedWriter
from sfpubsub.cli.waiting import Waiting
from sfpubsub.cli.watching import Address, is_traced, watching
from sfpubsub.cli.write_watch import WriteWatch
from sfpubsub.config import WINDOW, Limits, Settings
from sfpubsub.errors import SfPubSubError
from sfpubsub.stores.schema_store import SchemaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.last_confirmed import LastConfirmed
    from sfpubsub.client.subscription import Subscription
    from sfpubsub.spark.ingest.channels import ChannelSubscription
    from sfpubsub.spark.ingest.job import Writer
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.ingest.rights import RightsWatch
    from sfpubsub.spark.ingest.sidecars import Sidecars
    from sfpubsub.spark.ingest.streams import OnFailure, Stream, Streams
    from sfpubsub.spark.ingest.together import Member, SharedWriter
    from sfpubsub.spark.ingest.undecodable import OnUndecodable
    from sfpubsub.spark.ingest.writer import EventWriter
    from sfpubsub.spark.raw.destination import Destination
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.streaming import StreamingClient
    from sfpubsub.types import Health


@dataclass
class _Open:
    """Objects that all sources of a run share: side tables, writer, session and client."""

    sidecars: Sidecars
    together: SharedWriter
    sessions: CurrentSession
    client: PubSubClient | None
    """Client for managed subscriptions and topics; None if all sources are channels."""


class Run:
    """Runs one job per source. All jobs write to the same table.

    Spark is started first, because it forks a JVM, which must not happen while gRPC's threads run.
    The client is opened second, so that a missing topic does not leave a table behind. The table is
    opened third, because its positions determine where to subscribe. The subscriptions are opened
    last and closed first, so that they are drained before the table is closed.
    """

    def __init__(
        self,
        sources: tuple[Source, ...],
        table: Destination,
        *,
        on_source_failure: OnFailure,
        on_undecodable: OnUndecodable,
        window_keys: int | None,
        fallback: str | None,
        settings: Settings,
        spark_settings: dict[str, str],
        table_properties: dict[str, str],
        job_settings: dict[str, Any],
    ) -> None:
        self.report = Report(sources)
        self.streams: list[Stream] = []
        self._sources = sources
        self._table = table
        self._on_source_failure = on_source_failure
        self._on_undecodable = on_undecodable
        self._window_keys = window_keys
        self._fallback = fallback
        self._settings = settings
        self._spark_settings = spark_settings
        self._table_properties = table_properties
        self._org_id = ""
        self._job_settings = job_settings

    def all(
        self,
        master: str | None,
        service: dict[str, str | None],
        stop: StopRequest,
        http: Address | None = None,
    ) -> None:
        """Open all resources, and read until every source has ended or a stop is requested."""
        from sfpubsub.spark.ingest.streams import Streams

        with ExitStack() as opened:
            self._monitor = opened.enter_context(
                watching(
                    f"ingest into {self._table.name}",
                    http,
                    timings=self._settings.timings,
                    also=self.report.text,
                    ends=True,
                )
            )
            spark = self._spark(opened, master, stop)
            if stop.requested:
                return
            schemas = _Schemas()
            sessions = CurrentSession(session_provider(self._settings))
            client = None
            if any(source.kind != "channel" for source in self._sources):
                client = opened.enter_context(connected_client(schemas, sessions, **service))
                self._check_names(client)
            self._org_id = org_id_of(sessions.get().tenant_id)
            table = self._open(opened, spark, sessions, client)
            schemas.store = table.sidecars.schemas
            self.streams += [self._stream(table, source) for source in self._sources]
            jobs = Streams(self.streams, self._on_source_failure)
            opened.callback(jobs.join)  # before the objects that the jobs use are closed
            stop.tell(lambda: self._stop(jobs))
            # Existing objects live as long as the process. Exempting them from garbage collection
            # saves a tenth of the time.
            gc.freeze()
            try:
                jobs.run()
            except KeyboardInterrupt:  # a second Ctrl-C ends without draining
                if client is not None:
                    client.close()
                raise

    def _stop(self, jobs: Streams) -> None:
        echo("stopping: writing the events received so far")
        jobs.stop()

    def _spark(self, opened: ExitStack, master: str | None, stop: StopRequest) -> SparkSession:
        from sfpubsub.spark.runtime.session import spark_session

        self.report.say("starting Spark")
        session = spark_session(
            master,
            format=self._table.format,
            app_name=f"sfpubsub ingest {self._table.name}",
            settings=self._spark_settings,
        )
        spark = start_spark(session, stop)
        opened.push(session)
        return spark

    def _check_names(self, client: PubSubClient) -> None:
        """Look up the topics, so that a table is created only if their names are correct.

        Managed subscriptions and channels cannot be looked up in this way.

        Raises:
            SfPubSubError: A topic cannot be read, and the error is not transient. With
                ``--on-source-failure continue``, this is raised only if no source can be read.
        """
        failures: list[SfPubSubError] = []
        for source in self._sources:
            if source.kind != "topic":
                continue
            try:
                client.get_topic(source.name)
            except SfPubSubError as error:
                if not error.retryable:  # otherwise the subscription retries
                    failures.append(error)
        # With "continue", ignore a failure if other sources work. The source's subscription reports
        # it.
        if failures and (self._on_source_failure == "stop" or len(failures) == len(self._sources)):
            raise failures[0]

    def _open(
        self,
        opened: ExitStack,
        spark: SparkSession,
        sessions: CurrentSession,
        client: PubSubClient | None,
    ) -> _Open:
        from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW_KEYS
        from sfpubsub.spark.ingest.sidecars import Sidecars
        from sfpubsub.spark.ingest.together import SharedWriter
        from sfpubsub.spark.ingest.writer import EventWriter

        sidecars = Sidecars(spark, self._table)
        writer = EventWriter(
            spark,
            self._table.address,
            format=self._table.format,
            on_undecodable=self._on_undecodable,
            quarantine=sidecars.quarantine if self._on_undecodable == "quarantine" else None,
            subscription=self._names("managed"),
            topic=self._names("topic"),
            channel=self._names("channel"),
            staging=self._table.staging,
            org_id=self._org_id,
            table_properties=self._table_properties,
            window_keys=self._window_keys or DEFAULT_WINDOW_KEYS,
        )
        opened.callback(self._close, writer, sidecars)
        sidecars.open()
        together = SharedWriter(
            writer,
            max_events=int(self._job_settings["batch_events"]),
            max_bytes=int(self._job_settings["batch_bytes"]),
        )
        return _Open(sidecars, together, sessions, client)

    def _names(self, kind: str) -> list[str]:
        return [source.name for source in self._sources if source.kind == kind]

    def _close(self, writer: EventWriter, sidecars: Sidecars) -> None:
        # After a second Ctrl-C, a write may still be in progress. The lease must outlive the write,
        # so it is kept until the process ends.
        if not any(stream.is_running for stream in self.streams):
            try:
                sidecars.close()
            finally:
                writer.close()

    def _stream(self, table: _Open, source: Source) -> Stream:
        from sfpubsub.spark.ingest.job import IngestJob
        from sfpubsub.spark.ingest.streams import Stream

        member = table.together.member(source)
        subscription = self._subscribe(table, source, member)
        self.report.say(f"reading {source} into {self._table}")
        status = StatusFile(
            "ingest", source.kind, source.name, self._settings, into=self._table.address
        )
        self._monitor.observe(status.observation)
        waiting = Waiting(partial(self.report.say, source=source))
        watch = WriteWatch(self._monitor, source)

        rights = self._rights(table, source, subscription)

        def on_health(health: Health) -> None:
            waiting.observe(health, time.monotonic())
            status.refresh()
            if rights is not None:
                rights.advance(health.last_position)

        def wrote(progress: Progress) -> None:
            self.report.progress(source, progress)
            watch.wrote(progress)

        read_from: Reading = subscription
        write_with: Writer = member
        if is_traced():
            from sfpubsub.monitoring.tracing import SourceTracing

            tracing = SourceTracing(source.kind, source.name, endpoint=self._settings.endpoint)
            read_from = TracedSubscription(subscription, tracing)
            write_with = TracedWriter(member, tracing)
        job = IngestJob(
            read_from,
            write_with,
            sidecars=table.sidecars,
            last_confirmed=self._last_confirmed(table, source),
            on_progress=wrote,
            on_acked=status.acked,
            on_health=on_health,
            **self._job_settings,
        )

        watch.follow(job)

        def finish() -> None:
            try:
                job.settle()
            finally:
                member.leave()

        return Stream(source, job, subscription, _block(subscription, status, rights), finish)

    def _rights(
        self, table: _Open, source: Source, subscription: Subscription | ChannelSubscription
    ) -> RightsWatch | None:
        from sfpubsub.spark.ingest.rights import OrgGrants, RightsWatch

        # A managed subscription's topic is asked for, because the API does not name it.
        has_changes = source.kind == "managed" or source.name.startswith("/data/")
        if source.kind == "channel" or not has_changes:
            return None
        return RightsWatch(
            source.name,
            OrgGrants(table.sessions, HttpClient.from_settings(self._settings), source),
            subscription.report_gap,
            partial(self.report.say, source=source),
            # Finding its topic needs a permission of administrators, and it may have no changes.
            level=logging.INFO if source.kind == "managed" else logging.WARNING,
        )

    def _last_confirmed(self, table: _Open, source: Source) -> LastConfirmed | None:
        from sfpubsub.client.last_confirmed import LastConfirmed

        if source.kind != "managed":
            return None  # the service rejects a lost position, instead of starting elsewhere
        stored = table.sidecars.confirmed(source.name)
        return LastConfirmed(source.name, stored, self._settings.timings)

    def _subscribe(
        self, table: _Open, source: Source, member: Member
    ) -> Subscription | ChannelSubscription:
        from sfpubsub.spark.ingest.positions import TableReplayStore

        batch = int(self._job_settings["batch_events"])
        # A batch is acked as a whole, and the next batch is received while Spark writes this one.
        unacked = max(Limits.max_unacked, 2 * batch + WINDOW)
        if source.kind == "channel":
            from sfpubsub.spark.ingest.channels import ChannelSubscription

            return ChannelSubscription(
                self._streaming_client(table.sessions),
                source.name,
                member.positions.get(source.name),
                fallback=self._fallback,
            )
        client = table.client
        if client is None:
            raise AssertionError("bug in sfpubsub: there is no client for this source")
        if source.kind == "managed":
            return client.subscribe_managed(source.name, ack="manual", max_unacked=unacked)
        return client.subscribe(
            source.name,
            replay=TableReplayStore(member),
            replay_fallback=self._fallback,
            ack="manual",
            max_unacked=unacked,
        )

    def _streaming_client(self, sessions: CurrentSession) -> Callable[..., StreamingClient]:
        """Return a factory for Streaming API clients, all of which use the same session."""
        from sfpubsub.streaming import StreamingClient

        settings = self._settings
        return partial(
            StreamingClient,
            sessions,
            api_version=settings.streaming_api_version,
            insecure=settings.insecure,
            ca_file=settings.ca_file,
            proxy=settings.proxy,
        )


@contextmanager
def _block(
    subscription: Subscription | ChannelSubscription,
    status: StatusFile,
    rights: RightsWatch | None,
) -> Iterator[None]:
    with status:
        status.follow(subscription)
        with rights or nullcontext(), subscription:
            yield


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
