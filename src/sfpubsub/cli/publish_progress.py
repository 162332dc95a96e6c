"""A progress line for ``sfpubsub publish``, shown on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from sfpubsub.client.publisher import Publisher

# Seconds between updates: short enough to look smooth, and long enough to cost almost nothing.
EVERY = 0.2

_CLEAR = "\r\x1b[K"


class PublishProgress:
    """A progress line, updated in place. Prints nothing if *out* is not a terminal.

    Not thread-safe.

    Args:
        out: Stream to write to, usually stderr.
        publisher: Publisher whose counts are printed.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, out: TextIO, publisher: Publisher, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out if out.isatty() else None
        self._publisher = publisher
        self._clock = clock
        self._begun = clock()
        self._due = self._begun

    def refresh(self) -> None:
        """Update the progress line if an update is due."""
        now = self._clock()
        if self._out is not None and now >= self._due:
            self._due = now + EVERY
            self._out.write(_CLEAR + self._line(now))
            self._out.flush()

    def end(self) -> None:
        """Print the final counts, and leave that line visible."""
        if self._out is not None:
            self._out.write(_CLEAR + self._line(self._clock()) + "\n")
            self._out.flush()

    def _line(self, now: float) -> str:
        counts = self._publisher.counts
        rate = counts.accepted / max(now - self._begun, EVERY)
        parts = [f"{counts.accepted:,} published", f"{rate:,.0f}/s"]
        if counts.pending:
            parts.append(f"{counts.pending:,} without a result")
        if counts.failed:
            parts.append(f"{counts.failed:,} failed")
        if counts.sent_again:
            parts.append(f"{counts.sent_again:,} sent again")
        return ", ".join(parts)
