"""Track the commits of a managed subscription: requests, responses and confirmed positions.

The rules (design page, positions; pubsub_api.proto, ``CommitReplayRequest``):

1. At most one commit is in flight on a stream. Until it is answered, newer acked positions wait.
2. The API allows one response to answer several commits. Because of rule 1, a response answers
   either the commit in flight, or one that timed out after `Timings.commit_timeout`.
3. After a rejection or a timeout the next commit waits for an increasing backoff; then the newest
   position is sent, even if it is unchanged. If commits keep failing for `Timings.commit_budget`
   seconds, the subscription ends. The number of failures does not matter: a service may reject many
   commits in a short time. Time without a stream does not count.
4. A commit without a response may have taken effect. It stays *in doubt* until the beginning of the
   next stream shows the position, or a later commit is confirmed.
5. Commits are sent at intervals of at least `Timings.commit_pause`, so that each covers more acks.
   An explicit `commit` does not wait for this interval.
6. At least one commit is sent per `Timings.commit_interval`. Without new acks it repeats the last
   confirmed position, but only if this stream has shown that the service is at that position: if
   the service had moved the subscription back, repeating the position would skip events.
"""

from __future__ import annotations

from typing import NamedTuple

from sfpubsub.backoff import Backoff
from sfpubsub.config import Timings
from sfpubsub.errors import CommitError, SfPubSubError
from sfpubsub.protocol.commands import CommitRequest, SettleCommit
from sfpubsub.protocol.events import CommitAnswer
from sfpubsub.protocol.run import Entry
from sfpubsub.types import CommitReceipt, ReplayId


class Sent(NamedTuple):
    """A commit request, and when it was sent."""

    request_id: str
    replay_id: ReplayId
    order: int
    at: float


class Commits:
    """The commits of one managed subscription. Not thread-safe; the driver serialises all calls."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self.receipt: CommitReceipt | None = None
        # Whether this stream has shown that the service is at the confirmed position.
        self._is_at_receipt = False
        self.last_error: str | None = None
        """Why the last commit failed; None after a success."""
        self._backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._retry_at = 0.0
        self._failed_for = 0.0  # seconds since the first failure, without time between streams
        # Time up to which `_failed_for` is counted; None if no commit was sent on this stream.
        self._counted_to: float | None = None
        self.unanswered: Sent | None = None
        self._late: dict[str, Sent] = {}  # timed out on this stream; may still be answered
        self.in_doubt: list[Sent] = []
        self.refused_up_to: int = 0
        """Highest arrival number of a rejected commit that has not been sent again; 0 if none."""
        self._last_sent = 0.0
        self._next_at = 0.0  # earliest time to send a new position
        self._stream = 0
        self._count = 0
        self._tickets: dict[int, int] = {}  # ticket -> order that must be confirmed

    def new_stream(self, stream: int, now: float) -> None:
        """Start a new stream: unanswered commits of earlier streams are now in doubt.

        Responses arrive only on the stream of their request.
        """
        if self.unanswered is not None:
            self.in_doubt.append(self.unanswered)
        self.in_doubt.extend(self._late.values())
        # One per order is enough, and bounds their number if streams keep failing.
        by_order = {sent.order: sent for sent in self.in_doubt}
        self.in_doubt = [by_order[order] for order in sorted(by_order)]
        self._late.clear()
        self.unanswered = None
        self._stream = stream
        self._is_at_receipt = False
        self._last_sent = now
        self._counted_to = None
        self._retry_at = self._next_at = 0.0
        self.refused_up_to = 0

    def next_request(
        self,
        candidate: Entry | None,
        now: float,
        *,
        again: bool = False,
        at_once: bool = False,
    ) -> CommitRequest | None:
        """Return the commit to send now, or None if no commit is due.

        Args:
            candidate: The newest position that may be committed.
            now: The current time, in seconds.
            again: Whether to skip both the backoff after a failure and `Timings.commit_pause`.
            at_once: Whether to skip `Timings.commit_pause` only.
        """
        if self.unanswered is not None or (now < self._retry_at and not again):
            return None
        if candidate is not None:
            if now < self._next_at and not (again or at_once):
                return None
            return self._send(candidate.replay_id, candidate.order, now)
        if self.receipt is not None and self._is_at_receipt and now >= self._repeat_at:
            return self._send(self.receipt.replay_id, 0, now)
        return None

    def _send(self, replay_id: ReplayId, order: int, now: float) -> CommitRequest:
        self._count += 1
        request_id = f"{self._stream}-{self._count}"
        self.unanswered = Sent(request_id, replay_id, order, now)
        self._last_sent = now
        self._next_at = now + self._timings.commit_pause
        if self._counted_to is None:
            self._counted_to = now
        # A position that is sent again no longer counts as rejected.
        self.refused_up_to = min(self.refused_up_to, order - 1)
        return CommitRequest(request_id, replay_id)

    def answered(self, answer: CommitAnswer, now: float) -> int | None:
        """Handle a response to a commit.

        Returns:
            The number (`Entry.order`) of the newest ledger entry that is now confirmed; 0 if the
            commit repeated a confirmed position; None if the commit failed or is unknown.
        """
        sent = self.unanswered
        if sent is not None and (
            answer.request_id == sent.request_id
            or (not answer.request_id and answer.replay_id == sent.replay_id)
        ):
            self.unanswered = None
        else:
            # Unknown, or a late response: a success counts, a failure was already counted as a
            # timeout.
            sent = self._late.pop(answer.request_id, None)
            if sent is None or answer.error is not None:
                return None
        if answer.error is not None:
            self.refused_up_to = max(self.refused_up_to, sent.order)
            self._failed(answer.error, now)
            return None
        self._confirmed(sent, answer.process_time)
        return sent.order

    def _failed(self, reason: str, now: float) -> None:
        if self.last_error is not None and self._counted_to is not None:
            self._failed_for += now - self._counted_to
        self._counted_to = now
        self.last_error = reason
        # Without jitter: there are no other clients on this stream.
        self._retry_at = now + self._backoff.next(1.0)

    def _confirmed(self, sent: Sent, process_time: int | None) -> None:
        self.last_error = None
        self._failed_for = self._retry_at = 0.0
        self._backoff.reset()
        self._is_at_receipt = True
        self.receipt = CommitReceipt(sent.replay_id, process_time)
        self._late = {key: late for key, late in self._late.items() if late.order > sent.order}
        self.in_doubt = [other for other in self.in_doubt if other.order > sent.order]

    def began_after_receipt(self) -> None:
        """Record that a stream began at the last confirmed position.

        It may also have begun at the position of a later keepalive, if the commit of that position
        was not answered. The two cases cannot be distinguished.
        """
        self._is_at_receipt = not any(sent.order for sent in self.in_doubt)

    def began_after(self, sent: Sent, *, certain: bool) -> None:
        """Mark *sent* as confirmed, because a new stream has begun after its position.

        Args:
            sent: A commit that was not answered.
            certain: Whether the stream began with the event that follows *sent* in the ledger.
                False if no event follows it there; the stream then began with a new event or a
                keepalive.
        """
        self._confirmed(sent, None)
        self._is_at_receipt = certain and not self.in_doubt

    def check_timeout(self, now: float) -> None:
        """Count the commit in flight as failed if `Timings.commit_timeout` has passed."""
        sent = self.unanswered
        if sent is not None and now >= sent.at + self._timings.commit_timeout:
            self._late[sent.request_id] = sent
            self.unanswered = None
            self._failed(f"no answer within {self._timings.commit_timeout:g} s", now)

    @property
    def exhausted(self) -> CommitError | None:
        """The error that ends the subscription; None until commits have failed for too long."""
        if self.last_error is None or self._failed_for < self._timings.commit_budget:
            return None
        return CommitError(
            f"no commit was accepted for {self._failed_for:.0f} s; the last error: "
            f"{self.last_error}; events acked since the last confirmed commit will be redelivered",
            retryable=True,
        )

    def deadline(self, candidate: Entry | None) -> float | None:
        """Return when to call `check_timeout` and `next_request`; None if no call is necessary."""
        if self.unanswered is not None:
            return self.unanswered.at + self._timings.commit_timeout
        if candidate is not None:
            return max(self._retry_at, self._next_at)
        if self.receipt is not None and self._is_at_receipt:
            return self._repeat_at
        return None

    @property
    def _repeat_at(self) -> float:
        # After a failure, retry without waiting for the interval: the service may close the stream.
        interval = self._last_sent + self._timings.commit_interval
        return interval if self.last_error is None else self._retry_at

    # Callers of commit().

    def wait_for(self, ticket: int, order: int) -> None:
        """Register *ticket*, to be settled once ledger entry number *order* is confirmed."""
        self._tickets[ticket] = order

    def settle(self, order: int) -> list[SettleCommit]:
        """Return the commands that settle the tickets for ledger entries up to number *order*."""
        assert self.receipt is not None  # noqa: S101  # a commit was confirmed
        ready = [ticket for ticket, wanted in self._tickets.items() if wanted <= order]
        for ticket in ready:
            del self._tickets[ticket]
        return [SettleCommit(ticket, self.receipt) for ticket in ready]

    def settle_refused(self) -> list[SettleCommit]:
        """Return the commands that settle the tickets of rejected positions with an error."""
        ready = [ticket for ticket, wanted in self._tickets.items() if wanted <= self.refused_up_to]
        error = CommitError(f"the commit was refused: {self.last_error}")
        for ticket in ready:
            del self._tickets[ticket]
        return [SettleCommit(ticket, error) for ticket in ready]

    def settle_all(self, error: SfPubSubError) -> list[SettleCommit]:
        """Return the commands that settle all open tickets with *error*."""
        ready, self._tickets = list(self._tickets), {}
        return [SettleCommit(ticket, error) for ticket in ready]
