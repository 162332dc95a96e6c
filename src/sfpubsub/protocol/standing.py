"""Where the service stands with a managed subscription: what is committed, where streams begin.

A managed subscription's position is the service's: it moves by commits, and shows itself only in
what a stream begins with. `Standing` is the counterpart of `resume.Resume`, whose position is ours.
"""

from __future__ import annotations

from sfpubsub.config import Timings
from sfpubsub.errors import CommitError, LocalProtocolError, SfPubSubError
from sfpubsub.protocol.commands import CommitRequest, SettleCommit
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.types import CommitReceipt, Gap


class Standing:
    """The position of one managed subscription. Not thread-safe; the driver serialises.

    Args:
        name: Name or id of the managed subscription.
        ledger: Knows what may be committed, and in which order it came.
        timings: Times of the service and the client.
    """

    def __init__(self, name: str, ledger: Ledger, timings: Timings) -> None:
        self._name = name
        self._ledger = ledger
        self._commits = Commits(timings)
        self._fresh = True  # no position seen on the current stream
        self._tickets = 0

    # Streams.

    def new_stream(self, stream: int, now: float) -> None:
        """Look at the first position that comes on *stream*."""
        self._fresh = True
        self._commits.new_stream(stream, now)

    def began(self, response: Response) -> tuple[list[SettleCommit], Gap | None]:
        """Compare the first position of a stream with where the stream may begin.

        That is right after the last confirmed position, or after one whose commit was sent and not
        answered. Anywhere else, the service has moved the subscription. To be asked before the
        ledger takes the events.

        Returns:
            Callers of `commit` whose answer this is, and what was lost.
        """
        fresh, commits = self._fresh and response.position is not None, self._commits
        if not fresh:
            return [], None
        self._fresh = False
        if not self._ledger.holds_events:
            return [], None
        first = response.events[0] if response.events else None
        if self._ledger.begins_right_after(0, first):
            commits.began_after_receipt()
            return [], None
        for sent in commits.maybe:
            if self._ledger.begins_right_after(sent.order, first):
                commits.began_after(sent)
                self._ledger.confirm(sent.order)
                return commits.settle(sent.order), None
        known_good = None if self.receipt is None else self.receipt.replay_id
        before = response.latest_replay_id if first is None else first.replay_id
        return [], Gap("repositioned", self._name, known_good, before, rpc_id=response.rpc_id)

    # Commits.

    @property
    def receipt(self) -> CommitReceipt | None:
        """The last commit that the service confirmed."""
        return self._commits.receipt

    @property
    def unanswered(self) -> bool:
        """Whether a commit waits for its answer."""
        return self._commits.unanswered is not None

    def next_commit(self, now: float, *, again: bool = False) -> CommitRequest | None:
        """Return the commit to send now, if any: that of the newest acked prefix.

        Args:
            now: The time.
            again: Do not wait after a failure: somebody asked for it.
        """
        return self._commits.next_request(self._ledger.candidate, now, again=again)

    def last_commit(self, now: float, *, again: bool) -> CommitRequest | None:
        """Return the next commit of a stream that is drained: each position once more.

        Args:
            now: The time.
            again: Send a refused position, too.
        """
        newest = self._ledger.candidate
        newer = newest is not None and newest.order > self._commits.refused
        return self._commits.next_request(newest, now, again=again or newer)

    def answered(self, answer: CommitAnswer, now: float) -> list[SettleCommit]:
        """Take an answer; return the callers of `commit` whose answer it is."""
        order = self._commits.answered(answer, now)
        if order is None:
            return self._commits.settle_refused()
        self._ledger.confirm(order)
        return self._commits.settle(order)

    @property
    def commit_at(self) -> float | None:
        """When a commit times out, or has to be sent."""
        return self._commits.deadline(self._ledger.candidate)

    def check_timeout(self, now: float) -> None:
        """Give up a commit that was unanswered for too long."""
        self._commits.check_timeout(now)

    @property
    def exhausted(self) -> CommitError | None:
        """The error that ends the subscription, once commits have failed for too long."""
        return self._commits.exhausted

    # Callers of commit().

    def ask(self) -> tuple[int, list[SettleCommit]]:
        """Take a caller of `commit`.

        Returns:
            A ticket, which one `SettleCommit` answers, and that if it is answered already.

        Raises:
            LocalProtocolError: There is nothing to commit.
        """
        receipt, ledger = self.receipt, self._ledger
        # The position of a keepalive is worth waiting for only while nothing else is confirmed.
        newest = ledger.newest_done_event if receipt else ledger.newest_done
        if newest is None and receipt is None:
            raise LocalProtocolError(f"nothing to commit on {self._name}: no event has been acked")
        self._tickets += 1
        self._commits.wait_for(self._tickets, 0 if newest is None else newest.order)
        return self._tickets, self._commits.settle(0) if newest is None else []

    def settle_all(self, error: SfPubSubError) -> list[SettleCommit]:
        """Answer every caller: the subscription is over."""
        return self._commits.settle_all(error)

    def uncommitted(self) -> CommitError | None:
        """Return the error for a subscription that ends with acked events not committed."""
        count = self._ledger.done_events
        if not count:
            return None
        reason = self._commits.last_error or "the stream was down, or gave no answer in time"
        return CommitError(
            f"{count} acked events of {self._name} were not committed and will come again: {reason}"
        )
