"""A page of a query job's results: downloaded completely to a file, then read row by row.

A page is downloaded completely for two reasons: a broken connection costs only one page and
delivers no row twice, and a slow reader does not keep a connection open until the service closes
it. Memory use does not depend on the page size.
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
from sfpubsub.rest.requests import Asker

# Value of the header Sforce-Locator on the last page (documentation: Get Results for a Query Job).
_END = "null"

_NOT_SYNTAX = bytes(set(range(256)) - set(b'"\n'))


@dataclass(frozen=True)
class ResultPage:
    """A page of a query job's results, stored in a file.

    The caller owns the file. Only one thread may read it at a time.
    """

    file: BinaryIO
    """The page as the org sent it: CSV in UTF-8, with LF line ends and all values quoted."""
    columns: tuple[str, ...]
    """Column names, in the order of the query (documentation, from API version 50.0 on)."""
    has_header: bool
    """Whether the file starts with a header line. The documentation shows this for the first page
    only, and reports about later pages contradict each other.
    """
    records: int
    """Number of rows, without the header."""
    next_locator: str | None
    """Locator of the next page; None for the last page. The locator is valid as long as the job
    exists.
    """

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows.

        A null and an empty string are both ``""``, because the org does not distinguish them.

        Raises:
            RemoteProtocolError: The file is not valid CSV, or a row does not have one value per
                column.
        """
        lines = _lines(self.file)
        if self.has_header:
            next(lines)
        for number, row in enumerate(lines, start=1):
            if len(row) != len(self.columns):
                raise RemoteProtocolError(
                    f"the org returned {len(row)} values instead of {len(self.columns)} in row "
                    f"{number} of a page of results"
                )
            yield row


def _lines(file: BinaryIO) -> Iterator[list[str]]:
    file.seek(0)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield from csv.reader(text, strict=True)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"the org returned results that are not valid CSV: {error}"
        ) from error
    finally:
        text.detach()  # otherwise it closes the file when garbage-collected


def fetch(
    asker: Asker, path: str, query: Mapping[str, str], columns: Sequence[str], file: BinaryIO
) -> ResultPage:
    """Fetch a page of results into *file*, replacing its content.

    If the connection breaks, the page is fetched again from its beginning.

    Args:
        asker: Makes the requests.
        path: REST path of the job's results.
        query: Query parameters that select the page.
        columns: Columns of the job's query, in the same order.
        file: Binary file, open for reading and writing.

    Raises:
        OSError: The file could not be written.
        LocalProtocolError: The job is not complete.
        SfPubSubError: See `Asker.again`.
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

    page: ResultPage = asker.retries.again(attempt)
    return page


def _page(
    answer: Answer, counter: LineCounter, columns: tuple[str, ...], file: BinaryIO
) -> ResultPage:
    if answer.status == 204:  # documented for release 226.0
        raise LocalProtocolError("the query job has no results yet: wait until it is complete")
    count = answer.headers.get("sforce-numberofrecords", "")
    if not (count.isascii() and count.isdigit()):
        # Without it, a complete result set cannot be distinguished from a page whose headers were
        # removed on the way, or ended with a broken connection. The latter is retried.
        raise StreamUnavailableError(
            f"{answer.host} returned results without Sforce-NumberOfRecords: check whether a "
            f"proxy removes headers"
        )
    first = next(_lines(file), []) if counter.is_whole else []
    has_header = [name.lower() for name in first] == [name.lower() for name in columns]
    records, found = int(count), counter.lines - has_header
    if found == records + 1 and counter.is_whole:
        raise RemoteProtocolError(  # the line is not shown, because it may be a record
            f"the first line of the org's results contains {len(first)} values, which do not "
            f"match the requested columns {', '.join(columns)[:200]}"
        )
    if found != records or not counter.is_whole:
        raise StreamUnavailableError(
            f"{answer.host} announced {records} rows but sent {found}: the page was truncated; "
            f"fetch it again"
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
    """Counts the lines of a CSV file while it is received. Not thread-safe.

    This is almost as fast as copying the data.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._quoted = False  # whether the next byte is within quotes
        self._last = b"\n"

    @property
    def lines(self) -> int:
        """Number of lines so far, including an incomplete last line."""
        return self._ended + (self._last != b"\n")

    @property
    def is_whole(self) -> bool:
        """Whether every quote that was opened so far has been closed."""
        return not self._quoted

    def add(self, chunk: bytes) -> None:
        """Count the lines in the next bytes of the file."""
        # Only quotes and line ends are left, in order. Two adjacent quotes cancel out. Of the parts
        # between the remaining quotes, every second one is within quotes.
        syntax = chunk.translate(None, _NOT_SYNTAX).replace(b'""', b"")
        for part in syntax.split(b'"'):
            if not self._quoted:
                self._ended += len(part)
            self._quoted = not self._quoted
        self._quoted = not self._quoted  # there is one more part than there are quotes
        self._last = chunk[-1:] or self._last


class _Sink:
    """Writes a page to a file and counts its lines, until the sink is closed. Thread-safe.

    The thread of a timed-out request may keep running for a moment. Its remaining data must not
    reach the file, which the next attempt may already be writing.
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
                except OSError as error:  # not a connection error, which would be retried
                    self.failure = error
                    self._is_open = False
            if self._is_open:
                self.counter.add(chunk)
            return self._is_open

    def close(self) -> None:
        with self._lock:
            self._is_open = False
