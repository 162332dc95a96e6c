"""One page of a query job's results: fetched whole into a file, then read row by row.

Whole, because a connection that breaks then costs the page and no row is delivered twice, and
because a slow reader of the rows keeps no connection open that the service would cut. Memory
stays flat, however large the page is.
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from sfpubsub.auth.http import Answer
from sfpubsub.errors import LocalProtocolError, RemoteProtocolError, StreamUnavailableError
from sfpubsub.rest.asking import Asker

# How Salesforce writes "there is no further page" (documentation: Get Results for a Query Job).
_END = "null"

_NOT_SYNTAX = bytes(set(range(256)) - set(b'"\n'))


@dataclass(frozen=True)
class ResultPage:
    """A page in its file. The file is the caller's, to be read by one thread at a time."""

    file: BinaryIO
    """As the org sent it: CSV in UTF-8, lines end with LF, all values in quotes."""
    columns: tuple[str, ...]
    """Their names, in the order of the query (documentation, from API version 50.0 on)."""
    has_header: bool
    """Whether the file begins with them. The documentation shows that of a first page only, and
    reports of later ones contradict each other."""
    records: int
    """Rows, the header apart."""
    next_locator: str | None
    """Of the page after this one; None for the last. It stays good as long as its job."""

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows; an empty field and an empty text are both ``""``, as the org sends them.

        Raises:
            RemoteProtocolError: The file is no CSV, or its rows have not all as many values.
        """
        lines = _lines(self.file)
        if self.has_header:
            next(lines)
        for row in lines:
            if len(row) != len(self.columns):
                raise RemoteProtocolError(
                    f"the org answered with a row of {len(row)} values, and asked for were "
                    f"{len(self.columns)}"
                )
            yield row


def _lines(file: BinaryIO) -> Iterator[list[str]]:
    file.seek(0)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield from csv.reader(text, strict=True)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"the org answered with results that are not valid CSV: {error}"
        ) from error
    finally:
        text.detach()  # otherwise it closes the file when it is collected


def fetch(
    asker: Asker, path: str, query: Mapping[str, str], columns: Sequence[str], file: BinaryIO
) -> ResultPage:
    """Fetch a page into *file*, whose content is replaced; begins again when it breaks off.

    Args:
        asker: Asks the org.
        path: Of the results.
        query: Says which page.
        columns: Of the job's query, in its order.
        file: Open for reading and writing.

    Raises:
        OSError: The file could not be written.
        LocalProtocolError: The job is not complete.
        SfPubSubError: As of `Asker.again`.
    """

    def attempt() -> ResultPage:
        file.seek(0)
        file.truncate()
        sink = _Sink(file)
        try:
            answer = asker.download(path, query, sink)
        finally:
            sink.close()
        if sink.failure is not None:
            raise sink.failure
        file.flush()
        return _page(answer, sink.counter, tuple(columns), file)

    page: ResultPage = asker.again(attempt)
    return page


def _page(
    answer: Answer, counter: LineCounter, columns: tuple[str, ...], file: BinaryIO
) -> ResultPage:
    if answer.status == 204:  # documentation of 226.0
        raise LocalProtocolError("the query job has no results yet: wait until it is complete")
    count = answer.headers.get("sforce-numberofrecords", "")
    if not (count.isascii() and count.isdigit()):
        # Neither can the end be told from a page that something in between has stripped of both.
        raise RemoteProtocolError(
            f"{answer.host} answered with results without Sforce-NumberOfRecords: does something "
            f"in between remove headers?"
        )
    first = next(_lines(file), []) if counter.is_whole else []
    has_header = [name.lower() for name in first] == [name.lower() for name in columns]
    records, found = int(count), counter.lines - has_header
    if found == records + 1 and counter.is_whole:
        raise RemoteProtocolError(  # the line itself is not shown: it may be a record
            f"the org answered with a first line of {len(first)} values that are not the columns "
            f"asked for, {', '.join(columns)[:200]}"
        )
    if found != records or not counter.is_whole:
        raise StreamUnavailableError(
            f"{answer.host} announced {records} rows and sent {found}: the page was cut"
        )
    locator = answer.headers.get("sforce-locator", "")
    return ResultPage(
        file=file,
        columns=columns,
        has_header=has_header,
        records=records,
        next_locator=None if locator in ("", _END) else locator,
    )


class LineCounter:
    """Counts the lines of a CSV as it comes, at the speed of a copy; not thread-safe."""

    def __init__(self) -> None:
        self._ended = 0
        self._quoted = False  # whether what comes next is within quotes
        self._last = b"\n"

    @property
    def lines(self) -> int:
        """Lines so far; one that has begun counts."""
        return self._ended + (self._last != b"\n")

    @property
    def is_whole(self) -> bool:
        """Whether every quote so far has its counterpart."""
        return not self._quoted

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        # What is left has quotes and line ends only, in order. Two quotes side by side open and
        # close nothing. What is between the others is within quotes every second time.
        syntax = chunk.translate(None, _NOT_SYNTAX).replace(b'""', b"")
        for part in syntax.split(b'"'):
            if not self._quoted:
                self._ended += len(part)
            self._quoted = not self._quoted
        self._quoted = not self._quoted  # there is one part more than there are quotes
        self._last = chunk[-1:] or self._last


class _Sink:
    """Writes and counts a page; takes nothing once it is closed. Thread-safe.

    A request whose time is up can leave its thread behind for a moment: what that thread still
    has must not get into the file, which the next attempt may be writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.failure: OSError | None = None
        self._file = file
        self._lock = threading.Lock()  # held while writing, so that `close` waits for it
        self._is_open = True
        self.counter = LineCounter()

    def __call__(self, chunk: bytes) -> bool:
        with self._lock:
            if self._is_open:
                try:
                    self._file.write(chunk)
                except OSError as error:  # not one of the connection, which is tried again
                    self.failure = error
                    self._is_open = False
            if self._is_open:
                self.counter.add(chunk)
            return self._is_open

    def close(self) -> None:
        with self._lock:
            self._is_open = False
