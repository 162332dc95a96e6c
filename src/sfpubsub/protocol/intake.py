"""What comes in: events into the application's queue, positions into the ledger.

Counts what waits to be read, drops redeliveries, and compares where a managed stream begins with
where it may begin.
"""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.commands import Command, Deliver, ReportGap, Wake
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.resume import Resume
from sfpubsub.types import Gap, RawEvent, ReplayId


class Intake:
    """The receiving side of one subscription. Not thread-safe; the driver serialises.

    Args:
        name: Topic, or name or id of the managed subscription.
        limits: Bounds of memory.
        ledger: Takes the positions; None when nothing is tracked.
        resume: Moves with a plain subscription; None for a managed one.
        commits: Knows where a managed stream may begin; None for a plain one.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        ledger: Ledger | None,
        resume: Resume | None,
        commits: Commits | None,
    ) -> None:
        self._name = name
        self._limits = limits
        self._ledger = ledger
        self._resume = resume
        self._commits = commits
        self._fresh = True  # no position seen on the current stream
        self._next_seq = 1
        self.queued_count = 0
        self.queued_bytes = 0
        self.delivered = 0
        self.redelivered = 0
        self.last_position: ReplayId | None = None
        self.caught_up = False
        """Whether the newest message of this stream was a keepalive."""
        self.gaps: list[Gap] = []

    def new_stream(self) -> None:
        """Check the first position that comes."""
        self._fresh = True
        self.caught_up = False

    def taken(self, count: int, size: int) -> None:
        """Count a batch as read by the application."""
        self.queued_count -= count
        self.queued_bytes -= size
        self.delivered += count

    def discarded(self) -> None:
        """Count everything unread as gone."""
        self.queued_count = self.queued_bytes = 0

    @property
    def confirmed(self) -> int:
        """Acked events whose position is safe."""
        return 0 if self._ledger is None else self._ledger.confirmed_events

    @property
    def unacked(self) -> int:
        """Events read by the application and not acked."""
        return 0 if self._ledger is None else self._ledger.unacked - self.queued_count

    @property
    def too_many_unacked(self) -> bool:
        """Whether `Limits.max_unacked` is reached."""
        return self.unacked >= self._limits.max_unacked

    @property
    def full(self) -> bool:
        """Whether no more events should be asked for."""
        return (
            self.queued_count >= self._limits.max_pending_count
            or self.queued_bytes >= self._limits.max_bytes
            or self.too_many_unacked
        )

    @property
    def overfull(self) -> bool:
        """Whether even the stream is too much: what was outstanding has come in as well."""
        return self.queued_bytes >= 2 * self._limits.max_bytes

    def take_in(self, response: Response) -> list[Command]:
        """Deliver the new events of *response* and note every position."""
        keepalive = response.keepalive
        position = response.events[-1].replay_id if response.events else keepalive
        if position is None:
            return []
        out: list[Command] = []
        if self._ledger is not None and self._commits is not None:
            out += self._check_beginning(response, self._ledger, self._commits)
        self.last_position = position
        self.caught_up = keepalive is not None
        if self._resume is not None:
            self._resume.received(position)
        if self._ledger is not None and keepalive is not None:
            self._ledger.add_keepalive(keepalive)
            if self._resume is not None:
                out.append(Wake())
        new = response.events
        if self._ledger is not None:
            new = self._note(new, self._ledger)
            self.redelivered += len(response.events) - len(new)
        if new:
            out.append(self._deliver(new, response.rpc_id))
        return out

    def report(self, gap: Gap) -> ReportGap:
        """Remember *gap* and return the command that tells of it."""
        self.gaps.append(gap)
        return ReportGap(gap)

    def _note(self, events: tuple[RawEvent, ...], ledger: Ledger) -> tuple[RawEvent, ...]:
        # One at a time: an event may stand twice in one response.
        new: list[RawEvent] = []
        for event in events:
            if not ledger.is_known(event):
                ledger.add_event(event, self._next_seq + len(new))
                new.append(event)
        return tuple(new)

    def _deliver(self, events: tuple[RawEvent, ...], rpc_id: str) -> Deliver:
        first_seq = self._next_seq
        self._next_seq += len(events)
        size = sum([len(event.payload) for event in events])
        self.queued_count += len(events)
        self.queued_bytes += size
        return Deliver(events, first_seq, rpc_id, size)

    def _check_beginning(
        self, response: Response, ledger: Ledger, commits: Commits
    ) -> list[Command]:
        # A managed stream may begin right after the last confirmed position, or after one whose
        # commit was sent and not answered. Anywhere else, the service has moved the subscription.
        fresh, self._fresh = self._fresh, False
        if not fresh or not ledger.holds_events:
            return []
        first = response.events[0] if response.events else None
        if ledger.begins_right_after(0, first):
            commits.began_after_receipt()
            return []
        for sent in commits.maybe:
            if ledger.begins_right_after(sent.order, first):
                commits.began_after(sent)
                ledger.confirm(sent.order)
                return [*commits.settle(sent.order)]
        receipt = commits.receipt
        return [
            self.report(
                Gap(
                    "repositioned",
                    self._name,
                    None if receipt is None else receipt.replay_id,
                    response.latest_replay_id if first is None else first.replay_id,
                    rpc_id=response.rpc_id,
                )
            )
        ]
