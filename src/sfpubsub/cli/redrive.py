"""Decode the events in a quarantine, and write them as lines or to a raw table.

An event is marked as redriven only after it has been written durably, so a marked event is never
lost. If the process is killed in between, the next run writes the event again: a table drops the
duplicate, but a program that reads the lines must drop it itself.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import click

from sfpubsub.avro.codec import Codec
from sfpubsub.cli.render import EventLines
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.errors import ConfigurationError, SchemaError, SchemaNotFoundError, WriteError
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import QuarantinedEvent

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.writer import EventWriter
    from sfpubsub.spark.raw.rows import Row
    from sfpubsub.spark.raw.sources import Source

# Number of lines to write before marking them. A run that is killed repeats at most this many
# lines.
_LINES = 100

# A write to a table takes about a second, regardless of its size. So write many events together,
# but no more than easily fit in memory. Both values are those of `ingest`.
_ROWS = 10_000
_ROW_BYTES = 32 * 2**20

# Errors of fsync for a pipe or a terminal, whose reader has already received the line. None means
# a stream without a descriptor.
_NOT_A_FILE = {errno.EINVAL, errno.ENOTSUP, None}


class Sink(Protocol):
    """Destination of redriven events."""

    @property
    def name(self) -> str:
        """Description of the destination, stored with each event that is marked as redriven."""
        ...

    def refusal(self, entry: QuarantinedEvent) -> str | None:
        """Return why the entry cannot be written to this destination; None if it can be."""
        ...

    def add(self, event: Event, received_at: float) -> bool:
        """Add an event to the next write.

        Returns:
            Whether enough events have accumulated to call `write`.

        Raises:
            DecodeError: The payload does not match the schema. The event was not added.
        """
        ...

    def write(self) -> None:
        """Write the added events durably.

        Raises:
            WriteError: The write failed, so none of the events may be marked as redriven.
        """
        ...


class Lines:
    """Writes each event to stdout, as the line that ``subscribe`` would have printed."""

    name = "stdout"

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = EventLines(raw=False).line

    def refusal(self, _entry: QuarantinedEvent) -> str | None:
        """Return None, because any event can be printed."""
        return None

    def add(self, event: Event, _received_at: float) -> bool:
        """Render an event as a line; return whether `_LINES` lines have accumulated."""
        self._lines.append(self._line(event))
        return len(self._lines) >= _LINES

    def write(self) -> None:
        """Write the accumulated lines to stdout and, if it is a file, flush them to disk.

        Raises:
            WriteError: The lines could not be written.
        """
        try:
            sys.stdout.write("".join(self._lines))
            sys.stdout.flush()
            _sync(sys.stdout.fileno)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(
                f"the events could not be written to stdout: {error.strerror}"
            ) from error
        self._lines.clear()


def _sync(descriptor: Callable[[], int]) -> None:
    try:
        os.fsync(descriptor())
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise


class Table:
    """Writes events to a raw table. The position stored in the table does not change.

    Args:
        writer: Writer of the table.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._sources = {source.name: source for source in writer.table_sources}
        self._rows: list[Row] = []
        self._schemas: dict[str, str] = {}
        self._bytes = 0
        self.duplicates: int = 0
        """Number of events that the table already contained."""

    @property
    def name(self) -> str:
        """Description of the table, stored with each event that is marked as redriven."""
        return str(self._writer.destination)

    def refusal(self, entry: QuarantinedEvent) -> str | None:
        """Return an error message, or None if the entry's source is one of the table's sources."""
        if entry.subscription in self._sources:
            return None
        owners = ", ".join(map(str, self._sources.values()))
        return (
            f"the event belongs to {entry.subscription}, but the table has events from {owners}: "
            f"redrive the event to the table of its source"
        )

    def add(self, event: Event, received_at: float) -> bool:
        """Add an event to the next write; return whether enough rows or bytes have accumulated.

        Raises:
            DecodeError: The payload does not match the schema. The event was not added.
        """
        from sfpubsub.spark.raw.rows import row_of

        row = row_of(event, received_at)
        if row.error is not None:
            raise row.error
        self._rows.append(row)
        self._schemas[event.schema_id] = event.codec.schema_json
        self._bytes += len(event.payload)
        return len(self._rows) >= _ROWS or self._bytes >= _ROW_BYTES

    def write(self) -> None:
        """Write the accumulated events durably: first their schemas, then their rows.

        An event that the table already contains, even an old one, is not written again, only
        counted in `duplicates`.
        """
        from sfpubsub.spark.raw.rows import arrow_table

        if self._rows:
            rows = arrow_table(self._rows, 0)
            self.duplicates += self._writer.write_rows(rows, schemas=self._schemas).duplicates
        self._rows, self._schemas, self._bytes = [], {}, 0


def source_of(entry: QuarantinedEvent) -> Source:
    """Return the source of an entry: a topic (begins with a slash) or a managed subscription."""
    from sfpubsub.spark.raw.sources import Source

    name = entry.subscription
    return Source("topic" if name.startswith("/") else "managed", name)


def redrive(
    kept: FileQuarantine, entries: Iterator[QuarantinedEvent], decoder: Decoder, sink: Sink
) -> tuple[int, int]:
    """Decode *entries*, write their events to *sink*, and mark the entries as redriven.

    Returns:
        The number of entries that were redriven, and the number that could not be redriven.

    Raises:
        WriteError: Events could not be written, or entries could not be marked.
        ConfigurationError: Some entries are damaged. All other entries are processed first.
    """
    done = left = 0
    keys: list[str] = []

    def write_out() -> None:
        # Write before marking: an event that is marked but not written would be lost.
        sink.write()
        kept.mark_redriven(keys, sink.name)
        keys.clear()

    def next_entry() -> QuarantinedEvent | None:
        try:
            return next(entries, None)
        except ConfigurationError:  # damaged entries: process the others first
            write_out()
            raise

    while (entry := next_entry()) is not None:
        refusal = sink.refusal(entry)
        if refusal is None:
            try:
                is_full = sink.add(decoder.event(entry), entry.received_at)
            except SchemaError as error:
                refusal = str(error)
        if refusal is not None:
            left += 1
            click.echo(f"{entry.key} was not redriven: {refusal}", err=True)
            continue
        keys.append(entry.key)
        done += 1
        if is_full:
            write_out()
    write_out()
    return done, left


class Decoder:
    """Decodes quarantine entries.

    An entry is decoded with the schema stored in it. If that is missing or not valid, *sources* are
    searched.

    Args:
        sources: Functions that return the schema with a given id, or None. They are called in order
            until one returns a valid schema. Each is called at most once per id.
    """

    def __init__(self, sources: list[Callable[[str], str | None]]) -> None:
        self._sources = sources
        self._found: dict[str, Codec | None] = {}

    def event(self, entry: QuarantinedEvent) -> Event:
        """Return the event of *entry*. The event's value is decoded on first access.

        Raises:
            SchemaNotFoundError: The entry's schema is not available.
        """
        schema_id = entry.raw.schema_id
        codec = _codec(schema_id, entry.schema_json)
        if codec is None and schema_id not in self._found:
            found = (_codec(schema_id, source(schema_id)) for source in self._sources)
            self._found[schema_id] = next((codec for codec in found if codec is not None), None)
        codec = codec or self._found[schema_id]
        if codec is None:
            raise SchemaNotFoundError(
                f"schema {schema_id} is missing: specify a store with --schemas, or use --fetch"
            )
        batch = EventBatch(
            subscription=entry.subscription,
            topic=entry.topic or None,
            events=(entry.raw,),
            codecs={schema_id: codec},
            first_seq=entry.delivery_seq,
            received_at=entry.received_at,
            ack=lambda _first, _last: None,
        )
        return next(iter(batch))


@lru_cache(maxsize=64)
def _codec(schema_id: str, text: str | None) -> Codec | None:
    try:
        return None if text is None else Codec(schema_id, text)
    except SchemaError as error:
        click.echo(f"skipped a schema that is not valid: {error}", err=True)
        return None
