"""Output of long-running commands: messages, and a status line.

On a terminal, the status line is updated in place. Otherwise, a new line is printed every `EVERY`
seconds.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable

import click

# Seconds between lines if stderr is not a terminal: 2,880 lines per day.
EVERY = 30.0

_CLEAR = "\r\033[K"


class LiveLine:
    """The status line of one command. Thread-safe.

    Use it as a context manager: within the block, `echo` prints messages above the line.

    Args:
        text: Returns the current text of the line; empty to show no line.
        ends: Whether to print the line once more when the block ends.
        is_terminal: Whether to update the line in place; None to do so if stderr is a terminal.
        clock: Monotonic clock, in seconds.
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
        # Guards the fields below and keeps lines intact. Reentrant, because a signal handler may
        # print while its thread is printing.
        self._lock = threading.RLock()
        self._is_shown = False

    def refresh(self) -> None:
        """Update the status line if an update is due."""
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
            # Cut the line, because a line that wraps cannot be cleared.
            click.echo(_CLEAR + text[: columns - 1], err=True, nl=False)
            self._is_shown = True
        elif text:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """Print a message on a separate line, above the status line."""
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
            if self._is_shown:  # leave the last line visible
                click.echo(err=True)
                self._is_shown = False


_active: LiveLine | None = None


def echo(text: str) -> None:
    """Print a message on stderr, above the status line if one is shown."""
    if _active is None:
        click.echo(text, err=True)
    else:
        _active.say(text)
