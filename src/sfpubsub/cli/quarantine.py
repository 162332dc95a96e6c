"""``sfpubsub quarantine``: list events that could not be decoded or handled, and redrive them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfpubsub.cli.params import TableLocation
from sfpubsub.cli.redrive import Decoder, Lines, Sink, Table, source_of
from sfpubsub.cli.redrive import redrive as run_redrive
from sfpubsub.cli.results import print_record, print_records
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.cli.spark_options import spark_options, spark_settings
from sfpubsub.errors import ConfigurationError, SchemaNotFoundError
from sfpubsub.spark.formats import RAW_FORMATS
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import QuarantinedEvent
from sfpubsub.stores.schema_store import FileSchemaStore

if TYPE_CHECKING:
    from sfpubsub.spark.raw.sources import Source

# Directory names of a table's quarantine and of the schema store next to it.
_OF_A_TABLE = "_quarantine"
_SCHEMAS_BESIDE = "_schemas"

# Patterns of file names in a quarantine: entries, and all other files (locks, drafts, marks).
_ENTRY = re.compile(r"[0-9a-f]{32}\.json")
_LEFT = re.compile(r"^\.|\.tmp$|\.done$")

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    required=True,
    help="Directory of the quarantine. For a Parquet table DIR/NAME, this is "
    "DIR/.NAME.sfpubsub/_quarantine; for a Delta or Iceberg table, it is _quarantine in the "
    "table's directory.",
)


@click.group()
def quarantine() -> None:
    """List events that could not be decoded or handled, and redrive them."""


@quarantine.command("list")
@_dir_option
@click.option("--all", "all_", is_flag=True, help="Include redriven events.")
def list_(directory: Path, all_: bool) -> None:
    """Print a JSON line per event that has not been redriven, in order of arrival."""
    kept = _quarantine_at(directory)
    rows = ({**_head(entry), "redriven": kept.is_redriven(entry.key)} for entry in kept.entries())
    print_records(
        (row for row in rows if all_ or not row["redriven"]),
        f"no events in {directory}" + ("" if all_ else " (--all also lists redriven ones)"),
    )


@quarantine.command()
@_dir_option
@click.argument("key")
def show(directory: Path, key: str) -> None:
    """Print all stored data of the event KEY as one JSON line."""
    kept = _quarantine_at(directory)
    entry = _entry(kept, key)
    raw = entry.raw
    document = {
        **_head(entry),
        "redriven": kept.is_redriven(key),
        "headers": {name: base64.b64encode(value).decode() for name, value in raw.headers},
        "payload": base64.b64encode(raw.payload).decode(),
        "schema": _json_or_text(entry.schema_json),
        "traceback": entry.traceback or None,
    }
    print_record(document)


@quarantine.command()
@_dir_option
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--to",
    "to",
    type=TableLocation("table"),
    metavar="TABLE",
    help="Write each event once to this raw table, instead of printing it. The position "
    "stored in the table does not change. No other process may be writing to the table.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(RAW_FORMATS),
    help="With --to: format of the table.  [default: parquet]",
)
@click.option("--master", metavar="URL", help="With --to: Spark master.  [default: local[2]]")
@spark_options
@click.option(
    "--schemas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    multiple=True,
    help="Directory of a schema store to search for missing schemas; can be repeated.  [default: "
    "_schemas next to the quarantine]",
)
@click.option(
    "--fetch", is_flag=True, help="Request schemas from the service if they are missing locally."
)
@click.option("--again", is_flag=True, help="Include events that were already redriven.")
@service_options
def redrive(
    directory: Path,
    keys: tuple[str, ...],
    to: str | None,
    format_: str | None,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    packages: tuple[str, ...],
    schemas: tuple[Path, ...],
    fetch: bool,
    again: bool,
    **service: str | None,
) -> None:
    """Decode events from the quarantine again, and print them or write them to a table.

    Without KEYs, all events are redriven. They are printed in the format of `subscribe` or, with
    --to, written to a table. An event is marked as redriven after its line or row is written, and
    later runs skip it. An event that still cannot be decoded, or whose source is not one of the
    table's sources, is not marked. It causes a message on stderr and exit code 1.
    """
    if to is None and (format_ or master or conf or packages):
        raise click.UsageError("--format, --master, --conf and --packages require --to")
    kept = _quarantine_at(directory)
    beside = [place for place in [directory.parent / _SCHEMAS_BESIDE] if place.is_dir()]
    with ExitStack() as opened:
        opened.enter_context(kept.redriving())
        entries = _wanted(kept, keys, again)
        sink: Sink = Lines()
        if to is not None:
            first = next(entries, None)
            if first is None:
                click.echo("0 redriven, 0 left to redrive", err=True)
                return
            entries = chain([first], entries)
            # Start Spark before the client, because Spark forks.
            spark = spark_settings(conf, packages)
            sink = _open_table(opened, to, format_ or "parquet", master, spark, source_of(first))
        sources: list[Callable[[str], str | None]] = [
            FileSchemaStore(place).get for place in schemas or beside
        ]
        if fetch:
            client = opened.enter_context(connected_client(None, **service))
            sources.append(lambda schema_id: _asked(client.get_schema, schema_id))
        done, left = run_redrive(kept, entries, Decoder(sources), sink)
    had = f" ({sink.duplicates} already in the table)" if isinstance(sink, Table) else ""
    click.echo(f"{done} redriven{had}, {left} left to redrive", err=True)
    if left:
        click.get_current_context().exit(1)


def _quarantine_at(directory: Path) -> FileQuarantine:
    """Return the quarantine in *directory*; an empty directory is a quarantine without events.

    Raises:
        ConfigurationError: The directory contains other files, but no quarantined events.
        OSError: The directory cannot be read.
    """
    names = sorted(place.name for place in directory.iterdir())
    foreign = [name for name in names if not _LEFT.search(name)]
    if foreign and not any(map(_ENTRY.fullmatch, names)):
        from sfpubsub.spark.raw.ownership import local_sidecar

        of_a_table = local_sidecar(directory, _OF_A_TABLE)
        raise ConfigurationError(
            f"{directory} is not a quarantine (it contains {foreign[0]!r}): use "
            f"{of_a_table if of_a_table.is_dir() else 'another directory'}"
        )
    return FileQuarantine(directory)


def _open_table(
    opened: ExitStack,
    to: str,
    format_: str,
    master: str | None,
    settings: dict[str, str],
    source: Source,
) -> Table:
    from sfpubsub.spark import EventWriter, spark_session
    from sfpubsub.spark.formats.destination import Destination
    from sfpubsub.spark.raw.destination import check_sources

    # Before Spark starts, which takes seconds.
    check_sources(Destination.parse(to, format_), [source])
    spark = opened.enter_context(
        spark_session(
            master, format=format_, app_name="sfpubsub quarantine redrive", settings=settings
        )
    )
    writer = EventWriter(
        spark,
        to,
        format=format_,
        subscription=source.name if source.kind == "managed" else None,
        topic=source.name if source.kind == "topic" else None,
    )
    return Table(opened.enter_context(writer))


def _wanted(kept: FileQuarantine, keys: tuple[str, ...], again: bool) -> Iterator[QuarantinedEvent]:
    for entry in (_entry(kept, key) for key in dict.fromkeys(keys)) if keys else kept.entries():
        if again or not kept.is_redriven(entry.key):
            yield entry


def _asked(get_schema: Callable[[str], Any], schema_id: str) -> str | None:
    try:
        return str(get_schema(schema_id).schema_json)
    except SchemaNotFoundError:
        return None


def _entry(kept: FileQuarantine, key: str) -> QuarantinedEvent:
    entry = kept.get(key) if key.isalnum() else None
    if entry is None:
        raise ConfigurationError(
            f"{kept.directory} has no event {key}: run sfpubsub quarantine list to see the keys"
        )
    return entry


def _head(entry: QuarantinedEvent) -> dict[str, Any]:
    raw = entry.raw
    received = datetime.fromtimestamp(entry.received_at, UTC)
    return {
        "key": entry.key,
        "subscription": entry.subscription,
        "topic": entry.topic or None,
        "event_id": raw.id,
        "replay_id": raw.replay_id.hex(),
        "schema_id": raw.schema_id,
        "has_schema": entry.schema_json is not None,
        "bytes": len(raw.payload),
        "received_at": received.isoformat(timespec="milliseconds"),
        "failed_in": entry.failed_in,
        "reason": entry.reason,
    }


def _json_or_text(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
