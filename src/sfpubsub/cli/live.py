"""What a long-running command prints: messages, and a line that shows its progress.

On a terminal the line is one, and is updated. Elsewhere it is a new line every `EVERY` seconds.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable

import click

# Seconds between two lines where stderr is not a terminal: a log of a day is 2,880 lines.
EVERY = 30.0

_CLEAR = "\r\033[K"


class LiveLine:
    """The line of one command. Thread-safe; a context manager, within which `echo` knows of it.

    Args:
        text: Makes the line.
        ends: Whether the line is said once more at the end.
        is_terminal: Whether the line is updated.
        clock: Steady seconds.
    """

    def __init__(
        self,
        text: Callable[[], str],
        *,
        ends: bool = False,
        is_terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text = text
        self._ends = ends
        self._updates = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._clock = clock
        self._due = clock() + (0.0 if self._updates else EVERY)
        # Guards what follows and keeps lines whole. A signal handler may speak while its own thread
        # does.
        self._lock = threading.RLock()
        self._is_shown = False

    def look(self) -> None:
        """Show how it goes, if it is time to."""
        with self._lock:
            if self._clock() < self._due:
                return
            self._show()
            if not self._updates:
                self._due = self._clock() + EVERY

    def _show(self) -> None:
        text = self._text()
        if self._updates and text:
            columns = shutil.get_terminal_size().columns
            # A line that is broken into two could not be cleared.
            click.echo(_CLEAR + text[: columns - 1], err=True, nl=False)
            self._is_shown = True
        elif text:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """Print words, in a line of their own."""
        with self._lock:
            if self._is_shown:
                click.echo(_CLEAR, err=True, nl=False)
                self._is_shown = False
            click.echo(text, err=True)

    def __enter__(self) -> LiveLine:
        global _active
        _active = self
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        with self._lock:
            self._due = float("inf")
            if self._is_shown or self._ends:
                self._show()
            if self._is_shown:  # the last one stays
                click.echo(err=True)
                self._is_shown = False


_active: LiveLine | None = None


def echo(text: str) -> None:
    """Print a message on stderr without breaking the progress line."""
    if _active is None:
        click.echo(text, err=True)
    else:
        _active.say(text)
