"""What goes out on an open stream: credit, and a commit in the same request where one is due.

Knows what to ask for; whether a stream is open is for the subscription to know, and what to commit
for `standing.Standing`.
"""

from __future__ import annotations

from sfpubsub.protocol.commands import Command, CommitRequest, SendRequest
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.window import Window


class Outgoing:
    """The sending side of one subscription. Not thread-safe; the driver serialises."""

    def __init__(self) -> None:
        self.window: Window = Window()
        self._stream = 0
        self.last_credit: float = 0.0
        """When credit was last sent: only so long after that a message is due."""
        self.last_figure: float = 0.0
        """When the last message came that was more than a commit's answer."""

    def open(self, stream: int, now: float, room: int) -> int:
        """Begin a new stream; return what its first request asks for."""
        self._stream = stream
        self.last_credit = self.last_figure = now
        return self.window.open(room)

    def received(self, response: Response, now: float) -> None:
        """Count what *response* brings."""
        answer = response.commit
        if answer is None or response.events:
            self.last_figure = now
        self.window.received(len(response.events), None if answer else response.pending)

    def request(
        self, now: float, commit: CommitRequest | None, room: int, room_when_read: int
    ) -> list[Command]:
        """Send what may be sent: credit and *commit*.

        Args:
            now: The time.
            commit: The commit that is due, if any.
            room: How many events may be on their way now.
            room_when_read: How many may be once everything that waits is read.
        """
        credit = self.window.grant(room, room_when_read)
        if credit:
            self.last_credit = now
        return [SendRequest(self._stream, credit, commit)] if credit or commit else []

    def reserve(self, now: float) -> list[Command]:
        """Send the credit that keeps a starving stream open."""
        self.last_credit = now
        return [SendRequest(self._stream, self.window.reserve())]
