"""The sequence of streams of a subscription: how they open, end and are replaced.

`Streams` opens a call, interprets how it ended, and either opens the next one or ends the
subscription with an error. `Retries` decides when the next stream opens, and `Resume` where it
starts for a plain subscription. The subclass `subscription.SubscriptionProtocol` decides what is
requested and delivered while a stream is open.
"""

from __future__ import annotations

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import (
    CommitError,
    ReplayIdRejectedError,
    SfPubSubError,
    StreamStalledError,
    StreamUnavailableError,
)
from sfpubsub.protocol.alarms import Alarms
from sfpubsub.protocol.commands import (
    CancelStream,
    Command,
    Discard,
    Finish,
    OpenStream,
    RenewSession,
    ReportGap,
)
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.intake import Intake
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.managed_position import ManagedPosition
from sfpubsub.protocol.outage import Outage
from sfpubsub.protocol.outgoing import Outgoing
from sfpubsub.protocol.receive_limits import ReceiveLimits
from sfpubsub.protocol.resume import Resume
from sfpubsub.protocol.retries import Retries, Verdict
from sfpubsub.protocol.states import ALIVE, Signal, State, step
from sfpubsub.types import Gap, StartPosition


class Streams:
    """The streams of one subscription. Not thread-safe; the driver serialises all calls.

    Args:
        name: The topic, or the managed subscription's name or id.
        start: Where a plain subscription starts; None for a managed one.
        fallback: Where a plain subscription continues if its position is rejected; None to end it.
        tracked: Whether acks of a plain subscription are tracked, because its position is stored.
            Acks of a managed subscription are always tracked.
        limits: Memory limits.
        timings: Intervals, delays and timeouts; see `Timings`.
        connection_timeout: How long transport failures may last, in seconds; None means forever.
        stopped: For a managed subscription; see `ManagedPosition`.
    """

    def __init__(
        self,
        name: str,
        *,
        start: StartPosition | None = None,
        fallback: StartPosition | None = None,
        tracked: bool = True,
        limits: Limits | None = None,
        timings: Timings | None = None,
        connection_timeout: float | None = None,
        stopped: Gap | None = None,
    ) -> None:
        self.name = name
        self.managed: bool = start is None
        self.state: State = State.NEW
        self._timings = timings or Timings()
        self._ledger = Ledger()
        self._outgoing = Outgoing()
        self._resume = None if start is None else Resume(name, start, fallback)
        self._managed = (
            ManagedPosition(name, self._ledger, self._timings, stopped) if start is None else None
        )
        self._retries = Retries(name, self._timings, connection_timeout)
        self._outage = Outage(name)
        self._limits = limits or Limits()
        self._receive_limits = ReceiveLimits(self._limits)
        ledger = self._ledger if tracked or self.managed else None
        self._intake = Intake(self._receive_limits, ledger, self._resume)
        self._alarms = Alarms(
            self._timings, self._outgoing, self._retries, self._outage, self._managed
        )
        self._stream = 0
        self._held = False  # paused by the application
        self._paused: str | None = None  # why the stream was closed
        self._responses = 0
        self._gaps: list[Gap] = []

    def start(self, now: float, position: StartPosition | None = None) -> list[Command]:
        """Open the first stream.

        Args:
            now: The current time, in seconds.
            position: Where a plain subscription starts; by default, at the position given on
                construction.

        Raises:
            LocalProtocolError: The subscription was already started, or has ended.
        """
        self._step(Signal.START)
        if position is not None and self._resume is not None:
            self._resume.begin_at(position)
        return [self._open(now)]

    def ended(
        self, stream: int, failure: Failure | None, now: float, jitter: float
    ) -> list[Command]:
        """Handle the end of a stream: schedule the next one, or end the subscription.

        Args:
            stream: Number of the stream.
            failure: The reason; None if the service ended the stream with status OK.
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
        """
        if stream != self._stream or self.state not in ALIVE:
            return []
        if self.state in {State.DRAINING, State.CLOSING}:
            return self._ended()
        begun = self._may_have_begun(failure, now)
        if self.state is State.OPENING:
            # Its first response may have been too large, if events have become much larger.
            self._receive_limits.forget_size()
        if failure is None:
            error = StreamUnavailableError(f"the service ended the stream of {self.name}")
            return self._apply_verdict(self._retries.broken(error, now, jitter), now, begun=begun)
        if failure.kind is FailureKind.POSITION_REJECTED and self._resume is not None:
            return self._rejected(self._resume, failure.error, now, jitter)
        since = self._alarms.heard_at if failure.is_unheard else now
        verdict = self._retries.judge(failure, now, jitter)
        return self._apply_verdict(verdict, now, begun=begun, since=since)

    def session_renewed(self, now: float) -> list[Command]:
        """Open the next stream with the new session, after any remaining retry delay."""
        if self.state not in {State.RENEWING, State.SAVING}:
            return []
        self._retries.renewed()
        if self.state is State.RENEWING and now < self._alarms.reopen_at:
            self._step(Signal.POSTPONED)
            return []
        self._step(Signal.RENEWED)
        return [self._open(now)]

    def renewal_failed(self, failure: Failure, now: float, jitter: float) -> list[Command]:
        """Handle a failure to obtain a new session: retry later, or end the subscription."""
        if self.state not in {State.RENEWING, State.SAVING}:
            return []
        verdict = self._retries.unrenewed(failure, now, jitter)
        if verdict.error is None and self.state is State.SAVING:
            return self._ended()
        return self._apply_verdict(verdict, now)

    def crashed(self, error: SfPubSubError) -> list[Command]:
        """End the subscription with *error*, an internal failure of the driver."""
        return [] if self.state is State.CLOSED else self._fail(error)

    # Timers.

    def _give_up(self, _now: float, _jitter: float) -> list[Command]:
        return self._fail(self._retries.given_up())

    def _reopen(self, now: float, _jitter: float) -> list[Command]:
        self._step(Signal.DUE)
        return [self._open(now)]

    def _steady(self, _now: float, _jitter: float) -> list[Command]:
        self._retries.recovered()
        return [*self._outage.over(self._alarms.heard_at)]

    def _remind(self, now: float, _jitter: float) -> list[Command]:
        return [*self._outage.remind(now)]

    def _stalled(self, now: float, jitter: float) -> list[Command]:
        silence = now - self._alarms.heard_at
        error = StreamStalledError(f"no message on {self.name} for {silence:.0f} s")
        verdict = self._retries.stalled(error, now, jitter)
        return [*self._cancel(), *self._apply_verdict(verdict, now, begun=True)]

    # Opening, replacing and ending streams.

    def _step(self, signal: Signal) -> State:
        self.state = step(self.state, signal)
        return self.state

    def _open(self, now: float) -> OpenStream:
        self._stream += 1
        self._paused = None
        self._alarms.heard_at = now
        self._intake.new_stream()
        self._ledger.new_stream()
        if self._managed is not None:
            self._managed.new_stream(self._stream, now)
        num_requested = self._outgoing.open(self._stream, now, self._room)
        start = None if self._resume is None else self._resume.position
        return OpenStream(self._stream, num_requested, start)

    def _apply_verdict(
        self, verdict: Verdict, now: float, *, begun: bool = False, since: float | None = None
    ) -> list[Command]:
        """Carry out a verdict.

        Args:
            verdict: The verdict.
            now: The current time, in seconds.
            begun: Whether a stream has ended that the service may have accepted.
            since: When the outage began, if this is its first failure; *now* by default.
        """
        if verdict.error is not None:
            return self._fail(verdict.error)
        self._step(verdict.signal)
        self._alarms.reopen_at = verdict.reopen_at
        out: list[Command] = []
        if begun and self._managed is not None:
            self._managed.dropped()
        if begun and self._resume is not None and (gap := self._resume.dropped()) is not None:
            out.append(self._report(gap))
        is_held = verdict.signal is Signal.BUSY
        reason = str(self._retries.reason)
        out += self._outage.failed(reason, now, since=since, is_held=is_held)
        return [*out, RenewSession()] if self.state is State.RENEWING else out

    def _may_have_begun(self, failure: Failure | None, now: float) -> bool:
        """Return whether the service may have accepted the stream that has ended."""
        if failure is None or self.state is not State.OPENING:
            return True
        # A rejection arrives early; a later failure ends an idle stream that had begun.
        soon = now < self._alarms.heard_at + self._timings.steady
        expired = failure.kind is FailureKind.REAUTHENTICATE and soon
        return not (failure.is_unheard or expired or failure.kind is FailureKind.SLOT_HELD)

    def _rejected(
        self, resume: Resume, error: SfPubSubError, now: float, jitter: float
    ) -> list[Command]:
        gap, go_on = resume.rejected(error.error_code, error.rpc_id)
        report = self._report(gap, is_raised=not go_on)
        if go_on:
            return [report, *self._apply_verdict(self._retries.moved(error, now, jitter), now)]
        rejected = ReplayIdRejectedError(
            f"{error}; to continue without the lost events, start at latest or earliest",
            gap=gap,
            error_code=error.error_code,
            rpc_id=error.rpc_id,
        )
        rejected.__cause__ = error
        return [report, *self._fail(rejected)]

    def _cancel(self) -> list[Command]:
        return [CancelStream(self._stream)] if self.state in ALIVE else []

    def _fail(self, error: SfPubSubError) -> list[Command]:
        out = self._cancel()
        self._step(Signal.FATAL)
        if self.managed:
            # Pending events can no longer be committed, so the service will redeliver them.
            self._intake.discarded()
            out.append(Discard())
        return out + self._finished(error)

    def _finished(self, error: SfPubSubError | None) -> list[Command]:
        self._retries.reason = None if error is None else str(error)
        self._outage.reset()
        self._paused, self._held = None, False
        closed = error or CommitError(
            f"the subscription {self.name} was closed before the commit was answered"
        )
        settled = [] if self._managed is None else self._managed.settle_all(closed)
        return [*settled, Finish(error)]

    def _report(self, gap: Gap, *, is_raised: bool = False) -> ReportGap:
        self._gaps.append(gap)
        return ReportGap(gap, is_raised)

    @property
    def _room(self) -> int:
        is_shut = self._held or self.state is State.DRAINING
        return max(0 if is_shut else self._intake.room, self._awaited)

    @property
    def _room_when_read(self) -> int:
        return self._room if self._awaited else self._intake.room_when_read

    @property
    def _awaited(self) -> int:
        # Acked events are redelivered first, and can be committed once this stream has sent them.
        # They take no memory, so they are requested even if there is no room for new events.
        return self._ledger.awaited if self.managed and self._intake.redelivering else 0

    def _ended(self) -> list[Command]:
        self._step(Signal.ENDED)
        return self._finished(self._uncommitted())

    def _uncommitted(self) -> CommitError | None:
        return None if self._managed is None else self._managed.uncommitted()
