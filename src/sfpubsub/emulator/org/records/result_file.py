"""CSV files whose rows can be read from any position, without reading the rows before it.

An index file next to the CSV file contains the offset at which each row ends. Both files are
written and read in chunks, so memory use does not depend on the number of rows.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

_PIECE_BYTES = 256 * 1024
"""Number of bytes to read or write at a time."""

_PLACE_BYTES = array("q").itemsize


class ResultFile:
    """A CSV file with an index. It is written by one thread and can then be read by any thread. The
    header line is not stored; `read` adds it.

    Args:
        path: The CSV file; the index is a second file in the same directory.
        columns: The column names, for the header line.
        delimiter: The separator between values.
        ending: The line ending.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], delimiter: str = ",", ending: str = "\n"
    ) -> None:
        self._path = path
        self._places = path.with_suffix(f"{path.suffix}.places")
        self._between = f'"{delimiter}"'
        self._ending = f'"{ending}'
        self.header: bytes = self.line(columns)

    def line(self, texts: Sequence[str]) -> bytes:
        """Return a line of the file, encoded as UTF-8, with each value in double quotes."""
        quoted = [text.replace('"', '""') if '"' in text else text for text in texts]
        return f'"{self._between.join(quoted)}{self._ending}'.encode()

    @property
    def count(self) -> int:
        """The number of rows, excluding the header line."""
        return self._places.stat().st_size // _PLACE_BYTES if self._places.exists() else 0

    def append(self, rows: Iterator[Sequence[str]]) -> Iterator[int]:
        """Append rows to the file, in chunks, as the caller iterates over the result.

        Yields:
            After each chunk, the number of rows that this call has appended so far.
        """
        end = self._path.stat().st_size if self._path.exists() else 0
        count = 0
        with self._path.open("ab") as file, self._places.open("ab") as places:
            lines: list[bytes] = []
            ends = array("q")
            size = 0
            for row in rows:
                line = self.line(row)
                lines.append(line)
                size += len(line)
                end += len(line)
                ends.append(end)
                if size >= _PIECE_BYTES:
                    file.write(b"".join(lines))
                    ends.tofile(places)
                    count += len(ends)
                    lines, ends, size = [], array("q"), 0
                    yield count
            file.write(b"".join(lines))
            ends.tofile(places)
        yield count + len(ends)

    def cut(self, count: int) -> None:
        """Truncate the file to its first *count* rows."""
        for path, size in ((self._path, self._end(count)), (self._places, count * _PLACE_BYTES)):
            if path.exists():
                os.truncate(path, size)

    def read(self, start: int, count: int) -> tuple[int, Iterator[bytes]]:
        """Return the header line and consecutive rows of the file.

        Args:
            start: Index of the first row to return, counted from 0.
            count: Maximum number of rows.

        Returns:
            The total size in bytes of the header line and these rows, and an iterator over their
            content in chunks.
        """
        begin = self._end(min(start, self.count))
        size = self._end(min(start + count, self.count)) - begin
        return len(self.header) + size, self._pieces(begin, size)

    def remove(self) -> None:
        """Delete the file and its index."""
        self._path.unlink(missing_ok=True)
        self._places.unlink(missing_ok=True)

    def _pieces(self, begin: int, size: int) -> Iterator[bytes]:
        yield self.header
        if size:
            with self._path.open("rb") as file:
                file.seek(begin)
                while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
                    size -= len(piece)
                    yield piece

    def _end(self, count: int) -> int:
        """Return the offset in bytes at which the first *count* rows end."""
        if not count or not self._places.exists():
            return 0
        with self._places.open("rb") as places:
            places.seek((count - 1) * _PLACE_BYTES)
            return int.from_bytes(places.read(_PLACE_BYTES), sys.byteorder)
