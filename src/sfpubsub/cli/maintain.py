"""``sfpubsub maintain``: keep the tables of a raw table or a target small."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import takewhile

import click

from sfpubsub.cli.live import echo
from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.mirror_tools import format_option
from sfpubsub.cli.params import Duration, TableLocation
from sfpubsub.cli.results import print_records
from sfpubsub.cli.service import StopRequest
from sfpubsub.cli.spark_options import require_spark, spark_options, spark_settings
from sfpubsub.cli.starting import start_spark


@click.command("maintain")
@click.option(
    "--to",
    "to",
    type=TableLocation("table"),
    metavar="TARGET",
    required=True,
    help="Raw table, or target of `tables` or `mirror run`, spelled as for these commands.",
)
@format_option
@click.option(
    "--keep-versions",
    type=Duration(),
    metavar="DURATION",
    help="Also remove the files that only versions older than DURATION need, such as 30d. Time "
    "travel, RESTORE, and readers that follow a table's versions need them.  [default: keep all]",
)
@click.option("--dry-run", is_flag=True, help="Change nothing, and only print what would be done.")
@click.option("--master", metavar="URL", help="Spark master.  [default: local[2]]")
@spark_options
def maintain(
    to: str,
    format_: str,
    keep_versions: float | None,
    dry_run: bool,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
) -> None:
    """Rewrite many small files as a few large ones. No row changes.

    Of a raw table, the days before today are rewritten; of a target, each table with at least 20
    files. Old files are removed only of the tables that jobs use for themselves, such as _steps,
    and after a week. Run it while no job is writing to the tables.

    Prints for each table the number of its files and their size in bytes, before, and what was
    done.
    """
    require_spark("sfpubsub maintain", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.spark.runtime.session import spark_session
    from sfpubsub.spark.tables import maintenance

    stop, stopping = StopRequest(), threading.Event()
    with stop.installed(), ExitStack() as opened:
        echo("starting Spark")
        session = spark_session(
            master,
            app_name="sfpubsub maintain",
            format=format_,
            settings=spark_settings(conf, packages),
        )
        spark = start_spark(session, stop)
        opened.push(session)
        stop.tell(stopping.set)
        done = maintenance.maintain(
            spark, to, format=format_, keep_versions=keep_versions, dry_run=dry_run
        )
        print_records(takewhile(lambda _: not stopping.is_set(), done), "no tables")
    if stop.interrupted:
        click.get_current_context().exit(INTERRUPTED)
