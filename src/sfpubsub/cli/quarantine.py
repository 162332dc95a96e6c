"""``sfpubsub quarantine``: see events that could not be decoded, and decode them after all."""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from sfpubsub.avro.codec import Codec
from sfpubsub.cli.render import event_line, json_line
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.quarantine import FileQuarantine, QuarantinedEvent
from sfpubsub.client.schema_store import FileSchemaStore
from sfpubsub.errors import (
    ConfigurationError,
    SchemaError,
    SchemaNotFoundError,
    WriteError,
)

# Events that are written out before they are marked: a killed run writes no more than these again.
_MARK_EVERY = 100

# What fsync says of a pipe or a terminal, whose reader has the line by then; None is of no
# descriptor at all.
_NOT_A_FILE = {errno.EINVAL, errno.ENOTSUP, None}

# What `ingest` calls the schema store next to a quarantine.
_SCHEMAS_BESIDE = "_schemas"

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    required=True,
    help="The quarantine; of a table it is PATH/_quarantine.",
)


@click.group()
def quarantine() -> None:
    """See events that could not be decoded, and decode them after all."""


@quarantine.command("list")
@_dir_option
@click.option("--all", "all_", is_flag=True, help="Also those that were redriven.")
def list_(directory: Path, all_: bool) -> None:
    """Print a JSON line for each event, in order of arrival."""
    kept = FileQuarantine(directory)
    for entry in kept.entries():
        redriven = kept.is_redriven(entry.key)
        if all_ or not redriven:
            click.echo(json_line({**_head(entry), "redriven": redriven}), nl=False)


@quarantine.command()
@_dir_option
@click.argument("key")
def show(directory: Path, key: str) -> None:
    """Print all that is kept of the event KEY, as one JSON line."""
    entry = _entry(FileQuarantine(directory), key)
    raw = entry.raw
    document = {
        **_head(entry),
        "redriven": FileQuarantine(directory).is_redriven(key),
        "headers": {name: base64.b64encode(value).decode() for name, value in raw.headers},
        "payload": base64.b64encode(raw.payload).decode(),
        "schema": _json_or_text(entry.schema_json),
    }
    click.echo(json_line(document), nl=False)


@quarantine.command()
@_dir_option
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--schemas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    multiple=True,
    help="A schema store to look in.  [default: _schemas next to the quarantine]",
)
@click.option("--fetch", is_flag=True, help="Ask the service for schemas that are not at hand.")
@click.option("--again", is_flag=True, help="Also those that were redriven before.")
@service_options
def redrive(
    directory: Path,
    keys: tuple[str, ...],
    schemas: tuple[Path, ...],
    fetch: bool,
    again: bool,
    **service: str | None,
) -> None:
    """Decode events and print them as subscribe would, all of them or those named.

    An event is marked as redriven after its line is written out, and is left out next time. Those
    that still cannot be decoded stay, with a word on stderr; then the exit code is 1.
    """
    kept = FileQuarantine(directory)
    beside = [place for place in [directory.parent / _SCHEMAS_BESIDE] if place.is_dir()]
    with ExitStack() as opened:
        opened.enter_context(kept.redriving())
        sources: list[Callable[[str], str | None]] = [
            FileSchemaStore(place).get for place in schemas or beside
        ]
        if fetch:
            client = opened.enter_context(connected_client(None, **service))
            sources.append(lambda schema_id: _asked(client.get_schema, schema_id))
        done, left = _redrive(kept, _wanted(kept, keys, again), _Decoder(sources))
    click.echo(f"{done} redriven, {left} left", err=True)
    if left:
        click.get_current_context().exit(1)


def _redrive(
    kept: FileQuarantine, entries: Iterator[QuarantinedEvent], decoder: _Decoder
) -> tuple[int, int]:
    done = left = 0
    keys: list[str] = []
    lines: list[str] = []

    def write_out() -> None:
        # In this order: an event that is marked and not written would be lost.
        try:
            sys.stdout.write("".join(lines))
            _flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(f"the events could not be written out: {error.strerror}") from error
        kept.mark_redriven(keys, "stdout")
        keys.clear()
        lines.clear()

    def next_entry() -> QuarantinedEvent | None:
        try:
            return next(entries, None)
        except ConfigurationError:  # damaged entries: the others are done with first
            write_out()
            raise

    while (entry := next_entry()) is not None:
        try:
            lines.append(decoder.line(entry))
        except SchemaError as error:
            left += 1
            click.echo(f"{entry.key} stays: {error}", err=True)
            continue
        keys.append(entry.key)
        done += 1
        if len(keys) == _MARK_EVERY:
            write_out()
    write_out()
    return done, left


def _flush() -> None:
    sys.stdout.flush()
    try:
        os.fsync(sys.stdout.fileno())
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise


def _wanted(kept: FileQuarantine, keys: tuple[str, ...], again: bool) -> Iterator[QuarantinedEvent]:
    for entry in (_entry(kept, key) for key in dict.fromkeys(keys)) if keys else kept.entries():
        if again or not kept.is_redriven(entry.key):
            yield entry


class _Decoder:
    """Decodes entries with the schema that they hold, or else one that can be had for their id.

    Args:
        sources: Looked into in order, each once for an id.
    """

    def __init__(self, sources: list[Callable[[str], str | None]]) -> None:
        self._sources = sources
        self._found: dict[str, Codec | None] = {}

    def line(self, entry: QuarantinedEvent) -> str:
        """Return the event as one line of JSON.

        Raises:
            SchemaError: It still cannot be decoded.
        """
        schema_id = entry.raw.schema_id
        codec = _codec(schema_id, entry.schema_json)
        if codec is None and schema_id not in self._found:
            found = (_codec(schema_id, source(schema_id)) for source in self._sources)
            self._found[schema_id] = next((codec for codec in found if codec is not None), None)
        codec = codec or self._found[schema_id]
        if codec is None:
            raise SchemaNotFoundError(
                f"schema {schema_id} is not at hand: name a store with --schemas, or --fetch"
            )
        return event_line(_event(entry, codec), raw=False)


@lru_cache(maxsize=64)
def _codec(schema_id: str, text: str | None) -> Codec | None:
    try:
        return None if text is None else Codec(schema_id, text)
    except SchemaError as error:
        click.echo(f"passed over: {error}", err=True)
        return None


def _asked(get_schema: Callable[[str], Any], schema_id: str) -> str | None:
    try:
        return str(get_schema(schema_id).schema_json)
    except SchemaNotFoundError:
        return None


def _event(entry: QuarantinedEvent, codec: Codec) -> Event:
    batch = EventBatch(
        subscription=entry.subscription,
        topic=entry.topic or None,
        events=(entry.raw,),
        codecs={entry.raw.schema_id: codec},
        first_seq=entry.delivery_seq,
        received_at=entry.received_at,
        ack=lambda _first, _last: None,
    )
    return next(iter(batch))


def _entry(kept: FileQuarantine, key: str) -> QuarantinedEvent:
    entry = kept.get(key) if key.isalnum() else None
    if entry is None:
        raise ConfigurationError(
            f"no event {key} in {kept.directory}: see sfpubsub quarantine list"
        )
    return entry


def _head(entry: QuarantinedEvent) -> dict[str, Any]:
    raw = entry.raw
    received = datetime.fromtimestamp(entry.received_at, timezone.utc)
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
        "reason": entry.reason,
    }


def _json_or_text(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
