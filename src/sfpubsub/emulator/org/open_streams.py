"""The open event streams and their progress, for display only.

This module has no effect on the emulator's behaviour.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol


class Stream(Protocol):
    """The displayed attributes of a stream. The stream's own thread changes them
    concurrently, so values that are read together may not match exactly.
    """

    rpc: str
    target: str
    pending: int
    position: int
    responses: int


@dataclass(frozen=True)
class OpenStream:
    """A snapshot of an open stream.

    Attributes:
        rpc: Subscribe or ManagedSubscribe.
        target: Name of the topic, or developer name of the managed subscription.
        pending: Number of events that the client has requested and that have not been sent yet.
        position: The position that the stream has reached.
        responses: Number of responses sent so far.
        since: The time at which the stream was opened, in seconds since the epoch.
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
        self._streams: dict[Stream, float] = {}  # in the order in which they were opened

    def add(self, stream: Stream, at: float) -> None:
        """Add a stream that was opened at *at*, in seconds since the epoch."""
        with self._lock:
            self._streams[stream] = at

    def remove(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            self._streams.pop(stream, None)

    def all(self) -> list[OpenStream]:
        """Return the streams that are open now, oldest first."""
        with self._lock:
            return [
                OpenStream(
                    item.rpc, item.target, item.pending, item.position, item.responses, since
                )
                for item, since in self._streams.items()
            ]
