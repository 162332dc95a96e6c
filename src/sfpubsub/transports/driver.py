"""The driver of a subscription: handles responses, acks and commits.

This driver extends `CallDriver`. The protocol decides how many events to request, when to commit,
where to resume, and how long to wait. The application's thread receives events in batches.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sfpubsub.errors import CommitError, LocalProtocolError
from sfpubsub.protocol.commands import (
    Command,
    Deliver,
    Discard,
    OpenStream,
    ReportGap,
    ReportOutage,
    SendRequest,
    SettleCommit,
    Wake,
)
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.states import State
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.transports.alarm import AlarmClock, Clock
from sfpubsub.transports.base import Call, Headers, Target, Transport
from sfpubsub.transports.calls import CallDriver
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.transports.tickets import PendingCommit, Tickets
from sfpubsub.types import CommitReceipt, Gap, Health, ReplayId, StartPosition

logger = logging.getLogger("sfpubsub.transport")


class StreamDriver(CallDriver[OpenStream]):
    """Runs one `SubscriptionProtocol` over a transport. Thread-safe.

    Args:
        protocol: The protocol to run, owned by this object from now on.
        transport: Opens the calls.
        target: The topic or managed subscription.
        alarm: Timer thread, shared by the subscriptions of a client.
        renew: See `CallDriver`.
        on_gap: Called with every `Gap`, in the thread that detected it; must not block.
        record: For a managed subscription: returns what its record says. Called in a thread of its
            own when a stream begins; may block. None if the record cannot be read.
        clock: Monotonic clock in seconds, the same as the alarm's.
        jitter: Returns uniform random numbers in [0, 1).
    """

    def __init__(
        self,
        protocol: SubscriptionProtocol,
        transport: Transport,
        target: Target,
        *,
        alarm: AlarmClock,
        renew: Callable[[Headers], None],
        on_gap: Callable[[Gap], None],
        record: Callable[[], object] | None = None,
        clock: Clock = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(
            protocol,
            target.name,
            f"the subscription {target.name}",
            alarm=alarm,
            renew=renew,
            clock=clock,
            jitter=jitter,
        )
        self._protocol = protocol
        self._transport = transport
        self._target = target
        self._on_gap = on_gap
        self._record = record
        self._recorded: object = None  # what the record said last
        self._compared = 0  # number of the last stream for which the record was read
        self._comparing = threading.Lock()  # one look at a time
        self.has_begun: bool = False
        """Whether `start` was called."""
        self.is_open: bool = False
        """Whether the service has answered on the current stream."""
        self._tickets = Tickets()
        self._last_taken: Arrival | None = None  # the last response that was counted as read
        self.storable: ReplayId | None = None
        """The newest position up to which everything is acked; None before the first, and for a
        managed subscription."""

    # For the application's threads.

    def start(self, position: StartPosition | None = None) -> None:
        """Open the first stream.

        Args:
            position: Where a subscription to a topic starts; None for the position given to the
                protocol on creation.
        """
        self.has_begun = True
        self._post(lambda now: self._protocol.start(now, position))

    @property
    def has_opened(self) -> bool:
        """Whether a wait for the stream to open is over: it is open, or the subscription ended."""
        return self.is_open or self.over

    def wait_open(self, timeout: float) -> None:
        """Wait until `has_opened` is true, *timeout* seconds at most."""
        self._check_process()
        self._until(lambda: self.has_opened, timeout)

    def peek(self) -> Arrival | None:
        """Return the next response without removing it; None if none is queued. Never blocks."""
        return self._mailbox.peek()

    def accept(self, arrival: Arrival, done: tuple[int, int] | None = None) -> None:
        """Remove *arrival* from the queue, because it is being delivered to the application.

        Until then, `peek` returns it again, so an interrupted caller loses nothing, and may call
        this again for the same arrival.

        Args:
            arrival: The next response.
            done: First and last sequence number of the events to ack in the same call, which is
                cheaper than calling `ack`; None to ack nothing.
        """
        self._post(self._take_out, arrival, done)
        self._mailbox.pop(arrival)

    def _take_out(
        self, arrival: Arrival, done: tuple[int, int] | None, now: float
    ) -> list[Command]:
        if arrival is not self._last_taken and not self._mailbox.discarded:
            self._last_taken = arrival
            batch = arrival.batch
            return self._protocol.taken(len(batch.events), batch.size, now, done=done)
        return [] if done is None else self._protocol.acked(*done, now)

    @property
    def target(self) -> Target:
        """The topic or managed subscription of the streams."""
        return self._target

    @property
    def stopped(self) -> Gap | None:
        """The gap to report when the subscription runs again, because it was stopped.

        None if it was not, or if it runs again.
        """
        return self._protocol.stopped

    @property
    def discarded(self) -> bool:
        """Whether the responses that had not been accepted (see `accept`) were discarded."""
        return self._mailbox.discarded

    def pause(self) -> None:
        """Until `resume` is called, request events only one at a time, to keep the stream open."""
        self._post(self._protocol.pause)

    def resume(self) -> None:
        """Resume requesting events after `pause`."""
        self._post(self._protocol.resume)

    def ack(self, first_seq: int, last_seq: int) -> None:
        """Ack the events from *first_seq* to *last_seq*, inclusive.

        Once the subscription has ended, no commit is sent for them.
        """
        self._post(self._protocol.acked, first_seq, last_seq)

    def report_gap(self, gap: Gap) -> None:
        """Report a gap that the application found; it is logged and passed to `on_gap`."""
        self._do(lambda _now: self._protocol.report_gap(gap))

    def commit(self, timeout: float) -> CommitReceipt:
        """Commit the acked events, and wait for the service's confirmation.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            CommitError: The commit was rejected, or not confirmed within *timeout* seconds.
            LocalProtocolError: The subscription is not managed or is closed, or nothing was acked.
            SfPubSubError: The subscription failed during the wait.
        """
        pending = self.begin_commit()
        if not self._until(lambda: pending.is_done, timeout):
            raise self.unconfirmed(timeout)
        return pending.receipt()

    def begin_commit(self) -> PendingCommit:
        """Start a commit of the acked events; return its outcome, which follows later.

        `changes` changes when the outcome is known. It is a `LocalProtocolError` if the
        subscription is not managed or is closed, or if nothing was acked.
        """
        pending = PendingCommit()

        def ask(now: float) -> list[Command]:
            try:
                ticket, commands = self._protocol.commit(now)
            except LocalProtocolError as error:
                pending.outcome = error
                self._mailbox.wake()
                return []
            self._tickets.add(ticket, pending)
            return commands

        self._do(ask)
        return pending

    def _do(self, happened: Callable[[float], list[Command]]) -> None:
        """Handle an input that has an effect after the end as well, when no thread may be left."""
        if self.over:  # nothing else changes the protocol any more
            for command in happened(self._clock()):
                self._tell(command)
        else:
            self._post(happened)

    def unconfirmed(self, timeout: float) -> CommitError:
        """Return the error for a commit that was not confirmed within *timeout* seconds."""
        health = self.health()
        reason = health.reason or f"the subscription is {health.state}"
        return CommitError(
            f"the commit on {self._target.name} was not confirmed within {timeout:g} s: {reason}"
        )

    def drain(self) -> None:
        """Drain the subscription and wait until it has ended.

        Raises:
            SfPubSubError: The error that ended the subscription, such as a failed final commit.
        """
        self.begin_drain()
        # Bounded by the protocol, whose deadlines end a drain.
        self._until(lambda: self.over, None)
        self.raise_failure()

    def begin_drain(self) -> None:
        """Start draining the subscription; `over` becomes true once it has ended."""
        self._post(self._protocol.drain)

    def health(self) -> Health:
        """Return a snapshot of the subscription's health."""
        health, since = self._snapshot(lambda: (self._protocol.health(), self._protocol.down_since))
        # A batch that was just handed out may not be counted as read yet.
        count, size = self._mailbox.pending
        down_for = None if since is None else max(0.0, self._clock() - since)
        return replace(health, pending_count=count, pending_bytes=size, down_for=down_for)

    # Event handling.

    def _handled(self) -> None:
        is_open = self._protocol.state is State.STREAMING
        if is_open is not self.is_open:
            self.is_open = is_open
            self._mailbox.wake()
        if not self._target.managed and (position := self._protocol.storable()) is not None:
            self.storable = position
            self._mailbox.wake()  # whoever waits for a batch stores it

    def _open_call(self, opening: OpenStream) -> Call[Any, Any]:
        return self._transport.open_stream(self._target, opening)

    def _carry_out(self, command: Command) -> bool:
        if isinstance(command, Deliver):
            self._mailbox.put(Arrival(command, time.time()))
        elif isinstance(command, SendRequest):
            if self._call is not None:
                self._call.send(command)
        elif isinstance(command, Discard):
            self._mailbox.discard()
        elif isinstance(command, Wake):
            self._mailbox.wake()
        else:
            return self._steer(command)
        return True

    def _tell(self, command: Command) -> None:
        if isinstance(command, ReportGap):
            logger.log(logging.INFO if command.is_raised else logging.WARNING, "%s", command.gap)
            try:
                self._on_gap(command.gap)
            except Exception:  # raised by the application; must not end the stream's thread
                logger.exception("the on_gap callback of %s raised an error", self._target.name)
        elif isinstance(command, ReportOutage):
            logger.log(logging.WARNING if command.is_warning else logging.INFO, "%s", command.text)
        elif isinstance(command, SettleCommit):
            self._tickets.settle(command)
            self._mailbox.wake()

    def _compare(self, after: ReplayId | None, before: ReplayId) -> None:
        """Report a gap if the record has changed since an earlier stream began.

        The subscription may then have been stopped and started, which deletes its position.
        """
        with self._comparing:
            record = self._record
            if record is None:
                return
            try:
                found = record()
            except Exception as error:  # noqa: BLE001  # must not end the subscription
                if not getattr(error, "retryable", False):
                    self._record = None  # a user without the right to read it never gets it
                logger.info("the record of %s could not be read: %s", self._target.name, error)
                return
            known, self._recorded = self._recorded, found
        if known is None or known == found:
            return
        logger.info("the record of %s was %s, and is %s", self._target.name, known, found)
        gap = Gap("repositioned", self._target.name, after, before)
        self._apply(lambda _now: self._protocol.report_gap(gap))

    def _received(self, stream: int, response: Response) -> None:
        self._apply(self._protocol.response, stream, response)
        begun = response.position
        if self._record is not None and stream != self._compared and begun is not None:
            self._compared = stream
            after = self._protocol.health().committed
            self._spawn("record", lambda: self._compare(after, begun))
