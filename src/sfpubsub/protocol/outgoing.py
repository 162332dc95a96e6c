"""What goes out on an open stream: credit and commits, in one request where both are due.

Knows what to ask for and what to commit; whether a stream is open is for the subscription to know.
"""

from __future__ import annotations

from sfpubsub.config import Timings
from sfpubsub.errors import CommitError, LocalProtocolError
from sfpubsub.protocol.commands import Command, SendRequest, SettleCommit
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.window import Window


class Outgoing:
    """The sending side of one subscription. Not thread-safe; the driver serialises.

    Args:
        name: Topic, or name or id of the managed subscription.
        managed: Whether there are commits.
        ledger: Knows what may be committed.
        timings: Times of the service and the client.
    """

    def __init__(self, name: str, managed: bool, ledger: Ledger, timings: Timings) -> None:
        self.commits = Commits(timings)
        self.window = Window()
        self._name = name
        self._managed = managed
        self._ledger = ledger
        self._tickets = 0
        self._stream = 0
        self.last_credit = 0.0
        """When credit was last sent: only so long after that a message is due."""
        self.last_figure = 0.0
        """When the last message came that was more than a commit's answer."""

    # The stream.

    def open(self, stream: int, now: float, *, held: bool) -> int:
        """Begin a new stream; return what its first request asks for."""
        self._stream = stream
        self.last_credit = self.last_figure = now
        self.commits.new_stream(stream, now)
        return self.window.open(held=held)

    def received(self, response: Response, now: float) -> list[Command]:
        """Count what *response* brings, and settle the commits that it answers."""
        answer = response.commit
        if answer is None or response.events:
            self.last_figure = now
        out = [] if answer is None else self._answered(answer)
        self.window.received(len(response.events), None if answer else response.pending)
        return out

    def _answered(self, answer: CommitAnswer) -> list[Command]:
        order = self.commits.answered(answer)
        if order is None:
            return [*self.commits.settle_refused()]
        self._ledger.confirm(order)
        return [*self.commits.settle(order)]

    def request(self, now: float, *, held: bool, again: bool = False) -> list[Command]:
        """Send what may be sent: credit, and a commit of the newest acked prefix.

        Args:
            now: The time.
            held: Whether the application has no room for more events.
            again: Send a refused position once more.
        """
        credit = self.window.grant(held=held)
        if credit:
            self.last_credit = now
        commit = None
        if self._managed:
            commit = self.commits.next_request(self._ledger.candidate, now, again=again)
        return [SendRequest(self._stream, credit, commit)] if credit or commit else []

    def reserve(self, now: float) -> list[Command]:
        """Send the credit that keeps a starving stream open."""
        self.last_credit = now
        return [SendRequest(self._stream, self.window.reserve())]

    def last_commit(self, now: float, *, again: bool) -> list[Command] | None:
        """Send the next commit of a stream that is drained; None when none is left to settle."""
        commit = None
        if self._managed:
            commit = self.commits.next_request(self._ledger.candidate, now, again=again)
        if commit is not None:
            return [SendRequest(self._stream, 0, commit)]
        return None if self.commits.unanswered is None else []

    # Commits.

    @property
    def commit_at(self) -> float | None:
        """When a commit times out, or has to be repeated."""
        return self.commits.deadline(self._ledger.candidate) if self._managed else None

    def ask(self) -> tuple[int, list[SettleCommit]]:
        """Take a caller of `commit`.

        Returns:
            A ticket, which one `SettleCommit` answers, and that if it is answered already.

        Raises:
            LocalProtocolError: There is nothing to commit.
        """
        receipt = self.commits.receipt
        # The position of a keepalive is worth waiting for only while nothing else is confirmed.
        newest = self._ledger.newest_done_event if receipt else self._ledger.newest_done
        if newest is None and receipt is None:
            raise LocalProtocolError(f"nothing to commit on {self._name}: no event has been acked")
        self._tickets += 1
        self.commits.wait_for(self._tickets, 0 if newest is None else newest.order)
        return self._tickets, self.commits.settle(0) if newest is None else []

    def uncommitted(self) -> CommitError | None:
        """Return the error for a subscription that ends with acked events not committed."""
        count = self._ledger.done_events if self._managed else 0
        if not count:
            return None
        reason = self.commits.last_error or "the stream was down, or gave no answer in time"
        return CommitError(
            f"{count} acked events of {self._name} were not committed and will come again: {reason}"
        )
