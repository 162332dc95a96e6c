"""``sfpubsub upgrade``: upgrade an older raw table to the current columns and partitions."""

from __future__ import annotations

import importlib.util

import click

from sfpubsub.cli.service import StopRequest
from sfpubsub.cli.spark_options import spark_options, spark_settings
from sfpubsub.cli.starting import start_spark
from sfpubsub.errors import MissingExtraError


@click.command("upgrade")
@click.option("--table", metavar="PATH", required=True, help="Raw table to upgrade.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format of the table.",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
def upgrade(
    table: str,
    format_: str,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
) -> None:
    """Upgrade a raw table of an older version to the current columns and partitions.

    Before you run this command, stop all jobs that read or write the table. Every row is
    rewritten. If the command is killed, run it again to complete the upgrade. Older tables also
    keep working without an upgrade.
    """
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("sfpubsub upgrade", "spark")
    from sfpubsub.spark.raw.destination import Destination, check_raw_table
    from sfpubsub.spark.raw.upgrade import upgrade_table
    from sfpubsub.spark.runtime.session import spark_session

    place = Destination.parse(table, format_)
    check_raw_table(place)  # before Spark starts, which takes seconds
    stop = StopRequest()
    click.echo("starting Spark", err=True)
    session = spark_session(
        master,
        app_name="sfpubsub upgrade",
        format=format_,
        settings=spark_settings(conf, packages),
    )
    with stop.installed():
        spark = start_spark(session, stop)
    try:
        done = upgrade_table(spark, place)
    finally:
        session.__exit__(None, None, None)
    click.echo(f"{place} was upgraded" if done else f"{place} already has the newest layout")
