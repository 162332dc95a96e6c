"""``sfpubsub ingest``: write events from subscriptions, topics and channels to a raw table.

This module reads the options and starts the run. It makes no decisions about events.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import click

from sfpubsub.auth.oauth import session_provider
from sfpubsub.cli.ingest_report import summary_line
from sfpubsub.cli.ingest_run import Run
from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.params import Channel, ManagedName, ReadingCommand, Seconds, TableLocation, Topic
from sfpubsub.cli.service import StopRequest, service_options
from sfpubsub.cli.spark_options import pairs, spark_options, spark_settings
from sfpubsub.cli.watching import Address, http_option
from sfpubsub.config import Settings
from sfpubsub.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.streams import OnFailure
    from sfpubsub.spark.ingest.undecodable import OnUndecodable
    from sfpubsub.spark.raw.destination import Destination
    from sfpubsub.spark.raw.sources import Source

# File patterns by which a table's directory is recognised: parquet, delta, iceberg.
_MARKS = ("_table.json", "_delta_log", "metadata/*.metadata.json")


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
    type=click.Choice(["parquet", "delta", "iceberg"]),
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
    _require_spark()
    # Imported here, because it loads pyspark, pyarrow and grpc, which slows down --help.
    from sfpubsub.spark.ingest import job as jobs

    # Check these before Spark starts, which takes seconds.
    sources = _sources(managed, topic, channel)
    table = _table(sources, to, format_, staging)
    settings = Settings.load(service)
    session_provider(settings)
    if once and idle_timeout is None:
        idle_timeout = jobs.DEFAULT_IDLE_TIMEOUT
    run = Run(
        sources,
        table,
        on_source_failure=on_source_failure,
        on_undecodable=on_undecodable,
        window_keys=window_keys,
        fallback=None if fallback == "stop" else fallback,
        settings=settings,
        spark_settings=spark_settings(conf, packages),
        table_properties=dict(table_properties),
        job_settings={
            "batch_events": batch_events or jobs.DEFAULT_BATCH_EVENTS,
            "batch_bytes": batch_bytes or jobs.DEFAULT_BATCH_BYTES,
            "batch_seconds": jobs.DEFAULT_BATCH_SECONDS if batch_seconds is None else batch_seconds,
            "max_events": max_events,
            "idle_timeout": idle_timeout,
            "until_caught_up": once,
        },
    )
    stop = StopRequest()
    try:
        with stop.installed():
            run.all(master, service, stop, http)
    finally:
        # After draining, so that the summary includes the last commits.
        for stream in run.streams:
            click.echo(summary_line(stream, table))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _require_spark() -> None:
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("sfpubsub ingest", "spark")


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


def _table(sources: tuple[Source, ...], to: str, format_: str, staging: str | None) -> Destination:
    """Check the options that describe the table to write, and return the table.

    Raises:
        ConfigurationError: The destination is not valid, or is inside another table.
    """
    from sfpubsub.spark.raw.destination import Destination

    table = Destination.parse(to, format_, staging)
    for above in table.local.parents if table.local is not None else ():
        if any(next(above.glob(mark), None) is not None for mark in _MARKS):
            raise ConfigurationError(
                f"{table} would be inside the table {above}: choose another directory"
            )
    table.check(sources)
    return table
