"""Keeps what a server sent from controlling the terminal: control characters and characters that
change the direction of text are shown as escapes.
"""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

# What a terminal obeys, or what reorders text on it, except for what this package's own output
# needs: a new line, a tab, bold text, and clearing the line from its start.
_OBEYED = re.compile(
    r"\r(?!\x1b\[K)|\x1b(?!\[(?:K|[01]m))|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def shown(text: str) -> str:
    r"""Return *text* with escapes such as ``\u202e`` instead of such characters.

    In JSON, they mean the same.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def protect() -> None:
    """Make stdout and stderr write escapes, each if it is a terminal."""
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = Terminal(sys.stdout)
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr = Terminal(sys.stderr)


class Stream(io.TextIOBase):
    """A text stream that changes what is written to another one.

    Args:
        out: Stream to write to.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @property
    def encoding(self) -> str:  # type: ignore[override]  # click reads it
        """Encoding of the underlying stream."""
        return self._out.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # click reads it
        """Encoding error handler of the underlying stream."""
        return self._out.errors

    def fileno(self) -> int:
        """Return the file descriptor of the underlying stream."""
        return self._out.fileno()

    def isatty(self) -> bool:
        """Return whether the underlying stream is a terminal."""
        return self._out.isatty()

    def writable(self) -> bool:
        """Return True, because the stream is always writable."""
        return True

    def flush(self) -> None:
        """Flush the underlying stream."""
        self._out.flush()


class Terminal(Stream):
    """A terminal that obeys nothing that a server sent."""

    def write(self, text: str) -> int:
        """Write *text* with escapes. Return ``len(text)``."""
        self._out.write(shown(text))
        return len(text)
