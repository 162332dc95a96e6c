"""``sfpubsub tables`` and ``sfpubsub derive``: tables for querying, made from a raw one.

Puts the parts together, reads options and prints messages. Needs no service and no credentials.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from sfpubsub.cli.live import echo
from sfpubsub.cli.main import FAILED, INTERRUPTED
from sfpubsub.cli.service import StopRequest
from sfpubsub.cli.spark_options import spark_options, spark_settings
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.step_watch import StepWatch
from sfpubsub.cli.watching import Address, http_option, watching
from sfpubsub.cli.words import counted
from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.tables.engine import StepReport

_FORMATS = click.Choice(["parquet", "delta", "iceberg"])


@click.command("tables")
@click.argument("what", type=click.Choice(["rebuild"]), required=False)
@click.option("--from", "raw", metavar="RAW", required=True, help="The raw table.")
@click.option(
    "--to",
    "target",
    metavar="TARGET",
    required=True,
    help="A directory; for delta and iceberg also a URL, SCHEMA or CATALOG.SCHEMA.",
)
@click.option(
    "--format",
    "format_",
    type=_FORMATS,
    default="parquet",
    show_default=True,
    help="Format of the tables.",
)
@click.option(
    "--from-format",
    type=_FORMATS,
    help="Format of the raw table.  [default: what is found at RAW, else that of --format]",
)
@click.option(
    "--objects",
    metavar="A,B",
    help="Make tables of these objects and event types alone, such as Account,Order_Event__e.",
)
@click.option("--current", is_flag=True, help="Keep a table of each object, one row a record.")
@click.option("--history", is_flag=True, help="Keep every version of each record, too.")
@click.option("--follow", is_flag=True, help="Go on with what is written to the raw table.")
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
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
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    http: Address | None,
) -> None:
    """Decode a raw table into tables: one for each event type, a column for each field.

    Every batch of the raw table is taken once, also across crashes: the job can be killed at any
    moment and started again, and may run beside the ingest job. Events that cannot be decoded are
    in the table _undecodable with the reason.

    `sfpubsub tables rebuild` empties the tables and makes them again.
    """
    for module in ("pyspark", "pandas", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("sfpubsub tables", "spark")
    # Imported here: they load pyspark and pyarrow.
    from sfpubsub.spark.raw.destination import Destination, check_raw_table, format_of
    from sfpubsub.spark.runtime.session import spark_session
    from sfpubsub.spark.tables.engine import EventTables
    from sfpubsub.spark.tables.target import Place

    source_format = from_format or format_of(raw, format_)
    # Before Spark starts, which takes seconds.
    check_raw_table(Destination.parse(raw, source_format))
    Place.parse(target, format_)
    stop = StopRequest()
    stopping = threading.Event()
    watch = StepWatch()
    with stop.installed(), ExitStack() as opened:
        monitor = opened.enter_context(
            watching(f"tables of {raw} in {target}", http, also=watch.text, ends=True)
        )
        echo("starting Spark")
        needed = source_format if format_ == "parquet" else format_
        session = spark_session(
            master,
            app_name="sfpubsub tables",
            format=needed,
            settings=spark_settings(conf, packages),
        )
        spark = start_spark(session, stop)
        opened.push(session)
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
            )
        )
        watch.follow(engine, monitor)
        if what == "rebuild":
            engine.rebuild()
        for report in engine.run(follow=follow, stopping=stopping):
            if report.removed:
                echo(
                    f"the raw table was set back: the rows of {counted(report.removed, 'batch')} "
                    f"are removed"
                )
    total = watch.total
    click.echo(json.dumps(_record(raw, target, total)))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)
    if total.undecodable and not total.rows:
        _say_why(total, target)
        click.get_current_context().exit(FAILED)


def _record(raw: str, target: str, total: StepReport) -> dict[str, object]:
    return {
        "from": raw,
        "to": target,
        "batches": total.batches,
        "rows": dict(total.rows),
        "undecodable": total.undecodable,
    }


def _say_why(total: StepReport, target: str) -> None:
    reason, count = max(total.reasons.items(), key=lambda item: item[1])
    hint = ""
    if reason.endswith("is not known"):
        hint = (
            "; the writer of the raw table keeps its schemas beside it, in _schemas: where it was "
            "a stream, set its option schemaStore to that directory, and run this again"
        )
    click.echo(
        f"none of the {counted(total.undecodable, 'event')} could be decoded, {count} of them "
        f"because {reason}{hint}; they are in {target}, table _undecodable",
        err=True,
    )


# The same: typed tables were all that it made when it was named.
derive = tables
