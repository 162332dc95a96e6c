"""``sfpubsub ingest``: events of one subscription into one raw table.

Puts the parts together and translates between them and people; decides nothing about events.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sfpubsub.auth.session import Session
from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.service import StopRequest, connected_client, service_options
from sfpubsub.client.quarantine import FileQuarantine
from sfpubsub.client.schema_store import FileSchemaStore
from sfpubsub.config import WINDOW, Limits, Settings
from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.client.subscription import Subscription
    from sfpubsub.spark.destination import Source
    from sfpubsub.spark.job import IngestJob, Progress, Summary
    from sfpubsub.spark.writer import OnUndecodable


@click.command("ingest")
@click.option("--managed", metavar="NAME", help="Managed subscription to read, by name or id.")
@click.option("--topic", metavar="TOPIC", help="Topic to read; its position lives in the table.")
@click.option("--to", "destination", metavar="PATH", required=True, help="The table's directory.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format of the table.",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@click.option(
    "--max-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N events received, those written before included.",
)
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End after S seconds without an event on an open stream.  [default with --once: 30]",
)
@click.option("--once", is_flag=True, help="End when there is nothing left to read.")
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write at the latest after N events.  [default: 10000]",
)
@click.option(
    "--batch-seconds",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Write at the latest S seconds after a batch's first event.  [default: 10]",
)
@click.option(
    "--on-undecodable",
    type=click.Choice(["quarantine", "keep", "skip", "fail"]),
    default="quarantine",
    show_default=True,
    help="An event that cannot be decoded: into PATH/_quarantine; a row without JSON; only "
    "counted; end the job.",
)
@service_options
def ingest(
    managed: str | None,
    topic: str | None,
    destination: str,
    format_: str,
    master: str | None,
    max_events: int | None,
    idle_timeout: float | None,
    once: bool,
    batch_events: int | None,
    batch_seconds: float | None,
    on_undecodable: OnUndecodable,
    **service: str | None,
) -> None:
    """Write events into a raw Spark table, each event once.

    An event is acknowledged only after it is durable in the table, so the job can be killed at any
    moment and started again: nothing is lost and nothing is written twice. Ctrl-C and SIGTERM write
    what was received, commit, and end.
    """
    if (managed is None) == (topic is None):
        raise click.UsageError("give either --managed NAME or --topic TOPIC")
    _require_spark()
    # Imported here: they load pyspark, pyarrow and grpc, which no other command needs together.
    from sfpubsub.spark import destination as place
    from sfpubsub.spark import job as jobs

    # Refused before Spark starts, which takes seconds.
    place.check_format(format_)
    source = place.Source.choose(managed, topic)
    path = place.local_path(destination)
    place.check_destination(path, source)
    Session.from_settings(Settings.load(service))

    if once and idle_timeout is None:
        idle_timeout = jobs.DEFAULT_IDLE_TIMEOUT
    report = _Report(path)
    settings: dict[str, Any] = {
        "batch_events": batch_events or jobs.DEFAULT_BATCH_EVENTS,
        "batch_seconds": jobs.DEFAULT_BATCH_SECONDS if batch_seconds is None else batch_seconds,
        "max_events": max_events,
        "idle_timeout": idle_timeout,
        "on_progress": report.progress,
    }
    stop = StopRequest()
    table = _Table(source, path, format_, on_undecodable)
    with _running_job(table, master, service, stop, settings) as job:
        stop.tell(lambda: _stop(job))
        summary = job.run()
    # After the block: the drain is over, so what the summary says is committed.
    report.summary(source, summary)
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _stop(job: IngestJob) -> None:
    click.echo("stopping: writing what was received", err=True)
    job.stop()


def _require_spark() -> None:
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("sfpubsub ingest", "spark")


class _Table(NamedTuple):
    """Where the events go."""

    source: Source
    path: Path
    format: str
    on_undecodable: OnUndecodable


@contextmanager
def _running_job(
    table: _Table,
    master: str | None,
    service: dict[str, str | None],
    stop: StopRequest,
    settings: dict[str, Any],
) -> Iterator[IngestJob]:
    """Open everything in order, and close it in the other order.

    Spark comes first (its JVM is started by a fork, which must not happen beside gRPC's threads),
    the table second (its position says where to subscribe), the subscription last, so that it is
    drained while the table is still leased.
    """
    from sfpubsub.spark.destination import QUARANTINE_NAME, SCHEMAS_NAME
    from sfpubsub.spark.job import IngestJob
    from sfpubsub.spark.positions import TableReplayStore
    from sfpubsub.spark.session import spark_session
    from sfpubsub.spark.writer import EventWriter

    source, path, policy = table.source, table.path, table.on_undecodable
    keep_in = FileQuarantine(path / QUARANTINE_NAME) if policy == "quarantine" else None
    # A batch is acked as a whole, so all of it must be allowed to be on its way.
    unacked = max(Limits.max_unacked, settings["batch_events"] + WINDOW)
    with ExitStack() as opened:
        click.echo("starting Spark", err=True)
        spark = opened.enter_context(spark_session(master, app_name=f"sfpubsub ingest {path.name}"))
        # Replaces the handler of Spark's session, which would cancel the write under way.
        opened.enter_context(stop.installed())
        writer = opened.enter_context(
            EventWriter(
                spark,
                path,
                format=table.format,
                on_undecodable=policy,
                quarantine=keep_in,
                subscription=source.name if source.kind == "managed" else None,
                topic=source.name if source.kind == "topic" else None,
            )
        )
        schemas = FileSchemaStore(path / SCHEMAS_NAME)
        client = opened.enter_context(connected_client(schemas, **service))
        click.echo(f"reading {source} into {path}", err=True)
        if source.kind == "managed":
            subscription: Subscription = client.subscribe_managed(
                source.name, ack="manual", max_unacked=unacked
            )
        else:
            store = TableReplayStore(writer)
            subscription = client.subscribe(
                source.name, replay=store, ack="manual", max_unacked=unacked
            )
        yield IngestJob(opened.enter_context(subscription), writer, **settings)


class _Report:
    """Progress on stderr, one line a batch or one that is updated; the summary on stdout."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._updating = sys.stderr.isatty()
        self._shown = False

    def progress(self, progress: Progress) -> None:
        text = (
            f"{progress.rows} rows in {progress.batches} batches, "
            f"{progress.duplicates} duplicates dropped"
        )
        if progress.undecodable:
            text += f", {progress.undecodable} not decoded"
        if self._updating:
            click.echo(f"\r\033[K{text}", err=True, nl=False)
            self._shown = True
        else:
            click.echo(text, err=True)

    def summary(self, source: Source, summary: Summary) -> None:
        if self._shown:
            click.echo(err=True)
        progress = summary.progress
        record = {
            source.kind: source.name,
            "to": str(self._path),
            "ending": summary.ending,
            "received": progress.received,
            "rows": progress.rows,
            "duplicates": progress.duplicates,
            "undecodable": progress.undecodable,
            "set_aside": progress.set_aside,
            "batches": progress.batches,
            "gaps": len(summary.gaps),
            "position": progress.position.hex() if progress.position else None,
        }
        click.echo(json.dumps(record))
