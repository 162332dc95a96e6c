"""One subscription, plain or managed: every decision, and nothing that waits.

`SubscriptionProtocol` puts the parts together. `states` says what may happen, `streams` how one
call follows another, `intake` what is new, `appetite` how much there is room for, `ledger` what is
done, `outgoing` what to request, `resume` (plain) where to continue, `standing` (managed) what to
commit, and `retries` and `alarms` when. Each input takes ``now`` in seconds of any steady clock and
answers with the commands to carry out in order; afterwards `deadline` says when `timer` has to be
called. Inputs of a stream that is no longer the current one are ignored. Not thread-safe: the
driver serialises all calls.
"""

from __future__ import annotations

from collections.abc import Callable

from sfpubsub.errors import LocalProtocolError, StreamStalledError
from sfpubsub.protocol.alarms import Due
from sfpubsub.protocol.commands import CancelStream, Command, Discard, HalfClose
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.standing import Standing
from sfpubsub.protocol.states import ALIVE, Signal, State
from sfpubsub.protocol.streams import Streams
from sfpubsub.types import Health, ReplayId

_NEVER = float("inf")


class SubscriptionProtocol(Streams):
    """The protocol of one subscription. See `streams.Streams` for its arguments."""

    # The application speaks.

    def taken(
        self, count: int, size: int, now: float, *, done: tuple[int, int] | None = None
    ) -> list[Command]:
        """Count a delivered batch of *count* events and *size* bytes as read.

        Args:
            count: Events in the batch.
            size: Bytes of their payloads.
            now: The time.
            done: The first and the last event of a run that is acked at the same time.
        """
        self._intake.taken(count, size)
        if done is not None:
            self._note_acked(*done, now)
        if self._alarms.full_since is None and self._too_many_unacked:
            self._alarms.full_since = now
        return self._after_acks(now)

    def acked(self, first_seq: int, last_seq: int, now: float) -> list[Command]:
        """Ack a range of events. Unknown and repeated ones are ignored."""
        self._note_acked(first_seq, last_seq, now)
        return self._after_acks(now)

    def _note_acked(self, first_seq: int, last_seq: int, now: float) -> None:
        if self._ledger.ack(first_seq, last_seq):
            self._alarms.full_since = now if self._too_many_unacked else None

    def _after_acks(self, now: float) -> list[Command]:
        if self.state is State.DRAINING:
            return self._drain_on(now)
        return self._request_or_reopen(now)

    def commit(self, now: float) -> tuple[int, list[Command]]:
        """Request a commit of everything acked so far.

        Returns:
            A ticket, which will be settled by one `SettleCommit`, and the commands.

        Raises:
            LocalProtocolError: There is nothing to commit, or the subscription is plain or closed.
        """
        if self._standing is None:
            raise LocalProtocolError(
                f"{self.name} is a plain subscription: the service keeps no position for it"
            )
        if self.state is State.CLOSED:
            raise LocalProtocolError(f"the subscription {self.name} is closed")
        ticket, settled = self._standing.ask()
        return ticket, [*settled, *self._request(now, again=not settled)]

    def pause(self, now: float) -> list[Command]:
        """Stop requesting events. The stream stays open, and commits continue."""
        self._held = True
        return self._request_or_reopen(now)

    def resume(self, now: float) -> list[Command]:
        """Start requesting events again."""
        self._held = False
        return self._request_or_reopen(now)

    def storable(self) -> ReplayId | None:
        """Return the newest position up to which everything is acked, if it is new; else None.

        For plain subscriptions with a store.
        """
        newest = self._ledger.newest_done
        if self.managed or newest is None:
            return None
        self._ledger.confirm(newest.order)
        return newest.replay_id

    def drain(self, now: float) -> list[Command]:
        """Shut down cleanly: take no more events, commit everything acked, and half-close."""
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
        """End at once. Uncommitted events will be redelivered."""
        if self.state is State.CLOSED:
            return []
        cancel = self._cancel()
        self._step(Signal.ABORT)
        self._intake.discarded()
        return [*cancel, Discard(), *self._finished(None)]

    # The stream speaks.

    def response(self, stream: int, response: Response, now: float) -> list[Command]:
        """Handle one message of a stream."""
        if stream != self._stream or self.state not in ALIVE:
            return []
        if self.state is State.OPENING:
            self._retries.responded()
        self._step(Signal.RESPONSE)
        self._alarms.heard_at = now
        self._responses += 1
        self._outgoing.received(response, now)
        standing = self._standing
        out = [] if standing is None else self._settled(standing, response, now)
        if self.state is State.DRAINING:
            self._intake.recognise(response)
            return out + self._drain_on(now)
        if self.state is not State.STREAMING:
            return out
        out += self._intake.take_in(response)
        if standing is not None and standing.exhausted is not None:
            return out + self._fail(standing.exhausted)
        overfull = self._appetite.overfull
        # First, so that the service works on it while the application works on the events.
        out = self._request(now, at_once=overfull) + out
        return out + self._leave_when_overfull() if overfull else out

    # Time speaks.

    def deadline(self) -> float | None:
        """Return when `timer` must be called, or None. Calling it earlier has no effect."""
        at = self._alarms.earliest(self.state)
        return None if at == _NEVER else at

    def timer(self, now: float, jitter: float) -> list[Command]:
        """Handle one due timer; `deadline` tells whether there is another.

        Args:
            now: The time.
            jitter: A uniform random number in [0, 1).
        """
        for at, due in self._alarms.due(self.state):
            if now >= at:
                return _ACTIONS[due](self, now, jitter)
        return []

    def _send_reserve(self, now: float, _jitter: float) -> list[Command]:
        return self._outgoing.reserve(now)

    def _commit_due(self, now: float, _jitter: float) -> list[Command]:
        assert self._standing is not None  # noqa: S101  # commits are due only where there are any
        self._standing.check_timeout(now)
        if self._standing.exhausted is not None:
            return self._fail(self._standing.exhausted)
        return self._request(now)

    def _never_acked(self, _now: float, _jitter: float) -> list[Command]:
        return self._fail(
            StreamStalledError(
                f"{self._intake.unacked} events of {self.name} are unacked, and none was acked "
                f"for {self._timings.unacked_stall:g} s: ack events, or raise max_unacked"
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
        # More than was asked for: the application keeps taking events and acks none.
        return self._intake.unacked > self._limits.max_unacked

    def _leave_when_overfull(self) -> list[Command]:
        standing = self._standing
        if not self._outgoing.window.outstanding:
            return []
        if standing is not None and standing.unanswered:
            return []  # what is acked would come again
        self._paused = f"{self._appetite.waiting_bytes} bytes wait to be read"
        self._step(Signal.OVERFULL)
        if standing is not None:
            standing.dropped()
        return [CancelStream(self._stream)]

    def _request_or_reopen(self, now: float) -> list[Command]:
        if self.state is State.PAUSED and not self._appetite.full:
            self._step(Signal.ROOM)
            return [self._open(now)]
        return self._request(now)

    def _request(self, now: float, *, again: bool = False, at_once: bool = False) -> list[Command]:
        if self.state is not State.STREAMING:
            return []
        commit = None
        if self._standing is not None:
            commit = self._standing.next_commit(now, again=again, at_once=at_once)
        if commit is None and self._outgoing.window.ample:
            return []
        return self._outgoing.request(now, commit, self._room, self._intake.room_when_read)

    def _settled(self, standing: Standing, response: Response, now: float) -> list[Command]:
        out: list[Command] = []
        if response.commit is not None:
            out += standing.answered(response.commit, now)
        if standing.is_fresh and self.state in {State.STREAMING, State.DRAINING}:
            settled, gap = standing.began(response, self._intake.last_position)
            out += settled
            if gap is not None:
                out.append(self._report(gap))
        return out

    # The orderly end.

    def _drain_on(self, now: float, *, again: bool = False) -> list[Command]:
        if self._standing is not None:
            commit = self._standing.last_commit(now, again=again)
            if commit is not None or self._standing.unanswered or self._redelivering:
                return self._outgoing.request(now, commit, self._room, self._room)
        self._step(Signal.SETTLED)
        return self._half_close(now)

    def _half_close(self, now: float) -> list[Command]:
        self._alarms.close_by = now + self._timings.close_timeout
        return [HalfClose(self._stream)]

    def _reason(self) -> str | None:
        failure = self._retries.reason
        if failure is not None and self.state is State.OPENING:
            return f"opening again after: {failure}"
        held = self._held and self.state is not State.CLOSED
        return self._paused or failure or ("paused by the application" if held else None)

    def health(self) -> Health:
        """Return a snapshot."""
        intake = self._intake
        receipt = None if self._standing is None else self._standing.receipt
        return Health(
            state=self.state.value,
            reason=self._reason(),
            outstanding=self._outgoing.window.outstanding if self.state in ALIVE else 0,
            pending_count=self._appetite.waiting_count,
            pending_bytes=self._appetite.waiting_bytes,
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
        )


_ACTIONS: dict[Due, Callable[[SubscriptionProtocol, float, float], list[Command]]] = {
    Due.GIVE_UP: SubscriptionProtocol._give_up,
    Due.REOPEN: SubscriptionProtocol._reopen,
    Due.STEADY: SubscriptionProtocol._steady,
    Due.SILENT: SubscriptionProtocol._stalled,
    Due.RESERVE: SubscriptionProtocol._send_reserve,
    Due.COMMIT: SubscriptionProtocol._commit_due,
    Due.NEVER_ACKED: SubscriptionProtocol._never_acked,
    Due.CLOSE: SubscriptionProtocol._close_due,
}
