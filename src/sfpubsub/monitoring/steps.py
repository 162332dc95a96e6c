"""Steps that may hang: how long the one under way has taken, and what becomes of those that end."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_log = logging.getLogger("sfpubsub.monitoring")

# Finished steps that the page shows.
SHOWN = 20


@dataclass(frozen=True)
class Done:
    """A step that has ended."""

    name: str
    """Which step, and of what."""
    at: float
    """When, in seconds since 1970 UTC."""
    seconds: float
    text: str
    """What it did."""


class Steps:
    """The steps of a command. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[str, Callable[[], float | None]] = {}
        self._done: deque[Done] = deque(maxlen=SHOWN)
        self._told: set[str] = set()

    def follow(self, name: str, seconds: Callable[[], float | None]) -> None:
        """Ask *seconds* for how long the step under way has taken; None while there is none."""
        self._running = {**self._running, name: seconds}

    def running(self) -> dict[str, float | None]:
        """Return for how long each kind of step is under way."""
        return {name: seconds() for name, seconds in self._running.items()}

    def ended(self, done: Done) -> None:
        """Note a step that has ended."""
        self._done.append(done)

    def done(self) -> list[Done]:
        """Return the last steps, the newest first."""
        return list(self._done)[::-1]

    def tell_stuck(self, running: Mapping[str, float | None], bound: float) -> None:
        """Log once where every thread is, for each step that goes on for longer than *bound*.

        For one thread.
        """
        for name, seconds in running.items():
            if seconds is None or seconds <= bound:
                self._told.discard(name)
            elif name not in self._told:
                self._told.add(name)
                _log.error("%s: under way for %.0f s; threads:\n%s", name, seconds, stacks())


def stacks() -> str:
    """Return where every thread is: names of functions and lines, and nothing of their values."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():  # our own says nothing
            where = "".join(traceback.format_stack(frame))
            parts.append(f"thread {names.get(ident, ident)}:\n{where}")
    return "\n".join(parts)
