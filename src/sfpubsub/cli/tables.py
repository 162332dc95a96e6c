"""``sfpubsub tables``: build query tables from a raw table.

This module parses options, starts the engine and prints messages. It needs neither the service nor
credentials.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from sfpubsub.cli.live import echo
from sfpubsub.cli.main import FAILED, INTERRUPTED
from sfpubsub.cli.params import TableLocation, confirm
from sfpubsub.cli.service import StopRequest
from sfpubsub.cli.spark_options import (
    maintain_option,
    require_spark,
    spark_options,
    spark_settings,
)
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.step_watch import StepWatch
from sfpubsub.cli.watching import Address, http_option, watching
from sfpubsub.monitoring.text import counted
from sfpubsub.spark.formats import RAW_FORMATS, TARGET_FORMATS

if TYPE_CHECKING:
    from sfpubsub.spark.tables.engine import StepReport


@click.command("tables")
@click.argument("what", type=click.Choice(["rebuild"]), required=False)
@click.option(
    "--from",
    "raw",
    type=TableLocation("table"),
    metavar="RAW",
    required=True,
    help="Raw table to read, as for `ingest --to`.",
)
@click.option(
    "--to",
    "target",
    type=TableLocation("schema"),
    metavar="TARGET",
    required=True,
    help="Location of the tables: a directory, written with a slash (./tables), a URL, or "
    "CATALOG.SCHEMA.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(TARGET_FORMATS),
    default="delta",
    show_default=True,
    help="Format of the tables.",
)
@click.option(
    "--from-format",
    type=click.Choice(RAW_FORMATS),
    help="Format of the raw table.  [default: detected if RAW is a local path, otherwise --format]",
)
@click.option(
    "--objects",
    metavar="A,B",
    help="Build tables only for these objects and event types, such as Account,Order_Event__e.",
)
@click.option(
    "--current",
    is_flag=True,
    help="Also build a current table per object, with one row per record.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Also build a history table per object, with one row per version of each record.",
)
@click.option(
    "--follow", is_flag=True, help="Keep running, and process new batches of the raw table."
)
@click.option("--yes", is_flag=True, help="With rebuild: do not ask for confirmation.")
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
@maintain_option
@http_option
def tables(
    what: str | None,
    raw: str,
    target: str,
    format_: str,
    from_format: str | None,
    objects: str | None,
    current: bool,
    history: bool,
    follow: bool,
    yes: bool,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    maintain: bool,
    http: Address | None,
) -> None:
    """Decode a raw table into typed tables: one per event type, with a column per field.

    Every batch of the raw table is processed exactly once, even across crashes: the job can be
    killed at any moment and restarted, and can run alongside the ingest job. Events that cannot be
    decoded are written to the table _undecodable, with the reason.

    `sfpubsub tables rebuild` asks for confirmation, empties the tables and then rebuilds them. The
    tables of a mirror are not emptied: the next `sfpubsub mirror run` reads all objects again.
    """
    if yes and what is None:
        raise click.UsageError("--yes requires rebuild")
    require_spark("sfpubsub tables", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.spark.formats.destination import Destination
    from sfpubsub.spark.mirror import starting_over
    from sfpubsub.spark.raw.destination import check_raw_table, format_of
    from sfpubsub.spark.runtime.session import spark_session
    from sfpubsub.spark.tables.engine import EventTables

    source_format = from_format or format_of(raw, format_)
    # Check these before Spark starts, which takes seconds.
    check_raw_table(Destination.parse(raw, source_format))
    Destination.of_tables(target, format_)
    if what == "rebuild":
        confirm(
            f"this empties the tables in {target}, and builds them again from the rows that {raw} "
            f"still has (the tables of a mirror are marked instead, and all their objects are read "
            f"again). Rebuild them?",
            yes,
        )
    stop = StopRequest()
    stopping = threading.Event()
    watch = StepWatch()
    with stop.installed(), ExitStack() as opened:
        monitor = opened.enter_context(
            watching(f"tables of {raw} in {target}", http, also=watch.text, ends=True)
        )
        echo("starting Spark")
        session = spark_session(
            master,
            app_name="sfpubsub tables",
            format=format_,
            settings=spark_settings(conf, packages),
        )
        spark = start_spark(session, stop)
        opened.push(session)
        if what == "rebuild" and starting_over.is_mirror(spark, target, format_):
            names = starting_over.start_over(
                spark, raw, target, format=format_, raw_format=source_format
            )
            echo("all objects of the mirror will be read again by the next sfpubsub mirror run")
            click.echo(json.dumps({"from": raw, "to": target, "objects": list(names)}))
            return
        stop.tell(stopping.set)
        engine = opened.enter_context(
            EventTables(
                spark,
                raw,
                target,
                format=format_,
                raw_format=source_format,
                objects=[name.strip() for name in objects.split(",")] if objects else [],
                current=current,
                history=history,
                maintain=maintain,
                for_rebuild=what == "rebuild",
            )
        )
        watch.follow(engine, monitor)
        if what == "rebuild":
            engine.rebuild()
        for _ in engine.run(follow=follow, stopping=stopping):
            pass
    total = watch.total
    click.echo(json.dumps(_record(raw, target, total)))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)
    if total.undecodable and not total.rows:
        _explain_undecodable(total, target)
        click.get_current_context().exit(FAILED)


def _record(raw: str, target: str, total: StepReport) -> dict[str, object]:
    return {
        "from": raw,
        "to": target,
        "batches": total.batches,
        "rows": dict(total.rows),
        "undecodable": total.undecodable,
    }


def _explain_undecodable(total: StepReport, target: str) -> None:
    reason, count = max(total.reasons.items(), key=lambda item: item[1])
    hint = ""
    if reason.endswith("is not known"):
        hint = (
            "; schemas are read from the directory _schemas next to the raw table: if a streaming "
            "query writes that table, set the query's option schemaStore to that directory and "
            "run this command again"
        )
    click.echo(
        f"decoding failed for all events ({counted(total.undecodable, 'event')}); the most "
        f"frequent reason (count: {count}): {reason}{hint}; the events are in {target}, "
        f"table _undecodable",
        err=True,
    )
