"""One run of ``sfpubsub mirror run``: opens its resources in order, and closes them in reverse."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession, org_id_of
from sfpubsub.cli.live import echo
from sfpubsub.cli.service import CONNECT_TIMEOUT, StopRequest, client_of
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.step_watch import StepWatch
from sfpubsub.cli.waiting import Waiting
from sfpubsub.cli.watching import Address, watching
from sfpubsub.cli.words import counted
from sfpubsub.cli.write_watch import WriteWatch
from sfpubsub.config import Settings
from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import OUR
from sfpubsub.monitoring.registry import Sample
from sfpubsub.monitoring.words import span
from sfpubsub.spark.ingest.members import ChannelMembers

if TYPE_CHECKING:
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.spark.ingest.selection import Selection
    from sfpubsub.spark.mirror.job import Mirror
    from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.spark.tables.target import Place
    from sfpubsub.stores.schema_store import SchemaStore
    from sfpubsub.types import Health

# Default name of the raw table in a target.
RAW_NAME = "_raw"


class MirrorRun:
    """Runs a mirror: its stream, its tables, and its reads from the org.

    Spark is started first, because it forks a JVM, which must not happen while gRPC's threads run.
    The stream and its raw table are opened next, and the derived tables last. The org is asked
    about the objects only after that, so that events are ingested even if it does not answer.

    Raises:
        ConfigurationError: A setting is missing or not valid.
    """

    def __init__(
        self,
        objects: Sequence[str],
        place: Place,
        *,
        target: str,
        raw: str | None,
        source: Source,
        start: str,
        settings: MirrorSettings,
        batch_seconds: float | None,
        service: Mapping[str, str | None],
    ) -> None:
        from sfpubsub.spark.raw.destination import Destination

        self._objects = objects
        self._target = target
        self._format = place.format
        separator = "." if place.in_catalog else "/"
        self._raw = Destination.parse(
            raw or f"{target.rstrip('/')}{separator}{RAW_NAME}", place.format
        )
        self._source = source
        self._start = start
        self._mirror_settings = settings
        self._job_settings = {} if batch_seconds is None else {"batch_seconds": batch_seconds}
        self._settings = Settings.load(dict(service))
        self._sessions = CurrentSession(session_provider(self._settings))
        self._report: MirrorReport | None = None
        self._mirror: Mirror | None = None

    def all(
        self,
        master: str | None,
        spark: Mapping[str, str],
        stop: StopRequest,
        *,
        once: bool,
        address: Address | None = None,
    ) -> None:
        """Run until a stop is requested. With *once*, also end when the tables match the org."""
        from sfpubsub.rest import OrgReader
        from sfpubsub.spark.mirror.job import Mirror
        from sfpubsub.spark.mirror.stream import MirrorStream
        from sfpubsub.spark.runtime.session import spark_session
        from sfpubsub.types import StartPosition

        http = HttpClient.from_settings(self._settings)
        reader = OrgReader(self._sessions, http=http)
        selection = ChannelMembers(
            self._sessions,
            http,
            topic=self._source.name if self._source.keeps_position else None,
            managed=self._source.name,
        )
        steps = StepWatch()
        with ExitStack() as opened:
            monitor = opened.enter_context(
                watching(
                    f"mirror in {self._target}",
                    address,
                    timings=self._settings.timings,
                    also=self._text,
                    ends=True,
                )
            )
            say("starting Spark")
            session = spark_session(
                master, format=self._format, app_name="sfpubsub mirror", settings=dict(spark)
            )
            started = start_spark(session, stop)
            opened.push(session)
            if stop.requested:
                return
            waiting = Waiting(say)
            source = self._source
            status = opened.enter_context(
                StatusFile("mirror", source.kind, source.name, self._settings, into=self._target)
            )
            monitor.observe(status.observation)
            writes = WriteWatch(monitor, source)

            def on_health(health: Health) -> None:
                waiting.observe(health, time.monotonic())
                status.refresh()

            start = StartPosition.latest() if self._start == "latest" else StartPosition.earliest()
            stream = opened.enter_context(
                MirrorStream(
                    started,
                    self._raw,
                    self._source,
                    self._connected,
                    start=start,
                    # If events were lost, their records are read from the org.
                    fallback="earliest",
                    org_id=org_id_of(self._sessions.get().tenant_id),
                    job_settings=self._job_settings,
                    on_health=on_health,
                    on_progress=writes.wrote,
                    on_acked=status.acked,
                )
            )
            status.follow(stream.subscription)
            writes.follow(stream.job)
            mirror = opened.enter_context(
                Mirror(
                    started,
                    reader,
                    self._raw,
                    self._target,
                    self._objects,
                    format=self._format,
                    settings=self._mirror_settings,
                    selection=selection,
                    report_gap=stream.report_gap,
                    on_progress=say,
                )
            )
            self._mirror = mirror
            steps.follow(mirror.engine, monitor)
            monitor.follow_counts(self._samples)
            monitor.follow_objects(mirror.status)
            status.follow_objects(mirror.status)
            stop.tell(mirror.stop)
            gc.freeze()
            stream.begin()  # before any request to the org, whose limit of calls may be used up
            self._check_filters(selection)
            say(f"waiting until the stream from {self._source} has a start position")
            try:
                mirror.run(stream.state, once=once)
            finally:
                self._report = mirror.report
                stream.stop()

    def _text(self) -> str:
        """Return the progress as text for the status line; empty before the tables are open."""
        if self._mirror is None:
            return ""
        report, objects = self._mirror.report, self._mirror.status()
        text = (
            f"{counted(report.events, 'event')} applied, {counted(report.records, 'record')} read"
        )
        if queued := sum(each.queued for each in objects):
            text += f", {queued} to be reread"
        if behind := max((each.behind or 0.0 for each in objects), default=0.0):
            text += f", tables {span(behind)} behind"
        waiting = [each.entity for each in objects if each.waits]
        return f"{text}, waiting: {', '.join(waiting)}" if waiting else text

    def _samples(self) -> list[Sample]:
        if self._mirror is None:
            return []
        report = self._mirror.report
        counts = {
            Metric.MIRROR_EVENTS: report.events,
            Metric.MIRROR_RECORDS: report.records,
            Metric.MIRROR_READS: report.reads,
            Metric.MIRROR_CALLS: report.api_calls,
        }
        return [Sample(metric, count, OUR) for metric, count in counts.items()]

    def summary(self) -> dict[str, object]:
        """Return the summary that the command prints as a JSON line at the end."""
        report, mirror = self._report, self._mirror
        return {
            "to": self._target,
            "raw": str(self._raw),
            "objects": list(self._objects if mirror is None else mirror.objects),
            **({} if report is None else vars(report)),
        }

    def _check_filters(self, selection: Callable[[], Selection]) -> None:
        """Refuse objects of which the channel delivers only some events.

        A channel that cannot be asked is asked again while the mirror runs.

        Raises:
            click.UsageError: A filter withholds events of an object.
        """
        from sfpubsub.spark.ingest.selection import check_filters

        try:
            found = selection()
        except SfPubSubError as error:
            say(f"cannot check which objects are selected for {self._source}: {error}")
            return
        try:
            check_filters(found, self._objects)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error

    def _connected(self, schemas: SchemaStore) -> PubSubClient:
        client = client_of(self._settings, self._sessions, schemas)
        try:
            client.connect(CONNECT_TIMEOUT)
        except BaseException:
            client.close()
            raise
        return client


def say(text: str) -> None:
    """Print a message on stderr, above the status line."""
    echo(text)
