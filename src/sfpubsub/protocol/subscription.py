"""The protocol of one subscription, plain or managed: makes every decision, and never blocks.

`SubscriptionProtocol` combines the other modules: `states` defines the transitions, `streams` opens
and replaces calls, `intake` finds the new events, `receive_limits` computes the room for more,
`ledger` tracks acks, and `outgoing` decides which requests to send. `resume` tracks the position of
a plain subscription, and `managed_position` that of a managed one. `retries` and `alarms` decide
when to act.

Each input is a method call with the current time in seconds of any monotonic clock, and returns
commands to carry out in order. After each input, `deadline` returns when `timer` must be called.
Inputs from a stream other than the current one are ignored. Not thread-safe: the driver serialises
all calls.
"""

from __future__ import annotations

from collections.abc import Callable

from sfpubsub.errors import LocalProtocolError, StreamStalledError
from sfpubsub.protocol.alarms import Due
from sfpubsub.protocol.commands import CancelStream, Command, Discard, HalfClose
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.managed_position import ManagedPosition
from sfpubsub.protocol.states import ALIVE, Signal, State
from sfpubsub.protocol.streams import Streams
from sfpubsub.types import Gap, Health, ReplayId

_NEVER = float("inf")


class SubscriptionProtocol(Streams):
    """The protocol of one subscription. See `streams.Streams` for its arguments."""

    # Inputs from the application.

    def taken(
        self, count: int, size: int, now: float, *, done: tuple[int, int] | None = None
    ) -> list[Command]:
        """Count a delivered batch as read by the application.

        Args:
            count: Number of events in the batch.
            size: Payload bytes of these events.
            now: The current time, in seconds.
            done: First and last ``delivery_seq`` of earlier events to ack in the same step;
                None to ack nothing.
        """
        self._intake.taken(count, size)
        if done is not None:
            self._note_acked(*done, now)
        if self._alarms.full_since is None and self._too_many_unacked:
            self._alarms.full_since = now
        return self._after_acks(now)

    def acked(self, first_seq: int, last_seq: int, now: float) -> list[Command]:
        """Ack a range of events; events that are unknown or already acked are ignored."""
        self._note_acked(first_seq, last_seq, now)
        return self._after_acks(now)

    def _note_acked(self, first_seq: int, last_seq: int, now: float) -> None:
        before = self._ledger.open_events
        if self._ledger.ack(first_seq, last_seq) and self._ledger.open_events < before:
            self._alarms.full_since = now if self._too_many_unacked else None

    def _after_acks(self, now: float) -> list[Command]:
        if self.state is State.DRAINING:
            return self._drain_on(now)
        return self._request_or_reopen(now)

    def commit(self, now: float) -> tuple[int, list[Command]]:
        """Request a commit of everything acked so far.

        Returns:
            A ticket, and the commands. A `SettleCommit`, among these or later, settles the ticket.

        Raises:
            LocalProtocolError: There is nothing to commit, or the subscription is plain or closed.
        """
        if self._managed is None:
            raise LocalProtocolError(
                f"{self.name} is a plain subscription, for which the service stores no position: "
                f"commit is only for managed subscriptions"
            )
        if self.state is State.CLOSED:
            raise LocalProtocolError(
                f"the subscription {self.name} is closed: create a new subscription"
            )
        ticket, settled = self._managed.ask()
        return ticket, [*settled, *self._request(now, again=not settled)]

    def pause(self, now: float) -> list[Command]:
        """Stop requesting events, except for single ones that keep the stream open.

        Commits continue.
        """
        self._held = True
        return self._request_or_reopen(now)

    def resume(self, now: float) -> list[Command]:
        """Start requesting events again."""
        self._held = False
        return self._request_or_reopen(now)

    def report_gap(self, gap: Gap) -> list[Command]:
        """Report a gap that the application found, like those that this protocol finds."""
        return [self._report(gap)]

    def storable(self) -> ReplayId | None:
        """Return the newest position up to which everything is acked, for the replay store.

        The events up to it are then counted as stored.

        Returns:
            The position; None if it has not changed since the last call, or if the subscription is
            managed.
        """
        newest = self._ledger.newest_done
        if self.managed or newest is None:
            return None
        self._ledger.confirm(newest.order)
        return newest.replay_id

    def drain(self, now: float) -> list[Command]:
        """Shut down cleanly: drop all unread events, commit everything acked, and half-close."""
        if self.state in {State.SAVING, State.DRAINING, State.CLOSING, State.CLOSED}:
            return []
        had_stream = self.state in ALIVE
        unsaved = self.state is not State.STREAMING and self._uncommitted() is not None
        state = self._step(Signal.SAVE if unsaved else Signal.DRAIN)
        self._intake.discarded()
        self._alarms.close_by = now + self._timings.drain_timeout
        if state is State.CLOSED:
            return [Discard(), *self._finished(None)]
        if state is State.CLOSING:
            return [Discard(), *self._half_close(now)]
        if state is State.SAVING:
            return [Discard()]
        return [Discard(), *(self._drain_on(now, again=True) if had_stream else [self._open(now)])]

    def abort(self) -> list[Command]:
        """End immediately; uncommitted events will be redelivered."""
        if self.state is State.CLOSED:
            return []
        cancel = self._cancel()
        self._step(Signal.ABORT)
        self._intake.discarded()
        return [*cancel, Discard(), *self._finished(None)]

    # Inputs from the stream.

    def response(self, stream: int, response: Response, now: float) -> list[Command]:
        """Handle one message of a stream."""
        if stream != self._stream or self.state not in ALIVE:
            return []
        reports: list[Command] = []
        if self.state is State.OPENING:
            self._retries.responded()
            reports += self._outage.over(now)
        self._step(Signal.RESPONSE)
        self._alarms.heard_at = now
        self._responses += 1
        self._outgoing.received(response, now)
        managed = self._managed
        out = reports if managed is None else reports + self._settled(managed, response, now)
        if self.state is State.DRAINING:
            self._intake.recognise(response)
            return out + self._drain_on(now)
        if self.state is not State.STREAMING:
            return out
        out += self._intake.take_in(response)
        if managed is not None and managed.exhausted is not None:
            return out + self._fail(managed.exhausted)
        overfull = self._receive_limits.overfull
        # The request comes first, so that the service prepares the next events while the
        # application handles these.
        out = self._request(now, at_once=overfull) + out
        return out + self._leave_when_overfull() if overfull else out

    # Inputs from the timer.

    def deadline(self) -> float | None:
        """Return when `timer` must be called; None if no timer runs.

        Calling `timer` earlier has no effect.
        """
        at = self._alarms.earliest(self.state)
        return None if at == _NEVER else at

    def timer(self, now: float, jitter: float) -> list[Command]:
        """Handle the first timer that is due; call `deadline` again for the next one.

        Args:
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
        """
        for at, due in self._alarms.due(self.state):
            if now >= at:
                return _ACTIONS[due](self, now, jitter)
        return []

    def _send_reserve(self, now: float, _jitter: float) -> list[Command]:
        return self._outgoing.reserve(now)

    def _commit_due(self, now: float, _jitter: float) -> list[Command]:
        assert self._managed is not None  # noqa: S101  # a plain subscription has no commits
        self._managed.check_timeout(now)
        if self._managed.exhausted is not None:
            return self._fail(self._managed.exhausted)
        return self._request(now)

    def _never_acked(self, _now: float, _jitter: float) -> list[Command]:
        return self._fail(
            StreamStalledError(
                f"{self._intake.unacked} of the last {self._intake.stuck} events of {self.name} "
                f"are unacked, and the oldest was not acked for {self._timings.unacked_stall:g} s: "
                f"ack events, or raise max_unacked"
            )
        )

    def _close_due(self, now: float, _jitter: float) -> list[Command]:
        if self.state is State.DRAINING:
            self._step(Signal.SETTLED)
            return self._half_close(now)
        return [*self._cancel(), *self._ended()]

    # Credit and commits.

    @property
    def _too_many_unacked(self) -> bool:
        # Above the limit, request only single events to keep the stream open (`Window.reserve`):
        # the application reads events but does not ack them. Events that only wait for a commit do
        # not count here: `Timings.commit_budget` limits that wait.
        return self._intake.stuck > self._limits.max_unacked

    def _leave_when_overfull(self) -> list[Command]:
        managed = self._managed
        if not self._outgoing.window.outstanding:
            return []
        if managed is not None and managed.unanswered:
            return []  # wait: without this commit, acked events would be redelivered
        self._paused = f"{self._receive_limits.waiting_bytes} bytes are waiting to be read"
        self._step(Signal.OVERFULL)
        if managed is not None:
            managed.dropped()
        return [CancelStream(self._stream)]

    def _request_or_reopen(self, now: float) -> list[Command]:
        if self.state is State.PAUSED and not self._receive_limits.full:
            self._step(Signal.ROOM)
            return [self._open(now)]
        return self._request(now)

    def _request(self, now: float, *, again: bool = False, at_once: bool = False) -> list[Command]:
        if self.state is not State.STREAMING:
            return []
        commit = None
        if self._managed is not None:
            commit = self._managed.next_commit(now, again=again, at_once=at_once)
        if commit is None and self._outgoing.window.ample:
            return []
        return self._outgoing.request(now, commit, self._room, self._room_when_read)

    def _settled(self, managed: ManagedPosition, response: Response, now: float) -> list[Command]:
        out: list[Command] = []
        if response.commit is not None:
            out += managed.answered(response.commit, now)
            expired = managed.expired()
            if expired is not None:
                out.append(self._report(expired))
        if managed.is_fresh and self.state in {State.STREAMING, State.DRAINING}:
            settled, gap = managed.began(response, self._intake.last_position)
            out += settled
            if gap is not None:
                out.append(self._report(gap))
        return out

    # Draining, and the health snapshot.

    def _drain_on(self, now: float, *, again: bool = False) -> list[Command]:
        if self._managed is not None:
            commit = self._managed.last_commit(now, again=again)
            if commit is not None or self._managed.unanswered or self._awaited:
                return self._outgoing.request(now, commit, self._room, self._room)
        self._step(Signal.SETTLED)
        return self._half_close(now)

    def _half_close(self, now: float) -> list[Command]:
        self._alarms.close_by = now + self._timings.close_timeout
        return [HalfClose(self._stream)]

    def _reason(self) -> str | None:
        failure = self._retries.reason
        if failure is not None and self.state is State.OPENING:
            return f"reconnecting after: {failure}"
        held = self._held and self.state is not State.CLOSED
        return self._paused or failure or ("paused by the application" if held else None)

    @property
    def stopped(self) -> Gap | None:
        """See `ManagedPosition.stopped`; None for a plain subscription."""
        return None if self._managed is None else self._managed.stopped

    @property
    def down_since(self) -> float | None:
        """When the current outage began; None if there is none."""
        return self._outage.since

    def health(self) -> Health:
        """Return a snapshot of the subscription's health."""
        intake = self._intake
        receipt = None if self._managed is None else self._managed.receipt
        return Health(
            state=self.state.value,
            reason=self._reason(),
            outstanding=self._outgoing.window.outstanding if self.state in ALIVE else 0,
            pending_count=self._receive_limits.waiting_count,
            pending_bytes=self._receive_limits.waiting_bytes,
            unacked=intake.unacked,
            delivered=intake.delivered,
            redelivered=intake.redelivered,
            reconnects=max(0, self._stream - 1),
            last_position=intake.last_position,
            committed=None if receipt is None else receipt.replay_id,
            gaps=tuple(self._gaps),
            confirmed=intake.confirmed,
            caught_up=intake.caught_up,
            responses=self._responses,
            process_time=None if receipt is None else receipt.process_time,
            has_committed=self._managed is not None and self._managed.has_committed,
        )


_ACTIONS: dict[Due, Callable[[SubscriptionProtocol, float, float], list[Command]]] = {
    Due.GIVE_UP: SubscriptionProtocol._give_up,
    Due.REOPEN: SubscriptionProtocol._reopen,
    Due.STEADY: SubscriptionProtocol._steady,
    Due.REPORT: SubscriptionProtocol._remind,
    Due.SILENT: SubscriptionProtocol._stalled,
    Due.RESERVE: SubscriptionProtocol._send_reserve,
    Due.COMMIT: SubscriptionProtocol._commit_due,
    Due.NEVER_ACKED: SubscriptionProtocol._never_acked,
    Due.CLOSE: SubscriptionProtocol._close_due,
}
