"""``sfpubsub derive``: typed tables out of a raw one.

Puts the parts together and translates between them and people. Needs no service and no credentials.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.service import StopRequest
from sfpubsub.cli.spark_options import spark_options, spark_settings
from sfpubsub.cli.starting import start_spark
from sfpubsub.cli.words import counted
from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.tables.typed import Derived, TypedTables

# Seconds between two looks at the raw table with --follow: a job writes a batch each ten seconds
# unless told otherwise.
_LOOK_EVERY = 10.0


@click.command("derive")
@click.option("--from", "raw", metavar="PATH", required=True, help="The raw table.")
@click.option(
    "--to", "destination", metavar="DIR", required=True, help="Directory of the typed tables."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format of the raw table. Typed tables are Parquet.",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
@click.option("--follow", is_flag=True, help="Go on with what is written to the raw table.")
def derive(
    raw: str,
    destination: str,
    format_: str,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    follow: bool,
) -> None:
    """Decode a raw table into one typed table for each event type.

    Every batch of the raw table is derived once, also across crashes: the job can be killed at any
    moment and started again, and may run beside the ingest job. Events that cannot be decoded are
    in DIR/_undecodable with the reason.
    """
    for module in ("pyspark", "pandas", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("sfpubsub derive", "spark")
    # Imported here: they load pyspark and pyarrow.
    from sfpubsub.spark.raw.destination import Destination, check_raw_table
    from sfpubsub.spark.runtime.session import spark_session
    from sfpubsub.spark.tables.typed import Derived, TypedTables

    check_raw_table(Destination.parse(raw, format_))  # before Spark starts, which takes seconds
    stop = StopRequest()
    stopping = threading.Event()
    total = Derived()
    click.echo("starting Spark", err=True)
    with stop.installed(), ExitStack() as opened:
        session = spark_session(
            master,
            app_name="sfpubsub derive",
            format=format_,
            settings=spark_settings(conf, packages),
        )
        spark = start_spark(session, stop)
        opened.push(session)
        stop.tell(stopping.set)
        tables = opened.enter_context(TypedTables(spark, raw, destination, format=format_))
        while not stopping.is_set():
            total = _derive(tables, total, stopping)
            if not follow:
                break
            stopping.wait(_LOOK_EVERY)
    click.echo(json.dumps(_record(raw, destination, total)))
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _derive(tables: TypedTables, total: Derived, stopping: threading.Event) -> Derived:
    for step in tables.derive():
        total += step
        click.echo(
            f"{counted(total.batches, 'batch')}, {counted(sum(total.rows.values()), 'row')}, "
            f"{total.undecodable} not decoded",
            err=True,
        )
        if stopping.is_set():
            break
    return total


def _record(raw: str, destination: str, total: Derived) -> dict[str, object]:
    return {
        "from": raw,
        "to": destination,
        "batches": total.batches,
        "rows": dict(total.rows),
        "undecodable": total.undecodable,
    }
