"""Decodes what a quarantine holds, and writes it out: as lines, or into a raw table.

The order is the promise: decode, write out durably, and only then mark as redriven. So an event
that was marked is somewhere, and one that was written and not marked is written again, which a
table notices and a reader of lines has to.
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

# Lines that are written out before they are marked: a killed run writes no more than these again.
_LINES = 100

# A write to a table takes a second or so, whatever its size: many events at once, but no more than
# memory holds easily. Both as `ingest` has them.
_ROWS = 10_000
_ROW_BYTES = 32 * 2**20

# What fsync says of a pipe or a terminal, whose reader has the line by then; None is of no
# descriptor at all.
_NOT_A_FILE = {errno.EINVAL, errno.ENOTSUP, None}


class Sink(Protocol):
    """Where redriven events go."""

    @property
    def name(self) -> str:
        """A description; written into the marks."""
        ...

    def refusal(self, entry: QuarantinedEvent) -> str | None:
        """Return why an entry cannot go there, or None."""
        ...

    def add(self, event: Event, received_at: float) -> bool:
        """Take an event, and say whether it is time to write.

        Raises:
            DecodeError: Its payload does not fit its schema; it was not taken.
        """
        ...

    def write(self) -> None:
        """Write out what was added since the last time; durable when this returns.

        Raises:
            WriteError: It could not be; none of it may be marked.
        """
        ...


class Lines:
    """The lines that ``subscribe`` would have printed, on stdout."""

    name = "stdout"

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = EventLines(raw=False).line

    def refusal(self, _entry: QuarantinedEvent) -> str | None:
        """See `Sink`."""
        return None

    def add(self, event: Event, _received_at: float) -> bool:
        """See `Sink`."""
        self._lines.append(self._line(event))
        return len(self._lines) >= _LINES

    def write(self) -> None:
        """See `Sink`."""
        try:
            sys.stdout.write("".join(self._lines))
            sys.stdout.flush()
            _sync(sys.stdout.fileno)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(f"the events could not be written out: {error.strerror}") from error
        self._lines.clear()


def _sync(descriptor: Callable[[], int]) -> None:
    try:
        os.fsync(descriptor())
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise


class Table:
    """The raw table that the events would have come into; its position stays where it is.

    Args:
        writer: Of the table.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._sources = {source.name: source for source in writer.table_sources}
        self._rows: list[Row] = []
        self._schemas: dict[str, str] = {}
        self._bytes = 0
        self.duplicates: int = 0
        """Events that the table had already."""

    @property
    def name(self) -> str:
        """See `Sink`."""
        return str(self._writer.destination)

    def refusal(self, entry: QuarantinedEvent) -> str | None:
        """See `Sink`."""
        if entry.subscription in self._sources:
            return None
        owners = ", ".join(map(str, self._sources.values()))
        return f"it is of {entry.subscription}, and the table takes events of {owners}"

    def add(self, event: Event, received_at: float) -> bool:
        """See `Sink`."""
        from sfpubsub.spark.raw.rows import read

        row = read(event, received_at)
        if row.error is not None:
            raise row.error
        self._rows.append(row)
        self._schemas[event.schema_id] = event.codec.schema_json
        self._bytes += len(event.payload)
        return len(self._rows) >= _ROWS or self._bytes >= _ROW_BYTES

    def write(self) -> None:
        """See `Sink`. What the table has is not written again, however long ago it was.

        The schemas are durable beside the table before the rows.
        """
        from sfpubsub.spark.raw.rows import arrow_table

        if self._rows:
            rows = arrow_table(self._rows, 0)
            self.duplicates += self._writer.write_rows(rows, schemas=self._schemas).duplicates
        self._rows, self._schemas, self._bytes = [], {}, 0


def source_of(entry: QuarantinedEvent) -> Source:
    """Return what delivered an entry: topics begin with a slash, managed subscriptions do not."""
    from sfpubsub.spark.raw.sources import Source

    name = entry.subscription
    return Source("topic" if name.startswith("/") else "managed", name)


def redrive(
    kept: FileQuarantine, entries: Iterator[QuarantinedEvent], decoder: Decoder, sink: Sink
) -> tuple[int, int]:
    """Decode entries, write them out, and mark them.

    Returns:
        How many were written out, and how many stay because they cannot be.

    Raises:
        WriteError: They could not be written out or marked.
        ConfigurationError: Entries are damaged; all others are done with.
    """
    done = left = 0
    keys: list[str] = []

    def write_out() -> None:
        # In this order: an event that is marked and not written would be lost.
        sink.write()
        kept.mark_redriven(keys, sink.name)
        keys.clear()

    def next_entry() -> QuarantinedEvent | None:
        try:
            return next(entries, None)
        except ConfigurationError:  # damaged entries: the others are done with first
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
            click.echo(f"{entry.key} stays: {refusal}", err=True)
            continue
        keys.append(entry.key)
        done += 1
        if is_full:
            write_out()
    write_out()
    return done, left


class Decoder:
    """Finds the schema of an entry: the one that it holds, or else the one of its schema id.

    Args:
        sources: Looked into in order, each once for an id.
    """

    def __init__(self, sources: list[Callable[[str], str | None]]) -> None:
        self._sources = sources
        self._found: dict[str, Codec | None] = {}

    def event(self, entry: QuarantinedEvent) -> Event:
        """Return the event; its value is decoded when it is read.

        Raises:
            SchemaNotFoundError: There is no schema of it.
        """
        schema_id = entry.raw.schema_id
        codec = _codec(schema_id, entry.schema_json)
        if codec is None and schema_id not in self._found:
            found = (_codec(schema_id, source(schema_id)) for source in self._sources)
            self._found[schema_id] = next((codec for codec in found if codec is not None), None)
        codec = codec or self._found[schema_id]
        if codec is None:
            raise SchemaNotFoundError(
                f"schema {schema_id} is missing: name a store with --schemas, or --fetch"
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
        click.echo(f"passed over: {error}", err=True)
        return None
