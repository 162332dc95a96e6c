"""``sfpubsub ingest``: write events from subscriptions, topics and channels to a raw table.

This module reads the options and starts the run. It makes no decisions about events.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import click

from sfpubsub.cli.ingest_report import Report, summary_line
from sfpubsub.cli.live import echo
from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.params import Channel, ManagedName, ReadingCommand, Seconds, TableLocation, Topic
from sfpubsub.cli.service import StopRequest, service_options
from sfpubsub.cli.source_watch import SourceWatch
from sfpubsub.cli.spark_options import (
    maintain_option,
    pairs,
    require_spark,
    spark_options,
    spark_settings,
)
from sfpubsub.cli.watching import Address, http_option, watching
from sfpubsub.monitoring.text import counted
from sfpubsub.spark.formats import RAW_FORMATS

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.ingest.settings import OnFailure
    from sfpubsub.spark.ingest.undecodable import OnUndecodable
    from sfpubsub.spark.raw.sources import Source


@click.command("ingest", cls=ReadingCommand)
@click.option(
    "--managed",
    type=ManagedName(),
    metavar="NAME",
    multiple=True,
    help="Managed subscription to read, by name or id; can be repeated.",
)
@click.option(
    "--topic",
    type=Topic(),
    metavar="TOPIC",
    multiple=True,
    help="Topic to read. Its position is stored in the table. Can be repeated.",
)
@click.option(
    "--channel",
    type=Channel(),
    metavar="CHANNEL",
    multiple=True,
    help="Streaming API channel to read, such as /topic/NAME for a PushTopic. Its position is "
    "stored in the table. Can be repeated.",
)
@click.option(
    "--to",
    "to",
    type=TableLocation("table"),
    metavar="PATH",
    required=True,
    help="Table to write all events to: a path with a slash, such as ./orders; for delta and "
    "iceberg also a URL, SCHEMA.TABLE or CATALOG.SCHEMA.TABLE.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(RAW_FORMATS),
    default="parquet",
    show_default=True,
    help="Format of the table.",
)
@click.option(
    "--staging",
    metavar="DIR",
    help="With parquet: directory in which to create .NAME.sfpubsub (NAME is the table's), which "
    "holds unfinished writes and side tables.  [default: the directory that contains the table]",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
@click.option(
    "--table-property",
    "table_properties",
    callback=pairs,
    metavar="KEY=VALUE",
    multiple=True,
    help="With delta and iceberg: property to set when the table is created; can be repeated.",
)
@click.option(
    "--max-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after receiving N events from each source. Events that are already in the table "
    "count, too.",
)
@click.option(
    "--idle-timeout",
    type=Seconds(min=0, min_open=True),
    metavar="S",
    help="Stop after S seconds without an event while the stream is open.  [default with --once: "
    "30]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Stop when the service reports that all events have been read, or when the time given by "
    "--idle-timeout passes without an event.",
)
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write a batch after at most N events.  [default: 10000]",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write a batch after at most N bytes of payload.  [default: 33554432]",
)
@click.option(
    "--batch-seconds",
    type=Seconds(min=0),
    metavar="S",
    help="Write a batch at most S seconds after its first event.  [default: 10]",
)
@click.option(
    "--window-keys",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of deduplication keys to keep per table, in memory (24 bytes each). Older events "
    "are looked up in the table.  [default: 10000000]",
)
@click.option(
    "--fallback",
    type=click.Choice(["stop", "earliest", "latest"]),
    help="With --topic or --channel: what to do if the service rejects the position stored in "
    "the table.  [default: stop]",
)
@click.option(
    "--on-source-failure",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="What to do if a source fails: stop the other sources cleanly, or continue with them.",
)
@click.option(
    "--on-undecodable",
    type=click.Choice(["quarantine", "keep", "skip", "fail"]),
    default="quarantine",
    show_default=True,
    help="What to do with an event that cannot be decoded: store it in the table's quarantine, "
    "write a row without JSON, only count it, or stop the job.",
)
@maintain_option
@http_option
@service_options
def ingest(
    managed: tuple[str, ...],
    topic: tuple[str, ...],
    channel: tuple[str, ...],
    to: str,
    format_: str,
    staging: str | None,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    table_properties: tuple[tuple[str, str], ...],
    max_events: int | None,
    idle_timeout: float | None,
    once: bool,
    batch_events: int | None,
    batch_bytes: int | None,
    batch_seconds: float | None,
    window_keys: int | None,
    fallback: str | None,
    on_source_failure: OnFailure,
    on_undecodable: OnUndecodable,
    maintain: bool,
    http: Address | None,
    **service: str | None,
) -> None:
    """Write events to a raw Spark table, each event exactly once.

    An event is acked only after it is durable in the table, so the job can be killed at any moment
    and restarted: no event is lost, and none is written twice. After Ctrl-C or SIGTERM, the job
    writes the events received so far, commits, and exits. Side tables contain schemas, gaps,
    commits and events that cannot be decoded.

    Several sources can be written to one table. They share its batches and deduplication keys.
    """
    if fallback is not None and not topic and not channel:
        raise click.UsageError(
            "--fallback requires --topic or --channel; for a managed subscription, use sfpubsub "
            "managed update NAME --error-recovery-replay"
        )
    if staging is not None and format_ != "parquet":
        raise click.UsageError(
            f"--staging requires --format parquet; {format_} has no staging directory"
        )
    if table_properties and format_ == "parquet":
        raise click.UsageError("--table-property requires --format delta or iceberg")
    require_spark("sfpubsub ingest")
    # Imported here, because these modules load pyspark, pyarrow and grpc, which slows down --help.
    from sfpubsub.spark.ingest.ingest import Ingest
    from sfpubsub.spark.ingest.settings import DEFAULT_IDLE_TIMEOUT, IngestSettings
    from sfpubsub.spark.runtime.session import spark_session

    sources = _sources(managed, topic, channel)
    report = Report(sources)

    def wrote(source: Source, progress: Progress) -> None:
        report.progress(source, progress)
        watch.wrote(source, progress)

    if once and idle_timeout is None:
        idle_timeout = DEFAULT_IDLE_TIMEOUT
    given: dict[str, Any] = {
        "batch_events": batch_events,
        "batch_bytes": batch_bytes,
        "batch_seconds": batch_seconds,
        "max_events": max_events,
        "idle_timeout": idle_timeout,
        "window_keys": window_keys,
        "fallback": None if fallback == "stop" else fallback,
    }
    ending = "" if max_events is None else f", until {counted(max_events, 'event')} arrived"
    settings = IngestSettings(
        **{name: value for name, value in given.items() if value is not None},
        until_caught_up=once,
        on_source_failure=on_source_failure,
        on_undecodable=on_undecodable,
        maintain=maintain,
        staging=staging,
        table_properties=dict(table_properties),
    )
    # This checks its arguments before Spark starts, which takes seconds.
    job = Ingest(
        sources,
        to=to,
        format=format_,
        settings=settings,
        options=service,
        spark=spark_session(
            master,
            format=format_,
            app_name=f"sfpubsub ingest {to}",
            settings=spark_settings(conf, packages),
        ),
        on_progress=wrote,
        on_acked=lambda *acked: watch.acked(*acked),
        wrap=lambda *parts: watch.wrap(*parts),
    )
    watch = SourceWatch("ingest", job.service.settings, job.table.address, report.say)

    def stopping() -> None:
        if job.streams:
            echo("stopping: writing the events received so far")
        else:
            echo("stopping once Spark has started")
        job.stop()

    stop = StopRequest()
    try:
        with (
            stop.installed(),
            watching(
                f"ingest into {job.table.name}",
                http,
                timings=job.service.settings.timings,
                also=report.text,
                ends=True,
            ) as watch.monitor,
        ):
            echo("starting Spark")
            stop.tell(stopping)
            with job:
                for stream in job.streams:
                    report.say(stream.source, f"reading {stream.source} into {job.table}{ending}")
                watch.follow(job.streams)
                # Existing objects live as long as the process. Exempting them from garbage
                # collection saves a tenth of the time.
                gc.freeze()
                job.run()
    finally:
        # After draining, so that the summary includes the last commits.
        for stream in job.streams:
            click.echo(summary_line(stream, job.table))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _sources(
    managed: tuple[str, ...], topic: tuple[str, ...], channel: tuple[str, ...]
) -> tuple[Source, ...]:
    """Check the source options, and return the sources to read.

    Raises:
        UsageError: No source was specified, a name is empty, or a source was specified twice.
    """
    from sfpubsub.spark.raw.sources import Source

    names = (*managed, *topic, *channel)
    if not names or not all(names):
        raise click.UsageError("--managed, --topic or --channel is required at least once")
    folded = [name.casefold() for name in names]
    twice = [name for name in names if folded.count(name.casefold()) > 1]
    if twice:
        raise click.UsageError(
            f"specify each source only once (names are not case-sensitive): {', '.join(twice)}"
        )
    return Source.several(managed, topic, channel)
