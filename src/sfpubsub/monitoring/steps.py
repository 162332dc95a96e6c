"""Track the steps of a command, such as writes, to detect stuck ones.

For each kind of step, `Steps` knows how long the current one has been running. It also keeps the
most recently finished steps, which the web page shows.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_log = logging.getLogger("sfpubsub.monitoring")

# Number of finished steps shown on the page.
SHOWN = 20


@dataclass(frozen=True)
class Done:
    """A finished step of a command, such as a write."""

    name: str
    """Kind of step, with the name of the processed topic or subscription if known."""
    at: float
    """When it finished, in seconds since the epoch."""
    seconds: float
    text: str
    """What the step did, for display."""


class Steps:
    """Tracks the running and finished steps of a command. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[str, Callable[[], float | None]] = {}
        self._done: deque[Done] = deque(maxlen=SHOWN)
        self._logged: set[str] = set()

    def follow(self, name: str, seconds: Callable[[], float | None]) -> None:
        """Track a kind of step.

        Args:
            name: Kind of step, with the name of the topic or subscription if known.
            seconds: Returns how long the step has been running, in seconds; None if it is not
                running.
        """
        self._running = {**self._running, name: seconds}

    def running(self) -> dict[str, float | None]:
        """Return how long the current step of each kind has been running, in seconds.

        The value is None for a kind that has no running step.
        """
        return {name: seconds() for name, seconds in self._running.items()}

    def ended(self, done: Done) -> None:
        """Record a finished step."""
        self._done.append(done)

    def done(self) -> list[Done]:
        """Return the most recently finished steps, newest first."""
        return list(self._done)[::-1]

    def report_stuck(self, running: Mapping[str, float | None], bound: float) -> None:
        """Log the stacks of all threads, once for each step that runs longer than *bound* seconds.

        Not thread-safe.
        """
        for name, seconds in running.items():
            if seconds is None or seconds <= bound:
                self._logged.discard(name)
            elif name not in self._logged:
                self._logged.add(name)
                _log.error("%s: running for %.0f s; threads:\n%s", name, seconds, stacks())


def stacks() -> str:
    """Return the stacks of all threads: functions and lines, without any values."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():  # the current thread only collects the stacks
            where = "".join(traceback.format_stack(frame))
            parts.append(f"thread {names.get(ident, ident)}:\n{where}")
    return "\n".join(parts)
