"""Which streams of events are open, for people: what each asked for, and how far it is.

Nothing decides by it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol


class Stream(Protocol):
    """What is looked at; its own thread changes it meanwhile, a number at a time."""

    rpc: str
    target: str
    pending: int
    position: int
    responses: int


@dataclass(frozen=True)
class OpenStream:
    """One open stream as it was at a moment.

    Attributes:
        rpc: Subscribe or ManagedSubscribe.
        target: Its topic, or its managed subscription by developer name.
        pending: Events that it still wants: its credit.
        position: Up to where it has been sent.
        responses: Sent so far.
        since: When it was opened, in seconds since 1970 UTC.
    """

    rpc: str
    target: str
    pending: int
    position: int
    responses: int
    since: float


class OpenStreams:
    """The open streams of one emulator. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _streams
        self._streams: dict[Stream, float] = {}  # in the order of their opening

    def add(self, stream: Stream, at: float) -> None:
        """A stream is open since `at`."""
        with self._lock:
            self._streams[stream] = at

    def remove(self, stream: Stream) -> None:
        """It has ended."""
        with self._lock:
            self._streams.pop(stream, None)

    def all(self) -> list[OpenStream]:
        """Those that are open now, the oldest first."""
        with self._lock:
            return [
                OpenStream(
                    item.rpc, item.target, item.pending, item.position, item.responses, since
                )
                for item, since in self._streams.items()
            ]
