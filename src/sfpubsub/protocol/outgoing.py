"""Requests sent on an open stream: credit (window.py), combined with a commit if one is due.

This module decides how many events to request. The subscription checks that a stream is open, and
`managed_position.ManagedPosition` decides what to commit.
"""

from __future__ import annotations

from sfpubsub.protocol.commands import Command, CommitRequest, SendRequest
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.window import Window


class Outgoing:
    """The sending side of one subscription. Not thread-safe; the driver serialises all calls."""

    def __init__(self) -> None:
        self.window: Window = Window()
        self._stream = 0
        self.last_credit: float = 0.0
        """When credit was last sent. A message is expected within a fixed time after that."""
        self.last_figure: float = 0.0
        """When the last message was received, ignoring commit responses without events."""

    def open(self, stream: int, now: float, room: int) -> int:
        """Start a new stream; return the number of events to request first."""
        self._stream = stream
        self.last_credit = self.last_figure = now
        return self.window.open(room)

    def received(self, response: Response, now: float) -> None:
        """Update the credit after a response."""
        answer = response.commit
        if answer is None or response.events:
            self.last_figure = now
        self.window.received(len(response.events), None if answer else response.pending)

    def request(
        self, now: float, commit: CommitRequest | None, room: int, room_when_read: int
    ) -> list[Command]:
        """Return the request to send now; empty if neither credit nor a commit is due.

        Args:
            now: The current time, in seconds.
            commit: The commit to send, if one is due.
            room: Number of events that may be in flight now.
            room_when_read: Number of events that may be in flight after the application has read
                all waiting ones.
        """
        credit = self.window.grant(room, room_when_read)
        if credit:
            self.last_credit = now
        return [SendRequest(self._stream, credit, commit)] if credit or commit else []

    def reserve(self, now: float) -> list[Command]:
        """Request one event, so that the service does not close a stream that has no credit."""
        self.last_credit = now
        return [SendRequest(self._stream, self.window.reserve())]
