"""Write to stdout, and observe how much of the output was read and whether the reader has exited.

A pipe buffers unread output (64 KiB on Linux), and loses it if the reader exits. Output therefore
counts as read only once it has left the pipe. What the reader does with the output is not visible:
`head -1` reads a block and prints only its first line.
"""

from __future__ import annotations

import array
import codecs
import fcntl
import io
import os
import select
import stat
import sys
import termios
from typing import TextIO

from sfpubsub.cli.terminal import shown
from sfpubsub.errors import ConfigurationError


class Output:
    """Writes to a stream and watches its reader. Not thread-safe.

    For a file or a terminal, all output counts as read immediately. The same applies to a pipe
    unless the system reports how much data in the pipe is unread; only Linux is known to do so.

    Args:
        out: Usually stdout. Nothing else may write to it from now on.

    Raises:
        ConfigurationError: The process was started without a stdout.
    """

    def __init__(self, out: TextIO | None) -> None:
        if out is None:
            raise ConfigurationError("stdout is closed: start the command with an open stdout")
        out.flush()
        self._out = out
        # For a stream without a descriptor: data passed to `write` may end within a character.
        self._decoder = codecs.getincrementaldecoder(out.encoding or "utf-8")()
        self._written = 0  # bytes
        self._broken = False
        self._descriptor = _descriptor(out)
        self._counts_unread = False
        self._is_terminal = self._descriptor is not None and os.isatty(self._descriptor)
        self._poll = select.poll()
        if self._descriptor is not None:
            is_pipe = stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
            self._counts_unread = is_pipe and sys.platform == "linux"
            self._poll.register(self._descriptor, 0)  # 0: only errors and hang-ups

    @property
    def is_utf8(self) -> bool:
        """Whether the stream's encoding is UTF-8."""
        return codecs.lookup(self._out.encoding or "utf-8").name == "utf-8"

    def encoded(self, text: str) -> bytes:
        """Return *text* encoded for the stream."""
        return text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")

    def write(self, data: bytes) -> None:
        """Write *data*, which is complete lines, blocking while a pipe is full. A terminal gets
        escapes instead of what it would obey.

        If the reader exits, the data that has not been written is discarded.

        Raises:
            OSError: The data cannot be written, for instance because the disk is full.
        """
        if self._is_terminal:
            encoding = self._out.encoding or "utf-8"
            text = shown(data.decode(encoding, "surrogateescape"))
            data = text.encode(encoding, "surrogateescape")
        rest = memoryview(data)
        try:
            while rest:
                if self._descriptor is not None:
                    count = os.write(self._descriptor, rest)
                else:
                    count = len(rest)
                    self._out.write(self._decoder.decode(rest))
                    self._out.flush()
                self._written += count
                rest = rest[count:]
        except BrokenPipeError:
            self._broken = True

    @property
    def written(self) -> int:
        """Number of bytes written so far."""
        return self._written

    def taken(self) -> int:
        """Return how many of the written bytes the reader has read."""
        if not self._counts_unread or self._descriptor is None:
            return self._written
        # Unread data of other writers to the same pipe is counted too, which errs on the safe side.
        unread = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
        return self._written - unread[0]

    def is_gone(self, wait: float = 0.0) -> bool:
        """Return whether the reader has closed its end of the pipe.

        Args:
            wait: Maximum time to wait for the reader to close it, in seconds.
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
