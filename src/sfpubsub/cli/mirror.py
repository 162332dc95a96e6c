"""``sfpubsub mirror``: keep tables in sync with objects of an org.

This module parses options and starts the run. It makes no decisions about records.
"""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Literal

import click

from sfpubsub.cli import mirror_plan, mirror_tools
from sfpubsub.cli.live import echo
from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.params import Duration, ManagedName, Seconds, TableLocation, Topic
from sfpubsub.cli.service import StopRequest, service_options
from sfpubsub.cli.source_watch import SourceWatch
from sfpubsub.cli.spark_options import (
    maintain_option,
    require_spark,
    spark_options,
    spark_settings,
)
from sfpubsub.cli.step_watch import StepWatch
from sfpubsub.cli.watching import Address, http_option, watching
from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import OUR
from sfpubsub.monitoring.registry import Sample
from sfpubsub.monitoring.text import counted, span
from sfpubsub.spark.ingest.members import ALL_CHANGES
from sfpubsub.spark.ingest.settings import DEFAULT_BATCH_SECONDS
from sfpubsub.spark.mirror.settings import DEFAULT_PIECE_ROWS

if TYPE_CHECKING:
    from sfpubsub.spark.mirror.mirror import Mirror
    from sfpubsub.spark.mirror.settings import By, Deletes


@click.group("mirror")
def mirror() -> None:
    """Keep complete, up-to-date tables of an org's objects."""


@mirror.command("run")
@click.argument("objects", metavar="OBJECT...", nargs=-1, required=True)
@mirror_tools.target_option
@click.option(
    "--raw",
    type=TableLocation("table"),
    metavar="TABLE",
    help="Raw table for the events, as for `ingest --to`.  [default: _raw in TARGET]",
)
@mirror_tools.format_option
@click.option("--managed", type=ManagedName(), metavar="NAME", help="Managed subscription to read.")
@click.option(
    "--topic", type=Topic(), metavar="TOPIC", help=f"Topic to read.  [default: {ALL_CHANGES}]"
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="With --topic: where to start if the raw table is new.",
)
@mirror_tools.margin_option
@click.option("--once", is_flag=True, help="Stop when the tables match the org.")
@click.option(
    "--history",
    is_flag=True,
    help="Also keep a history table per object, with one row per version of each record. Only a "
    "new mirror can begin one.",
)
@click.option(
    "--deletes",
    type=click.Choice(["mark", "remove"]),
    default="mark",
    show_default=True,
    help="What to do with the row of a deleted record: mark it as deleted, or remove it.",
)
@click.option(
    "--piece-rows",
    type=click.IntRange(min=1),
    metavar="N",
    default=DEFAULT_PIECE_ROWS,
    show_default=True,
    help="Number of rows to read and merge at a time.",
)
@click.option(
    "--api-calls-per-day",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of API calls in 24 hours.  [default: no limit]",
)
@mirror_tools.intervals_options
@click.option(
    "--overlap",
    type=Duration(),
    default="15m",
    show_default=True,
    help="Longest time that a transaction of the org takes: such a read begins that much before "
    "the last one.",
)
@click.option(
    "--batch-seconds",
    type=Seconds(min=0),
    metavar="S",
    default=DEFAULT_BATCH_SECONDS,
    help="Write a batch to the raw table at most S seconds after its first event.  [default: 10]",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
@maintain_option
@http_option
@service_options
def run(
    objects: tuple[str, ...],
    target: str,
    raw: str | None,
    format_: str,
    managed: str | None,
    topic: str | None,
    start: Literal["earliest", "latest"],
    margin: float,
    once: bool,
    history: bool,
    deletes: Deletes,
    bulk_from: int,
    piece_rows: int,
    api_calls_per_day: int | None,
    refresh_formulas: float,
    drift: float,
    by: By,
    poll: float,
    overlap: float,
    sweep: float,
    batch_seconds: float,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    maintain: bool,
    http: Address | None,
    **service: str | None,
) -> None:
    """Keep a table of each OBJECT in sync with the org, until Ctrl-C.

    The job opens the stream, reads each object from the org, and then applies the events. It can be
    killed at any moment and restarted: it resumes where it stopped.
    """
    if managed is not None and topic is not None:
        raise click.UsageError("use only one of --managed and --topic")
    if by == "modstamp" and (managed or topic):
        raise click.UsageError("--by modstamp reads no events: leave out --managed and --topic")
    if not poll:
        raise click.UsageError("--poll cannot be 0: leave out objects that are not to be read")
    require_spark("sfpubsub mirror", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.spark.mirror.mirror import Mirror
    from sfpubsub.spark.mirror.settings import MirrorSettings
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.spark.runtime.session import spark_session

    job = Mirror(
        objects,
        to=target,
        format=format_,
        source=Source("managed", managed) if managed else Source("topic", topic or ALL_CHANGES),
        raw=raw,
        settings=MirrorSettings(
            margin=margin,
            history=history,
            deletes=deletes,
            bulk_from=bulk_from,
            piece_rows=piece_rows,
            refresh_formulas=refresh_formulas,
            drift=drift,
            by=by,
            poll=poll,
            overlap=overlap,
            sweep=sweep,
            start=start,
            batch_seconds=batch_seconds,
            maintain=maintain,
            api_calls_per_day=api_calls_per_day,
        ),
        options=service,
        spark=spark_session(
            master,
            format=format_,
            app_name="sfpubsub mirror",
            settings=spark_settings(conf, packages),
        ),
        on_message=echo,
        on_progress=lambda *wrote: watch.wrote(*wrote),
        on_acked=lambda *acked: watch.acked(*acked),
        wrap=lambda *parts: watch.wrap(*parts),
    )
    settings = job.stream.service.settings
    watch = SourceWatch("mirror", settings, target, lambda _, text: echo(text))

    def stopping() -> None:
        if job.job is None:
            echo("stopping once Spark has started")
        job.stop()

    stop = StopRequest()
    with (
        stop.installed(),
        watching(
            f"mirror in {target}",
            http,
            timings=settings.timings,
            also=lambda: _progress_text(job),
            ends=True,
        ) as watch.monitor,
    ):
        echo("starting Spark")
        stop.tell(stopping)
        with job:
            if job.job is not None:
                watch.follow(job.stream.streams)
                for status in watch.status.values():
                    status.follow_objects(job.status)
                StepWatch().follow(job.job.engine, watch.monitor)
                watch.monitor.follow_counts(lambda: _samples(job))
                watch.monitor.follow_objects(job.status)
            gc.freeze()
            job.run(once=once)
    summary = {
        "to": target,
        "raw": str(job.stream.table),
        "objects": job.objects,
        **vars(job.report),
    }
    click.echo(json.dumps(summary))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _progress_text(job: Mirror) -> str:
    """Return the progress as text for the status line; empty before the tables are open."""
    if job.job is None:
        return ""
    report, objects = job.report, job.status()
    text = f"{counted(report.events, 'event')} applied, {counted(report.records, 'record')} read"
    if queued := sum(each.queued for each in objects):
        text += f", {queued} to be reread"
    if behind := max((each.behind or 0.0 for each in objects), default=0.0):
        text += f", tables {span(behind)} behind"
    waiting = [each.entity for each in objects if each.waits]
    return f"{text}, waiting: {', '.join(waiting)}" if waiting else text


def _samples(job: Mirror) -> list[Sample]:
    report = job.report
    counts = {
        Metric.MIRROR_EVENTS: report.events,
        Metric.MIRROR_RECORDS: report.records,
        Metric.MIRROR_READS: report.reads,
        Metric.MIRROR_CALLS: report.api_calls,
    }
    return [Sample(metric, count, OUR) for metric, count in counts.items()]


mirror.add_command(mirror_tools.signal)
mirror.add_command(mirror_tools.verify)
mirror.add_command(mirror_plan.plan)
