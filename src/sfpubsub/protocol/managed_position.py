"""Track the position of a managed subscription: its commits, and where its streams begin.

The service stores the position of a managed subscription. Commits move it, and it is visible only
in the first events of a stream. `ManagedPosition` is the counterpart of `resume.Resume`, whose
position is stored by the client.

A stream may begin right after the last confirmed position, or after a position whose commit was
sent but not answered. If it begins anywhere else, the service has moved the subscription, which is
reported as a gap with reason ``repositioned``.

Until a commit is confirmed, the service may have a position from an earlier process, or none.
Without a position, streams begin at the subscription's defaultReplay, which the API does not
reveal. If that is LATEST, events published between two streams are lost. So the beginning of the
next stream is compared with the ledger, which contains the received events that are not confirmed:

- If it begins with the ledger's oldest event, or with the event after an unanswered commit, the
  service went back, which LATEST never does. Nothing is lost, now or on later streams: the
  subscription is *anchored*.
- If it begins with another event of the ledger, or with a keepalive at the last position received,
  no event was skipped, so nothing is lost.
- Otherwise, or if nothing was received before this stream, events may have been lost. Since this
  cannot be determined, a gap with reason ``unanchored`` is reported.

If everything received is confirmed, the beginning of a stream shows nothing. Two causes of a loss
are known even then, and reported as gaps:

- The subscription was stopped, which deletes its position, and runs again (``repositioned``).
- More time than events are retained has passed, by the service's clock, since the last commit that
  was confirmed before this stream (``expired``).
"""

from __future__ import annotations

from dataclasses import replace

from sfpubsub.config import Timings
from sfpubsub.errors import CommitError, LocalProtocolError, SfPubSubError
from sfpubsub.protocol.commands import CommitRequest, SettleCommit
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.types import CommitReceipt, Gap, GapReason, RawEvent, ReplayId


class ManagedPosition:
    """The position of one managed subscription. Not thread-safe; the driver serialises all calls.

    Args:
        name: The managed subscription's name or id.
        ledger: Provides the positions that may be committed, in order of arrival.
        timings: Intervals, delays and timeouts; see `Timings`.
        stopped: Gap to report when the first stream begins, because the subscription was refused as
            stopped before; None if it was not.
    """

    def __init__(
        self, name: str, ledger: Ledger, timings: Timings, stopped: Gap | None = None
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._commits = Commits(timings)
        self.is_fresh = True
        """Whether no position has been seen on the current stream yet."""
        self.has_committed = False
        """Whether a commit was confirmed on the current stream."""
        # Whether a stream that may have begun has ended, and none is known to have begun since.
        self._doubt = False
        self.stopped: Gap | None = stopped
        """Gap to report when the next stream begins; None if there is none."""
        # In milliseconds, by the service's clock.
        self._longest = (timings.retention - timings.retention_margin) * 1000
        self._timed: CommitReceipt | None = None  # the last one of which the time is known
        self._before: CommitReceipt | None = None  # the same, before the current stream
        self._anchored = False  # whether the service has a position, or begins at EARLIEST
        self._tickets = 0

    # Streams.

    def new_stream(self, stream: int, now: float) -> None:
        """Start a new stream, whose first position will be checked."""
        self.is_fresh = True
        self.has_committed = False
        self._before = self._timed
        self._commits.new_stream(stream, now)

    def dropped(self) -> None:
        """Record the end of a stream that the service may have accepted.

        The beginning of the next stream is then checked for lost events.
        """
        self._doubt = True

    def began(
        self, response: Response, last: ReplayId | None
    ) -> tuple[list[SettleCommit], Gap | None]:
        """Compare the first position of a stream with the expected positions.

        This must be called before the events are added to the ledger.

        Args:
            response: The first response.
            last: The last position received before this stream.

        Returns:
            Commands that settle the tickets of `commit` calls, and the gap (None if there is no
            gap).
        """
        if not self.is_fresh or response.position is None:
            return [], None
        self.is_fresh = False
        doubt, self._doubt = self._doubt, False
        first = response.events[0] if response.events else None
        before = response.position if first is None else first.replay_id
        stopped, self.stopped = self.stopped, None
        if stopped is not None:
            return [], replace(stopped, before=before, rpc_id=response.rpc_id)
        if self._ledger.holds_events:
            if self._ledger.begins_right_after(0, first):
                self._anchored = True  # without a position, LATEST would skip these events
                self._commits.began_after_receipt()
                return [], None
            settled = self._began_after_commit_in_doubt(first)
            if settled is not None:
                return settled, None
            if self._anchored:
                known_good = None if self.receipt is None else self.receipt.replay_id
                self._before = None  # the reason is known
                return [], self._gap("repositioned", known_good, before, response)
        nothing_between = before == last if first is None else self._ledger.holds(first)
        if self._anchored or not doubt or nothing_between:
            return [], None
        return [], self._gap("unanchored", last, before, response)

    def _began_after_commit_in_doubt(self, first: RawEvent | None) -> list[SettleCommit] | None:
        for sent in self._commits.in_doubt:
            # After the end of the ledger any event may follow, even one from LATEST if nothing is
            # committed.
            known = self._ledger.event_after(sent.order) is not None
            if not known and not self._anchored:
                continue
            if self._ledger.begins_right_after(sent.order, first):
                self._anchored = True
                self._commits.began_after(sent, certain=known)
                self._ledger.confirm(sent.order)
                return self._commits.settle(sent.order)
        return None

    def _gap(
        self, reason: GapReason, after: ReplayId | None, before: ReplayId, response: Response
    ) -> Gap:
        return Gap(reason, self._name, after, before, rpc_id=response.rpc_id)

    # Commits.

    @property
    def receipt(self) -> CommitReceipt | None:
        """The last commit that the service confirmed; None before the first."""
        return self._commits.receipt

    @property
    def unanswered(self) -> bool:
        """Whether a commit is in flight."""
        return self._commits.unanswered is not None

    def next_commit(
        self, now: float, *, again: bool = False, at_once: bool = False
    ) -> CommitRequest | None:
        """Return the commit to send now, or None if no commit is due.

        It commits the newest position that was received on this stream and up to which all
        events are acked. Without a new position, it repeats the last confirmed one, at intervals of
        `Timings.commit_interval` (rule 6 in commits.py).

        Args:
            now: The current time, in seconds.
            again: Whether to skip the delay after a failure and the pause after the last commit,
                because the caller requested a commit.
            at_once: Whether to skip only the pause, because the stream is about to be closed.
        """
        candidate = self._ledger.candidate
        return self._commits.next_request(candidate, now, again=again, at_once=at_once)

    def last_commit(self, now: float, *, again: bool) -> CommitRequest | None:
        """Return the commit to send now while draining, or None if nothing can be committed.

        The pause after the last commit is skipped.

        Args:
            now: The current time, in seconds.
            again: Whether to skip the delay after a failure even if the position was rejected
                before. For a newer position, the delay is always skipped.
        """
        newest = self._ledger.candidate
        newer = newest is not None and newest.order > self._commits.refused_up_to
        return self._commits.next_request(newest, now, again=again or newer, at_once=True)

    def answered(self, answer: CommitAnswer, now: float) -> list[SettleCommit]:
        """Handle a commit response; return the commands that settle tickets of `commit` calls."""
        order = self._commits.answered(answer, now)
        if order is None:
            return self._commits.settle_refused()
        self._anchored = self.has_committed = True
        self._ledger.confirm(order)
        if self.receipt is not None and self.receipt.process_time:
            self._timed = self.receipt
        return self._commits.settle(order)

    def expired(self) -> Gap | None:
        """Return a gap if the position expired before the current stream began; else None.

        Call this after `answered`. The gap is returned once, after the first confirmed commit.
        """
        before, timed = self._before, self._timed
        if not self.has_committed or before is None or timed is None:
            return None
        self._before = None
        if (timed.process_time or 0) - (before.process_time or 0) <= self._longest:
            return None
        return Gap("expired", self._name, after=before.replay_id)

    @property
    def commit_at(self) -> float | None:
        """When the commit in flight times out; if none is in flight, when the next one is due.

        None if no commit is in flight and no position is waiting to be committed.
        """
        return self._commits.deadline(self._ledger.candidate)

    def check_timeout(self, now: float) -> None:
        """Count the commit in flight as failed if `Timings.commit_timeout` has passed."""
        self._commits.check_timeout(now)

    @property
    def exhausted(self) -> CommitError | None:
        """The error that ends the subscription; None until commits have failed for too long."""
        return self._commits.exhausted

    # Callers of commit().

    def ask(self) -> tuple[int, list[SettleCommit]]:
        """Register a caller of `commit`.

        Returns:
            A ticket, and a list with its `SettleCommit` if the outcome is already known. If the
            list is empty, a later command settles the ticket.

        Raises:
            LocalProtocolError: There is nothing to commit.
        """
        receipt, ledger = self.receipt, self._ledger
        # Wait for the position of a keepalive only if nothing was confirmed before.
        newest = ledger.newest_done_event if receipt else ledger.newest_done
        if newest is None and receipt is None:
            raise LocalProtocolError(f"nothing to commit on {self._name}: no event has been acked")
        self._tickets += 1
        self._commits.wait_for(self._tickets, 0 if newest is None else newest.order)
        return self._tickets, self._commits.settle(0) if newest is None else []

    def settle_all(self, error: SfPubSubError) -> list[SettleCommit]:
        """Return the commands that settle all open tickets with *error*."""
        return self._commits.settle_all(error)

    def uncommitted(self) -> CommitError | None:
        """Return an error if acked events are uncommitted when the subscription ends, else None."""
        count = self._ledger.done_events
        if not count:
            return None
        reason = self._commits.last_error or "no stream was open, or no answer arrived in time"
        return CommitError(
            f"{count} acked events of {self._name} were not committed and will be redelivered: "
            f"{reason}"
        )
