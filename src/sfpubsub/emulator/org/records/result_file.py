"""Rows of CSV in a file, any run of which can be read without reading what is before it.

Beside the rows lies a file with the place where each ends. Both are written as rows come and read
in pieces, so that no number of rows takes more memory.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

_PIECE_BYTES = 256 * 1024
"""Of a file, read or written at once."""

_PLACE_BYTES = array("q").itemsize


class ResultFile:
    """One file of rows. Written by one thread and then read by any.

    Args:
        path: The file; the places are beside it.
        columns: The first line.
        delimiter: Between values.
        ending: Of lines.
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
        """A line of the file."""
        quoted = [text.replace('"', '""') if '"' in text else text for text in texts]
        return f'"{self._between.join(quoted)}{self._ending}'.encode()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._places.stat().st_size // _PLACE_BYTES if self._places.exists() else 0

    def append(self, rows: Iterator[Sequence[str]]) -> Iterator[int]:
        """Add rows, in pieces.

        Yields:
            How many are added so far; if the caller stops iterating, writing stops.
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
        """Keep the first rows only."""
        for path, size in ((self._path, self._end(count)), (self._places, count * _PLACE_BYTES)):
            if path.exists():
                os.truncate(path, size)

    def read(self, start: int, count: int) -> tuple[int, Iterator[bytes]]:
        """Some rows, after the first line: how many bytes, and the bytes in pieces."""
        begin = self._end(min(start, self.count))
        size = self._end(min(start + count, self.count)) - begin
        return len(self.header) + size, self._pieces(begin, size)

    def remove(self) -> None:
        """Delete the file."""
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
        """Where the first rows end."""
        if not count or not self._places.exists():
            return 0
        with self._places.open("rb") as places:
            places.seek((count - 1) * _PLACE_BYTES)
            return int.from_bytes(places.read(_PLACE_BYTES), sys.byteorder)
