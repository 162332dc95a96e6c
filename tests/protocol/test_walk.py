"""Random walks of the protocol against a model of the service, with checks after each step.

The service delivers events, responds to commits late, together, with errors or not at all, and
redelivers after a reconnect; calls fail with or without their requests being executed. The
application acks in any order, crashes and drains. Besides the assertions of the model, these rules
are checked:

- Events are delivered in order, none twice and none skipped, unless a gap is reported.
- No position is committed or stored before all events delivered up to it are acked.
- A subscription that waits for something has a deadline, and its timer does not stay due.
- If a managed subscription that starts at LATEST loses events before its first commit, it
  reports a gap.
- Rejected commits never end a subscription, since they are temporary here.
- Every caller of commit() is settled exactly once.
- The number of positions that are kept stays near `max_unacked`.
- The total size of waiting and requested events stays near the byte limit.

The seed is printed if a walk fails; the environment variable ``SFPUBSUB_WALK_SEED`` sets another
one.
"""

from __future__ import annotations

import bisect
import os
import random
from collections import Counter

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import (
    CommitError,
    ReplayIdRejectedError,
    SessionExpiredError,
    StreamUnavailableError,
    SubscriptionBusyError,
)
from sfpubsub.protocol.commands import (
    CancelStream,
    Command,
    Deliver,
    Discard,
    Finish,
    HalfClose,
    OpenStream,
    RenewSession,
    ReportGap,
    SendRequest,
    SettleCommit,
)
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.types import ReplayId, StartPosition
from tests.protocol.scripted import NAME, commits_of
from tests.protocol.service import Service, position

SEED = int(os.environ.get("SFPUBSUB_WALK_SEED", "20260801"))

# States that only an outside event ends: the application reads, or a sign-in finishes.
WITHOUT_ALARM = {State.PAUSED, State.RENEWING, State.CLOSED}


class Walk:
    """A random walk of one application, which may crash and restart, against one service.

    Args:
        seed: Seed of all random decisions.
        kind: Kind of subscription: ``managed``, ``managed-latest`` (with the defaultReplay LATEST),
            ``stored`` (plain, with stored positions), ``plain`` or ``latest``.
        moves: Whether the service sometimes moves the committed position back.
    """

    def __init__(self, seed: int, *, kind: str, moves: bool = False) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.moves = moves
        self.managed = kind.startswith("managed")
        self.service = Service(self.chance, managed=self.managed, latest=kind == "managed-latest")
        self.now = 0.0
        self.stored: ReplayId | None = None
        self.frontier = 0  # index into the log of the next new event
        self.counts: Counter[str] = Counter()
        self.renew = False
        self.reject = False
        self.crash()

    # Actions and checks of one process.

    def crash(self) -> None:
        """Kill the process, and start a new one from the durable state."""
        self.counts["processes"] += 1
        self.service.close(carry_out=self.chance.random() < 0.5)
        start = None
        if not self.managed:
            start = StartPosition.latest() if self.kind == "latest" else StartPosition.earliest()
            if self.stored is not None:
                start = StartPosition.after(self.stored)
        self.limits = Limits(
            max_pending_count=self.chance.choice((20, 1000)),
            max_bytes=self.chance.choice((40, 5000)),
            max_unacked=self.chance.choice((30, 2000)),
        )
        self.protocol = SubscriptionProtocol(
            NAME,
            start=start,
            fallback=StartPosition.earliest(),
            tracked=self.kind != "plain",
            limits=self.limits,
        )
        self.queue: list[Deliver] = []
        self.held: list[tuple[int, int]] = []  # (delivery_seq, position) of read, unacked events
        self.open_positions: Counter[int] = Counter()  # delivered and not acked
        self.tickets: set[int] = set()
        self.gaps = 0
        self.moves_before = self.service.moves
        self.finish: Finish | None = None
        self.singles = 0  # requests for single events since fewer than max_unacked were kept
        self.gap_allowed = self.kind == "latest" and self.stored is None
        durable = self.service.committed
        if not self.managed:
            durable = 0 if self.stored is None else position(self.stored)
        earliest = self.service.earliest if start == StartPosition.earliest() else 0
        self.frontier = self.index_after(max(durable, earliest))
        if start == StartPosition.latest() or self.service.forgets:
            self.frontier = len(self.service.log)
        self.began = False  # whether an ended stream of this process may have begun
        self.owed = False  # whether lost events are not reported yet
        self.opened_at = self.now
        self.execute(self.protocol.start(self.now))

    @property
    def held_positions(self) -> int:
        """Number of positions that are kept."""
        ledger = self.protocol._ledger
        return ledger.open_events + (ledger.done_events if self.managed else 0)

    def execute(self, commands: list[Command]) -> None:
        """Execute the protocol's commands, as a driver does, and check them against the rules."""
        assert self.finish is None or not commands
        for command in commands:
            self.counts[type(command).__name__] += 1
            if isinstance(command, OpenStream):
                self.open(command)
            elif isinstance(command, SendRequest):
                self.singles += command.num_requested == 1
                # Each event has one byte. A single one is the reserve. Draining keeps no events.
                if command.num_requested > 1 and self.protocol.state is State.STREAMING:
                    health = self.protocol.health()
                    free = self.limits.max_bytes - health.pending_count
                    again = self.protocol._awaited  # redeliveries take no memory
                    assert health.outstanding <= max(free, again), (
                        "more events requested than max_bytes allows"
                    )
                    assert health.outstanding <= max(self.limits.max_unacked, again), (
                        "more events requested than max_unacked"
                    )
                if command.stream == self.service.stream and not self.service.deaf:
                    self.service.inbox.append(command)
            elif isinstance(command, Deliver):
                self.check_delivery(command)
            elif isinstance(command, Discard):
                self.queue.clear()
            elif isinstance(command, RenewSession):
                self.renew = True
            elif isinstance(command, ReportGap):
                self.gaps += 1
                self.owed = False
                moved = self.service.moves != self.moves_before
                receipt = commits_of(self.protocol).receipt if self.managed else None
                unknown = command.gap.reason == "unanchored" and receipt is None
                assert moved or unknown or not self.managed, (
                    "a gap was reported although nothing was moved"
                )
            elif isinstance(command, SettleCommit):
                self.tickets.remove(command.ticket)
            elif isinstance(command, HalfClose):
                self.half_close()
            elif isinstance(command, CancelStream):
                self.began = True
                self.service.close(carry_out=self.chance.random() < 0.5)
            elif isinstance(command, Finish):
                self.finish = command
                assert not self.tickets, "a caller of commit() was not settled"
        # 100 more were in flight, or were redeliveries that turned out to be new, and the single
        # events that keep a stream open come on top.
        held = self.held_positions
        if held < self.limits.max_unacked:
            self.singles = 0
        most = self.limits.max_unacked + 100 + self.singles
        assert held <= most, "more positions are kept than max_unacked"
        state = self.protocol.state
        assert state in WITHOUT_ALARM or self.protocol.deadline() is not None, state
        if state is State.PAUSED:
            assert self.queue or self.protocol.deadline() is not None, "paused forever"

    def open(self, command: OpenStream) -> None:
        """Open a call at the service, and update `frontier`, the index of the next event to
        deliver.
        """
        start = command.start
        self.reject = (
            start is not None and start.replay_id is not None and self.chance.random() < 0.03
        )
        if start == StartPosition.latest() and self.frontier < len(self.service.log):
            assert self.gaps or self.gap_allowed, "LATEST skipped events without a gap"
            self.frontier = len(self.service.log)
        self.service.open(command, self.now)
        self.opened_at = self.now
        if self.service.forgets and self.frontier < self.index_after(self.service.cursor):
            self.owed = self.began
            self.frontier = self.index_after(self.service.cursor)
        if start == StartPosition.earliest() and self.gaps:
            self.frontier = max(self.frontier, self.index_after(self.service.earliest))

    def index_after(self, number: int) -> int:
        """Return the index of the first event after a position."""
        return bisect.bisect_right(self.service.log, number)

    def half_close(self) -> None:
        """Let the service handle all requests, and end the call with OK."""
        while self.service.inbox:
            self.service.read(self.now)
        self.service.close()
        self.execute(self.protocol.ended(self.protocol._stream, None, self.now, 0.5))

    def check_delivery(self, batch: Deliver) -> None:
        """Check that no event of a batch is skipped or delivered twice, and queue the batch."""
        moved = self.gaps or self.service.moves != self.moves_before
        for raw in batch.events:
            number = position(raw.replay_id)
            index = self.index(number, moved=bool(moved))
            assert index <= self.frontier, "events were skipped"
            assert moved or index == self.frontier, "delivered twice"
            self.frontier = max(self.frontier, index + 1)
            self.open_positions[number] += 1
        self.queue.append(batch)

    def index(self, number: int, *, moved: bool) -> int:
        """Return an event's index in the log; fail if earlier events were skipped, unless *moved*.

        Args:
            number: Number of the event.
            moved: Whether a gap or a moved position allows events to be skipped.
        """
        log = self.service.log
        if self.frontier < len(log) and log[self.frontier] == number:
            return self.frontier
        assert moved or number in log[: self.frontier], "events were skipped"
        return log.index(number)

    def check_done(self, until: int) -> None:
        """Check that every event up to the position *until* has been delivered and acked."""
        late = [number for number in self.open_positions if number <= until]
        assert not late, f"position {until} skips unacked {late[:5]}"
        rest = self.service.log[self.frontier : self.frontier + 1]
        assert not rest or rest[0] > until, "a position skips an event that was not delivered"

    # Actions, of which each step takes one.

    def step(self) -> None:
        """Take one random action.

        If the subscription has ended, first check how it ended, and start a new process.
        """
        if self.finish is not None:
            self.check_finish()
            self.crash()
        action = self.chance.choices(ACTIONS, WEIGHTS)[0]
        action(self)

    def publish(self) -> None:
        """Publish some events, unless many are waiting already."""
        if len(self.service.backlog) < 300:
            self.service.publish(self.chance.choice((1, 2, 5, 60)))

    def serve(self) -> None:
        """Let the service handle a request, respond to a commit, or deliver events."""
        service = self.service
        if service.inbox:
            before = service.committed
            service.read(self.now)
            if service.committed != before:
                self.check_done(service.committed)
        elif service.answers and self.chance.random() < 0.5:
            service.answer()
        elif service.backlog or self.chance.random() < 0.1:
            service.deliver(self.now, self.chance.choice((1, 7, 100)))

    def receive(self) -> None:
        """Transfer a response to the client."""
        if self.service.outbox:
            stream, response = self.service.stream, self.service.outbox.popleft()
            self.execute(self.protocol.response(stream, response, self.now))
            assert not self.owed or response.position is None, "events were lost without a gap"

    def take(self) -> None:
        """Let the application read a batch."""
        if self.queue:
            batch = self.queue.pop(0)
            for seq, raw in enumerate(batch.events, batch.first_seq):
                self.held.append((seq, position(raw.replay_id)))
            self.execute(self.protocol.taken(len(batch.events), batch.size, self.now))

    def ack(self) -> None:
        """Ack some or all events that the application has read, in order or shuffled."""
        count = self.chance.choice((1, 3, len(self.held)))
        if self.chance.random() < 0.2:
            self.chance.shuffle(self.held)
        for seq, number in self.held[:count]:
            self.open_positions[number] -= 1
            if not self.open_positions[number]:
                del self.open_positions[number]
            self.execute(self.protocol.acked(seq, seq, self.now))
        del self.held[:count]

    def commit(self) -> None:
        """Call `commit` if there is something to commit."""
        if not self.managed or self.protocol.state is State.CLOSED:
            return
        ledger, receipt = self.protocol._ledger, commits_of(self.protocol).receipt
        if ledger.newest_done is not None or receipt is not None:
            ticket, commands = self.protocol.commit(self.now)
            self.tickets.add(ticket)
            self.execute(commands)

    def store(self) -> None:
        """Check and store the position that the protocol offers for storage, if any."""
        found = self.protocol.storable() if self.kind == "stored" else None
        if found is not None:
            self.check_done(position(found))
            self.stored = found

    def drop(self) -> None:
        """End the call with a failure, or with OK."""
        if not self.service.stream or self.service.deaf:
            return
        stream = self.service.stream
        self.service.close(carry_out=self.chance.random() < 0.5)
        if self.managed and self.moves and self.chance.random() < 0.3:
            self.service.move_back()
        kinds = [FailureKind.RETRY, None, FailureKind.REAUTHENTICATE]
        kind = self.chance.choice([*kinds, FailureKind.SLOT_HELD] if self.managed else kinds)
        error = SessionExpiredError("expired") if kind else StreamUnavailableError("reset")
        failure = None if kind is None else Failure(kind, error)
        soon = self.now < self.opened_at + Timings().steady
        refused = kind is FailureKind.SLOT_HELD or (kind is FailureKind.REAUTHENTICATE and soon)
        self.began |= not (self.protocol.state is State.OPENING and refused)
        self.execute(self.protocol.ended(stream, failure, self.now, self.chance.random()))

    def mute(self) -> None:
        """Drop all messages between service and client, without an error, until the call ends."""
        self.service.deaf = bool(self.service.stream)
        self.service.outbox.clear()

    def external_step(self) -> None:
        """Reject the stream's start position if that is planned.

        Otherwise finish a pending sign-in, successfully or not.
        """
        if self.reject and self.service.stream:
            self.reject = False
            stream = self.service.stream
            self.service.expire(self.service.cursor)
            self.service.close()
            refused = Failure(FailureKind.POSITION_REJECTED, ReplayIdRejectedError("corrupted"))
            self.execute(self.protocol.ended(stream, refused, self.now, self.chance.random()))
        elif self.renew:
            self.renew = False
            if self.chance.random() < 0.7:
                self.execute(self.protocol.session_renewed(self.now))
            else:
                failure = Failure(FailureKind.RETRY, StreamUnavailableError("login is down"))
                self.execute(self.protocol.renewal_failed(failure, self.now, self.chance.random()))

    def pass_time(self) -> None:
        """Advance the clock by up to 1,500 s; run due timers and deliver what is in transit."""
        until = self.now + self.chance.choice((0.01, 0.5, 5.0, 40.0, 400.0, 1500.0))
        while self.now < until and self.finish is None:
            self.flush()
            due = self.protocol.deadline()
            self.now = min(until, self.now + 10.0, until if due is None else max(self.now, due))
            for _ in range(10):
                due = self.protocol.deadline()
                if due is None or due > self.now or self.finish is not None:
                    break
                self.execute(self.protocol.timer(self.now, self.chance.random()))
            else:
                raise AssertionError(f"the timer is due forever in state {self.protocol.state}")
            self.service.check_idle(self.now)

    def flush(self) -> None:
        """Handle everything in transit; the service may also respond to pending commits."""
        service = self.service
        while self.finish is None and (
            service.inbox or service.outbox or service.backlog or service.keepalive_due(self.now)
        ):
            if service.inbox:
                self.serve()
            elif service.outbox:
                self.receive()
            else:
                service.deliver(self.now, 100)
                if service.deaf:
                    break
        if service.answers and self.chance.random() < 0.7:
            service.answer()

    def crash_or_drain(self) -> None:
        """Drain or abort the subscription, or kill the process."""
        if self.chance.random() < 0.5:
            self.execute(self.protocol.drain(self.now))
        elif self.chance.random() < 0.5:
            self.execute(self.protocol.abort())
        else:
            self.crash()

    # Checks at the end.

    def check_finish(self) -> None:
        """Check that the subscription ended without an error, or with an expected one."""
        error = self.finish.error if self.finish else None
        expected = (
            CommitError,
            SessionExpiredError,
            SubscriptionBusyError,
            ReplayIdRejectedError,
        )
        if error is not None and not isinstance(error, expected):
            assert "unacked" in str(error), error
        # One commit in ten is rejected, which is temporary however often it happens.
        assert "no commit was accepted" not in str(error)

    def run(self, steps: int) -> None:
        """Take *steps* random actions, and check the end result."""
        for number in range(steps):
            try:
                self.step()
            except BaseException:
                print(f"step {number} of {self.kind}, state {self.protocol.state}")
                raise
        self.settle()

    def settle(self) -> None:
        """Let everything finish without further failures, and check that every event was delivered.

        For a managed subscription, the last event must be committed too.
        """
        self.service.most_refusals = 0.0
        if self.protocol.state in {State.SAVING, State.DRAINING, State.CLOSING, State.CLOSED}:
            self.crash()
        idle = 0  # rounds in which no event was delivered
        while idle < 60:
            before = self.frontier
            self.reject = False
            self.renew = False
            if self.protocol.state is State.RENEWING:
                self.execute(self.protocol.session_renewed(self.now))
            self.pass_time()
            while self.queue:
                self.take()
                while self.held:
                    self.ack()
            while self.held:
                self.ack()
            if self.finish is not None:
                self.check_finish()
                self.crash()
            idle = idle + 1 if self.frontier == before else 0
        self.flush()
        while self.queue or self.held:
            self.take()
            self.ack()
            self.flush()
        assert self.frontier == len(self.service.log), "some events were not delivered"
        for _ in range(60):  # the last commit, retried if its answer is lost
            while self.service.answers:
                self.service.answer()
                self.flush()
            self.pass_time()
            self.renew = False
            if self.protocol.state is State.RENEWING:
                self.execute(self.protocol.session_renewed(self.now))
        if self.managed:
            assert not self.service.log or self.service.committed >= self.service.log[-1]
        self.execute(self.protocol.drain(self.now))


ACTIONS = [
    Walk.publish,
    Walk.serve,
    Walk.receive,
    Walk.take,
    Walk.ack,
    Walk.commit,
    Walk.store,
    Walk.drop,
    Walk.mute,
    Walk.external_step,
    Walk.pass_time,
    Walk.crash_or_drain,
]
WEIGHTS = [4, 20, 20, 10, 10, 1, 3, 1.0, 0.1, 3, 2, 0.1]

WALKS = [
    pytest.param("managed", False, id="managed"),
    pytest.param("managed", True, id="managed-moved-back"),
    pytest.param("managed-latest", False, id="managed-latest"),
    pytest.param("stored", False, id="stored"),
    pytest.param("plain", False, id="plain"),
    pytest.param("latest", False, id="latest"),
]


def walk(kind: str, moves: bool, *, steps: int) -> Walk:
    """Run a random walk, and return it."""
    print(f"SFPUBSUB_WALK_SEED={SEED}")
    walked = Walk(SEED, kind=kind, moves=moves)
    walked.run(steps)
    return walked


@pytest.mark.parametrize(("kind", "moves"), WALKS)
def test_random_walk_breaks_no_rule(kind: str, moves: bool) -> None:
    """In 2,000 random steps no event is skipped or delivered twice, and no position skips an
    unacked event.
    """
    walked = walk(kind, moves, steps=2000)

    assert walked.counts["OpenStream"] > 10
    assert walked.counts["Deliver"] > 60


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moves"), WALKS)
def test_long_random_walk_breaks_no_rule(kind: str, moves: bool) -> None:
    """A random walk of 100,000 steps breaks none of the rules listed at the top of this module."""
    walk(kind, moves, steps=100_000)
