"""Commands that control a mirror and check its tables.

``sfpubsub mirror signal`` sends a signal to a mirror; ``sfpubsub mirror verify`` compares a table
with the org.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfpubsub.cli.main import FAILED
from sfpubsub.cli.params import Duration, Seconds, TableLocation
from sfpubsub.cli.service import StopRequest, service_options
from sfpubsub.cli.spark_options import require_spark, spark_options, spark_settings
from sfpubsub.cli.starting import start_spark
from sfpubsub.errors import ConfigurationError
from sfpubsub.monitoring.text import counted
from sfpubsub.spark.formats import TARGET_FORMATS
from sfpubsub.spark.mirror.settings import DEFAULT_BULK_FROM, DEFAULT_MARGIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sfpubsub.spark.mirror.mailbox import Kind, Mailbox, Signal
    from sfpubsub.spark.mirror.verifying import Difference

target_option = click.option(
    "--to",
    "target",
    type=TableLocation("schema"),
    metavar="TARGET",
    required=True,
    help="Location of the tables: a directory, written with a slash (./lake), a URL, or "
    "CATALOG.SCHEMA.",
)
format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(TARGET_FORMATS),
    default="delta",
    show_default=True,
    help="Format of all tables.",
)
margin_option = click.option(
    "--margin",
    type=Seconds(min=0),
    metavar="S",
    default=DEFAULT_MARGIN,
    show_default=True,
    help="Maximum time, in seconds, from an event until reads from the org include its change.",
)

Command = TypeVar("Command", bound=Callable[..., Any])


_INTERVALS = [
    click.option(
        "--by",
        type=click.Choice(["auto", "events", "modstamp"]),
        default="auto",
        show_default=True,
        help="What tells about changes. auto: events, and the field SystemModstamp of objects "
        "whose events the channel does not deliver; events: such objects wait; modstamp: this "
        "field alone, without a subscription.",
    ),
    click.option(
        "--bulk-from",
        type=click.IntRange(min=0),
        metavar="N",
        default=DEFAULT_BULK_FROM,
        show_default=True,
        help="Use the Bulk API for objects with at least N records.",
    ),
    click.option(
        "--refresh-formulas",
        type=Duration(),
        default="24h",
        show_default=True,
        help="Time between rereads of objects with fields that no event reports, such as "
        "formulas; 0 disables these rereads.",
    ),
    click.option(
        "--drift",
        type=Duration(),
        default="1h",
        show_default=True,
        help="Time between reads of the records that have changed, also without an event; at "
        "most 5m for objects with fields that no event reports; never disables these reads.",
    ),
    click.option(
        "--poll",
        type=Duration(),
        default="5m",
        show_default=True,
        help="Time between reads of the changed records of objects without events.",
    ),
    click.option(
        "--sweep",
        type=Duration(),
        default="7d",
        show_default=True,
        help="Time between searches for records that were purged without an event, and between "
        "reads of all records of objects without events; 0 disables both.",
    ),
]


def intervals_options(command: Command) -> Command:
    """Add the options on which it depends how many API calls a mirror makes."""
    for add in reversed(_INTERVALS):
        command = add(command)
    return command


@click.command("signal")
@target_option
@format_option
@click.option("--reread", metavar="OBJECT", help="Reread the records of OBJECT from the org.")
@click.option(
    "--where",
    metavar="SOQL",
    help="With --reread: reread only records that match this SOQL condition.",
)
@click.option("--add", metavar="OBJECT", help="Also mirror OBJECT from now on.")
@click.option(
    "--remove", metavar="OBJECT", help="Stop mirroring OBJECT. Its rows stay as they are."
)
@click.option(
    "--abandon-read",
    metavar="OBJECT",
    help="Give up the running or interrupted read of OBJECT. A new one begins when it is due.",
)
@click.option(
    "--confirm-deletes",
    metavar="OBJECT",
    help="Delete the parked rows of OBJECT: records that the org no longer returns, although no "
    "event has deleted them. Confirms the number that the command prints, and no more.",
)
@click.option(
    "--pause",
    is_flag=True,
    help="Stop reading records and updating tables until a signal is sent with --resume. Events "
    "are still written to the raw table.",
)
@click.option("--resume", is_flag=True, help="Resume a mirror that was paused with --pause.")
@spark_options
def signal(
    target: str,
    format_: str,
    reread: str | None,
    where: str | None,
    add: str | None,
    remove: str | None,
    abandon_read: str | None,
    confirm_deletes: str | None,
    pause: bool,
    resume: bool,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
) -> None:
    """Send a signal to a mirror, whether or not it is running.

    The signal is stored durably in TARGET until the mirror has processed it.
    """
    asked: list[tuple[Kind, str | None]] = []
    if reread is not None:
        asked.append(("reread", reread))
    if add is not None:
        asked.append(("add", add))
    if remove is not None:
        asked.append(("remove", remove))
    if abandon_read is not None:
        asked.append(("abandon-read", abandon_read))
    if confirm_deletes is not None:
        asked.append(("confirm", confirm_deletes))
    if pause:
        asked.append(("pause", None))
    if resume:
        asked.append(("resume", None))
    if len(asked) != 1:
        raise click.UsageError(
            "use exactly one of --reread, --add, --remove, --abandon-read, --confirm-deletes, "
            "--pause and --resume"
        )
    if where is not None and reread is None:
        raise click.UsageError("--where requires --reread")
    require_spark("sfpubsub mirror signal", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.rest.requests import check_name
    from sfpubsub.spark.formats.destination import Destination
    from sfpubsub.spark.mirror.mailbox import Mailbox

    place = Destination.of_tables(target, format_)
    ((kind, entity),) = asked
    if entity is not None:
        check_name("an object", entity)
    if place.local is not None:  # a directory needs no Spark, whose start takes seconds
        given = _send(Mailbox(None, place), kind, entity, where)
    else:
        with _session("signal", format_, conf, packages) as spark:
            given = _send(Mailbox(spark, place), kind, entity, where)
    shown = {"id": given.id, "kind": kind, "object": entity, "where": where}
    click.echo(json.dumps(shown if given.rows is None else {**shown, "rows": given.rows}))


def _send(mailbox: Mailbox, kind: Kind, entity: str | None, where: str | None) -> Signal:
    from sfpubsub.spark.mirror.mailbox import Signal

    given = Signal(kind, entity, where)
    if kind == "confirm":
        rows = mailbox.parked().get(entity or "", 0)
        if not rows:
            raise ConfigurationError(
                f"no rows of {entity} wait for a confirmation: nothing was sent"
            )
        click.echo(f"confirming that {counted(rows, 'row')} of {entity} may be deleted", err=True)
        given = replace(given, rows=rows)
    mailbox.put(given)
    return given


@click.command("verify")
@click.argument("entity", metavar="OBJECT")
@target_option
@format_option
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare only N records of the table, chosen at random.  [default: all]",
)
@margin_option
@spark_options
@service_options
def verify(
    entity: str,
    target: str,
    format_: str,
    sample: int | None,
    margin: float,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    **service: str | None,
) -> None:
    """Compare the table of OBJECT with the org, row by row.

    Prints a JSON line for each record that differs, with a possible reason: the record is queued
    for a reread, has just changed, differs only in fields that cause no events, or was purged. The
    last line contains the counts. The exit code is 1 if a difference has no such reason, and 3 if
    the user may not see every record: then nothing can be said about missing records.
    """
    require_spark("sfpubsub mirror verify", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.auth.http import HttpClient
    from sfpubsub.auth.oauth import session_provider
    from sfpubsub.config import Settings
    from sfpubsub.rest import OrgReader
    from sfpubsub.spark.formats.destination import Destination
    from sfpubsub.spark.mirror.rights import present_grant
    from sfpubsub.spark.mirror.verifying import Verification

    Destination.of_tables(target, format_)
    settings = Settings.load(service)
    reader = OrgReader(session_provider(settings), http=HttpClient.from_settings(settings))
    reader.describe(entity)  # fail early for an unknown object, before Spark starts
    present_grant(reader, entity)  # the comparison checks it, too
    with _session("verify", format_, conf, packages) as spark:
        verification = Verification(
            spark, reader, target, entity, format=format_, sample=sample, margin=margin
        )
        for difference in verification.differences():
            click.echo(json.dumps(_record(difference), default=str))
    unexplained = verification.differing.get("unexplained", 0)
    click.echo(
        json.dumps(
            {
                "object": entity,
                "compared": verification.compared,
                "equal": verification.equal,
                "different": verification.differing,
                "api_calls": reader.calls,
            }
        )
    )
    click.echo(
        f"{counted(verification.compared, 'record')} compared, "
        f"{counted(sum(verification.differing.values()), 'difference')}, "
        f"{unexplained} unexplained",
        err=True,
    )
    if unexplained:
        click.get_current_context().exit(FAILED)


def _record(difference: Difference) -> dict[str, Any]:
    return {
        "record_id": difference.record_id,
        "in_org": difference.in_org,
        "in_table": difference.in_table,
        "why": difference.why,
        "fields": {
            name: {"org": org, "table": table} for name, (org, table) in difference.fields.items()
        },
    }


@contextmanager
def _session(
    name: str,
    format_: str,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
) -> Iterator[SparkSession]:
    from sfpubsub.spark.runtime.session import spark_session

    stop = StopRequest()
    click.echo("starting Spark", err=True)
    session = spark_session(
        app_name=f"sfpubsub mirror {name}",
        format=format_,
        settings=spark_settings(conf, packages),
    )
    with ExitStack() as opened:
        with stop.installed():
            spark = start_spark(session, stop)
            opened.push(session)
        if stop.requested:
            raise click.Abort
        yield spark
