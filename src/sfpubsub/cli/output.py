"""Our stdout as its reader leaves it: what was taken, and whether anybody still reads.

A pipe holds what was written and not yet read, 64 KiB on Linux, and loses it with its reader. So
what counts as taken is what has left the pipe. What the reader does with it, and what it keeps in a
buffer of its own, nobody can see from here: `head -1` reads a block and shows a line of it.
"""

from __future__ import annotations

import array
import fcntl
import io
import os
import select
import stat
import sys
import termios
from typing import TextIO

from sfpubsub.errors import ConfigurationError


class Output:
    """Writes to a stream and watches the one who reads it. Not thread-safe.

    A file or a terminal takes everything at once. So does a pipe where the system does not tell how
    much of it is unread: only Linux is known to tell the one who writes.

    Args:
        out: Usually stdout. Nothing else is to write to it from now on.

    Raises:
        ConfigurationError: The process was started without a stdout.
    """

    def __init__(self, out: TextIO | None) -> None:
        if out is None:
            raise ConfigurationError("there is no stdout to print to: it was closed before")
        out.flush()
        self._out = out
        self._written = 0  # bytes
        self._broken = False
        self._descriptor = _descriptor(out)
        self._counts_unread = False
        self._poll = select.poll()
        if self._descriptor is not None:
            is_pipe = stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
            self._counts_unread = is_pipe and sys.platform == "linux"
            self._poll.register(self._descriptor, 0)  # errors and hang-ups are always told

    def encoded(self, text: str) -> bytes:
        """Return *text* as it is written."""
        return text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")

    def write(self, data: bytes) -> None:
        """Write *data*; waits while a pipe is full. Without a reader the rest goes nowhere.

        Raises:
            OSError: It cannot be written, for instance because the disk is full.
        """
        rest = memoryview(data)
        try:
            while rest:
                if self._descriptor is not None:
                    count = os.write(self._descriptor, rest)
                else:
                    count = len(rest)
                    self._out.write(str(rest, self._out.encoding or "utf-8"))
                    self._out.flush()
                self._written += count
                rest = rest[count:]
        except BrokenPipeError:
            self._broken = True

    @property
    def written(self) -> int:
        """Bytes written so far."""
        return self._written

    def taken(self) -> int:
        """Return how many of the written bytes are not in our hands any more."""
        if not self._counts_unread or self._descriptor is None:
            return self._written
        # What others wrote into the same pipe counts as unread too: that errs on the safe side.
        unread = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
        return self._written - unread[0]

    def is_gone(self, wait: float = 0.0) -> bool:
        """Return whether nobody can read any more.

        Args:
            wait: Seconds to wait for that.
        """
        if self._broken:
            return True
        gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
        return any(events & gone for _, events in self._poll.poll(wait * 1000))


def _descriptor(out: TextIO) -> int | None:
    try:
        return out.fileno()
    except io.UnsupportedOperation:  # in memory
        return None
