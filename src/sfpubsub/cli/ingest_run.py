"""One run of ``sfpubsub ingest``: everything opened in order, and closed in the other order."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession, org_id_of
from sfpubsub.cli.ingest_report import Report
from sfpubsub.cli.progress import Progress
from sfpubsub.cli.service import StopRequest, connected_client
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.waiting import Waiting
from sfpubsub.config import WINDOW, Limits, Settings
from sfpubsub.errors import SfPubSubError
from sfpubsub.stores.schema_store import SchemaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.subscription import Subscription
    from sfpubsub.spark.ingest.sidecars import Sidecars
    from sfpubsub.spark.ingest.streams import Stream, Streams
    from sfpubsub.spark.ingest.undecodable import OnUndecodable
    from sfpubsub.spark.ingest.writer import EventWriter
    from sfpubsub.spark.raw.destination import Destination, Source
    from sfpubsub.types import Health


@dataclass
class _Open:
    """A table that is ready to be written."""

    source: Source
    writer: EventWriter
    sidecars: Sidecars


class Run:
    """Sources, their tables, and what becomes of them.

    Spark comes first (its JVM is started by a fork, which must not happen beside gRPC's threads),
    the client second (a topic that is not there must not leave a table behind), the tables third
    (their positions say where to subscribe), the subscriptions last, so that they are drained while
    the tables are still leased.
    """

    def __init__(
        self,
        tables: dict[Source, Destination],
        *,
        on_undecodable: OnUndecodable,
        window_keys: int | None,
        fallback: str | None,
        settings: Settings,
        spark_settings: dict[str, str],
        table_properties: dict[str, str],
        job_settings: dict[str, Any],
    ) -> None:
        self.tables = tables
        self.report = Report(list(tables))
        self.streams: list[Stream] = []
        self._on_undecodable = on_undecodable
        self._window_keys = window_keys
        self._fallback = fallback
        self._settings = settings
        self._spark_settings = spark_settings
        self._table_properties = table_properties
        self._org_id = ""
        self._job_settings = job_settings

    def all(self, master: str | None, service: dict[str, str | None], stop: StopRequest) -> None:
        """Run until every source has ended."""
        from sfpubsub.spark.ingest.streams import Streams

        with ExitStack() as opened:
            spark = self._spark(opened, master, stop)
            if stop.requested:
                return
            schemas = _Schemas()
            sessions = CurrentSession(session_provider(self._settings))
            client = opened.enter_context(connected_client(schemas, sessions, **service))
            self._org_id = org_id_of(sessions.get().tenant_id)
            for source in self.tables:
                _check_name(client, source)
            tables = [self._open(opened, spark, source) for source in self.tables]
            schemas.stores = [table.sidecars.schemas for table in tables]
            self.streams += [self._stream(client, table) for table in tables]
            jobs = Streams(self.streams)
            opened.callback(jobs.join)  # before what they use is closed
            stop.tell(lambda: self._stop(jobs))
            # What is there by now stays, and the collector need not go through it again and again:
            # a tenth of the time.
            gc.freeze()
            try:
                jobs.run()
            except KeyboardInterrupt:  # the second Ctrl-C: not even a drain
                client.close()
                raise

    def _stop(self, jobs: Streams) -> None:
        # In a signal handler: the report's lock may be held by the very thread that is interrupted.
        click.echo("stopping: writing what was received", err=True)
        jobs.stop()

    def _spark(self, opened: ExitStack, master: str | None, stop: StopRequest) -> SparkSession:
        from sfpubsub.spark.runtime.session import spark_session

        self.report.say("starting Spark")
        first = next(iter(self.tables.values()))
        name = first.name if len(self.tables) == 1 else f"{len(self.tables)} sources"
        session = spark_session(
            master,
            format=first.format,
            app_name=f"sfpubsub ingest {name}",
            settings=self._spark_settings,
        )
        spark = start_spark(session, stop)
        opened.push(session)
        return spark

    def _open(self, opened: ExitStack, spark: SparkSession, source: Source) -> _Open:
        from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW_KEYS
        from sfpubsub.spark.ingest.sidecars import Sidecars
        from sfpubsub.spark.ingest.writer import EventWriter

        place = self.tables[source]
        sidecars = Sidecars(spark, place)
        writer = EventWriter(
            spark,
            place.address,
            format=place.format,
            on_undecodable=self._on_undecodable,
            quarantine=sidecars.quarantine if self._on_undecodable == "quarantine" else None,
            subscription=source.name if source.kind == "managed" else None,
            topic=source.name if source.kind == "topic" else None,
            staging=place.staging,
            org_id=self._org_id,
            table_properties=self._table_properties,
            window_keys=self._window_keys or DEFAULT_WINDOW_KEYS,
        )
        opened.callback(self._close, source, writer)
        sidecars.open()
        return _Open(source, writer, sidecars)

    def _close(self, source: Source, writer: EventWriter) -> None:
        # After a second Ctrl-C a write may still be under way, and a lease must outlive its writes:
        # then it ends with this process.
        if not any(s.is_running for s in self.streams if s.source == source):
            writer.close()

    def _stream(self, client: PubSubClient, table: _Open) -> Stream:
        from sfpubsub.spark.ingest.job import IngestJob
        from sfpubsub.spark.ingest.streams import Stream

        source = table.source
        subscription = self._subscribe(client, table)
        self.report.say(f"reading {source} into {self.tables[source]}")
        status = StatusFile(
            "ingest", source.kind, source.name, self._settings, into=self.tables[source].address
        )
        waiting = Waiting(partial(self.report.say, source=source))
        progress = Progress(source.name)

        def look(health: Health) -> None:
            now = time.monotonic()
            progress.look(health, now)
            waiting.look(health, now)
            status.look()

        job = IngestJob(
            subscription,
            table.writer,
            beside=table.sidecars,
            on_progress=partial(self.report.progress, source),
            on_acked=status.acked,
            on_look=look,
            **self._job_settings,
        )

        def finish() -> None:
            try:
                job.settle()
            finally:
                table.sidecars.close()

        return Stream(source, job, subscription, _block(subscription, status), finish)

    def _subscribe(self, client: PubSubClient, table: _Open) -> Subscription:
        from sfpubsub.spark.ingest.positions import TableReplayStore

        source, batch = table.source, int(self._job_settings["batch_events"])
        options: dict[str, Any] = {
            "ack": "manual",
            # A batch is acked as a whole, and the next one comes in while Spark writes this one.
            "max_unacked": max(Limits.max_unacked, 2 * batch + WINDOW),
        }
        if source.kind == "managed":
            return client.subscribe_managed(source.name, **options)
        return client.subscribe(
            source.name,
            replay=TableReplayStore(table.writer),
            replay_fallback=self._fallback,
            **options,
        )


@contextmanager
def _block(subscription: Subscription, status: StatusFile) -> Iterator[None]:
    with status:
        status.follow(subscription)
        with subscription:
            yield


def _check_name(client: PubSubClient, source: Source) -> None:
    """Ask for a topic, so that a wrong name leaves no table behind.

    Of a managed subscription nothing can be asked but its events.
    """
    if source.kind != "topic":
        return
    try:
        client.get_topic(source.name)
    except SfPubSubError as error:
        if not error.retryable:
            raise
        # The subscription will try again, for as long as it may.


class _Schemas(SchemaStore):
    """What the client may look up before it asks the service: the schemas of all tables.

    It keeps none by itself: each job does, beside its own table, before it writes a row.
    """

    def __init__(self) -> None:
        self.stores: list[SchemaStore] = []

    def get(self, schema_id: str) -> str | None:
        found = (store.get(schema_id) for store in self.stores)
        return next((schema for schema in found if schema is not None), None)

    def put(self, schema_id: str, schema_json: str) -> None:
        pass
