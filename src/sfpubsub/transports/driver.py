"""The driver: gives the protocol a clock, threads and a wire.

After anything happens (a response, an ack, a deadline, the end of a call):

1. hand it to the protocol with the time;
2. carry out the returned commands in order, under the one lock that serialises the protocol;
3. re-arm the single timer from the protocol's next deadline, if that is earlier than it rings;
4. tell the application, outside the lock;
5. on a close command finish the call.

No decision about credit, commits, resuming or delays is made here. Each call is read by a thread of
its own; batches, not events, cross to the application's thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from sfpubsub.errors import CommitError, LocalProtocolError, SfPubSubError, StreamError
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
    Wake,
)
from sfpubsub.protocol.events import Failure, FailureKind, Response
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.transports.alarm import AlarmClock, Clock, Reminder
from sfpubsub.transports.base import Headers, StreamCall, Target, Transport
from sfpubsub.transports.mailbox import Arrival, Mailbox
from sfpubsub.transports.process import Home
from sfpubsub.transports.tickets import Tickets
from sfpubsub.types import CommitReceipt, Gap, Health, ReplayId, StartPosition

logger = logging.getLogger("sfpubsub.transport")


class StreamDriver:
    """Runs one `SubscriptionProtocol` over a transport. Thread-safe.

    Args:
        protocol: Owned by this object from now on.
        transport: Opens the calls.
        target: What they subscribe to.
        alarm: Shared by the subscriptions of a client.
        renew: Gets a session other than that of the given headers; may wait; raises SfPubSubError.
        on_gap: Told of every `Gap`, in whichever thread found it; must not wait.
        clock: Steady time in seconds, the alarm's.
        jitter: Uniform random numbers in [0, 1).
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
        clock: Clock = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._protocol = protocol
        self._transport = transport
        self._target = target
        self._renew = renew
        self._on_gap = on_gap
        self._clock = clock
        self._jitter = jitter
        self.has_begun = False
        """Whether `start` was called."""
        # Serialises the protocol and the carrying out of its commands.
        self._lock = threading.Lock()
        self._wanted = 0  # the stream that is to be alive; 0 for none
        self._call: StreamCall | None = None
        self._headers: Headers = ()  # of the last call that was made
        self._threads: list[threading.Thread] = []
        self._tickets = Tickets()
        self._mailbox = Mailbox()
        self._home = Home()
        self._reminder = Reminder(alarm, self._on_alarm)
        self._todo: deque[Command] = deque()  # what an interrupted `_apply` has left to the next

    # For the application's threads.

    def start(self, position: StartPosition | None = None) -> None:
        """Open the first stream.

        Args:
            position: Where a plain subscription starts, instead of where the protocol was told.
        """
        self.has_begun = True
        self._apply(lambda now: self._protocol.start(now, position))

    def peek(self) -> Arrival | None:
        """Return the next response if there is one, and leave it where it is; never waits."""
        return self._mailbox.peek()

    def accept(self, arrival: Arrival) -> None:
        """Take *arrival* off the queue: it is in the application's hands.

        Until then it stays the next one, so that a caller that is interrupted loses nothing. One
        that was accepted before, or discarded, changes nothing.
        """

        def pop(now: float) -> list[Command]:
            if not self._mailbox.pop(arrival):
                return []
            return self._protocol.taken(len(arrival.batch.events), arrival.batch.size, now)

        self._apply(pop)

    @property
    def changes(self) -> int:
        """Changes with everything that `wait` may be waiting for."""
        return self._mailbox.count

    def wait(self, changes: int, timeout: float | None) -> None:
        """Wait until `changes` differs from *changes*, or for *timeout* seconds; None for ever."""
        self._check_process()
        self._mailbox.wait(changes, timeout)

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._mailbox.wake()

    def listen(self, changed: Callable[[], None]) -> None:
        """Call *changed* with every change; see `Mailbox.listen`."""
        self._mailbox.listen(changed)

    @property
    def target(self) -> Target:
        """What the streams subscribe to."""
        return self._target

    @property
    def over(self) -> bool:
        """Whether the subscription has ended; nothing more comes."""
        return self._mailbox.finish is not None

    @property
    def discarded(self) -> bool:
        """Whether what was not accepted is gone for good."""
        return self._mailbox.discarded

    def pause(self) -> None:
        """Ask for no more events until `resume`; the stream is kept open."""
        self._apply(self._protocol.pause)

    def resume(self) -> None:
        """Ask for events again."""
        self._apply(self._protocol.resume)

    def ack(self, first_seq: int, last_seq: int) -> None:
        """Ack a run of events. After the end it changes nothing."""
        self._apply(lambda now: self._protocol.acked(first_seq, last_seq, now))

    def storable(self) -> ReplayId | None:
        """Return the position to store now, if there is a new one."""
        self._check_process()
        with self._lock:
            return self._protocol.storable()

    def commit(self, timeout: float) -> CommitReceipt:
        """Commit what is acked and wait for the service's answer.

        Args:
            timeout: Seconds.

        Raises:
            CommitError: It was refused, or not answered in time.
            LocalProtocolError: There is nothing to commit.
            SfPubSubError: The subscription failed meanwhile.
        """
        future = self.begin_commit()
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            raise self.unconfirmed(timeout) from None

    def begin_commit(self) -> Future[CommitReceipt]:
        """Ask for a commit of what is acked; the future gets the receipt or the error.

        Raises:
            LocalProtocolError: There is nothing to commit.
        """
        future: Future[CommitReceipt] = Future()

        def ask(now: float) -> list[Command]:
            ticket, commands = self._protocol.commit(now)
            self._tickets.add(ticket, future)
            return commands

        self._apply(ask)
        return future

    def unconfirmed(self, timeout: float) -> CommitError:
        """Return the error for a commit whose caller waited *timeout* seconds in vain."""
        health = self.health()
        reason = health.reason or f"the stream is {health.state}"
        return CommitError(
            f"the commit on {self._target.name} was not confirmed within {timeout:g} s: {reason}"
        )

    def drain(self) -> None:
        """End in order and wait for the end.

        Raises:
            SfPubSubError: What ended the subscription, such as a last commit that failed.
        """
        self.begin_drain()
        while True:
            changes = self.changes
            if self.over:
                break
            self.wait(changes, None)  # the protocol bounds this: its deadlines end a drain
        self.raise_failure()

    def begin_drain(self) -> None:
        """Start to end in order; `over` tells when it has."""
        self._apply(self._protocol.drain)

    def raise_failure(self) -> None:
        """Raise what ended the subscription, if it ended with an error."""
        if self.failure is not None:
            # The same error may be raised by many calls: without the frames of the last one.
            raise self.failure.with_traceback(None)

    @property
    def failure(self) -> SfPubSubError | None:
        """What ended the subscription, if that was an error."""
        finish = self._mailbox.finish
        return None if finish is None else finish.error

    def abort(self) -> None:
        """End now."""
        self._apply(lambda _now: self._protocol.abort())

    def join(self, timeout: float) -> None:
        """Wait for the threads of calls that have ended, so that no call outlives its channel."""
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_done(self) -> bool:
        """Whether it is over and no thread of it is left."""
        return self.over and not any(thread.is_alive() for thread in self._threads)

    def health(self) -> Health:
        """Return a snapshot."""
        self._check_process()
        with self._lock:
            return self._protocol.health()

    def _check_process(self) -> None:
        # A forked child has this object and none of its threads: nothing would ever happen here,
        # and a lock that another thread held at that moment is never released.
        if not self._home.is_here:
            raise LocalProtocolError(
                f"the subscription {self._target.name} belongs to process {self._home.pid}, which "
                f"forked this one: make a client after the fork"
            )

    # The recipe.

    def _apply(self, happened: Callable[[float], list[Command]]) -> None:
        self._check_process()
        told: list[Command] = []
        with self._lock:
            todo = self._todo
            todo += happened(self._clock())
            while todo:
                command = todo.popleft()
                if not self._carry_out(command):
                    told.append(command)
            self._reminder.set(self._protocol.deadline())
        for command in told:
            self._tell(command)

    def _on_alarm(self) -> None:
        def rung(now: float) -> list[Command]:
            self._reminder.rung()
            return self._protocol.timer(now, self._jitter())

        self._guard(lambda: self._apply(rung))

    def _carry_out(self, command: Command) -> bool:
        """Do what needs the lock; return False for what has to be told outside it."""
        if isinstance(command, Deliver):
            self._mailbox.put(Arrival(command, time.time()))
        elif isinstance(command, SendRequest):
            if self._call is not None:
                self._call.send(command)
        elif isinstance(command, OpenStream):
            self._wanted = command.stream
            self._spawn("read", lambda: self._read(command))
        elif isinstance(command, HalfClose):
            if self._call is not None:
                self._call.half_close()
            else:  # the call has not even started: nothing will end it
                self._wanted = 0
        elif isinstance(command, CancelStream):
            self._wanted = 0
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
        elif isinstance(command, RenewSession):
            self._spawn("renew", self._renew_session)
        elif isinstance(command, Discard):
            self._mailbox.discard()
        elif isinstance(command, Wake):
            self._mailbox.wake()
        elif isinstance(command, Finish):
            self._mailbox.close(command)
        else:
            return False
        return True

    def _tell(self, command: Command) -> None:
        if isinstance(command, ReportGap):
            # When it ends the subscription, the error that is raised says the same.
            logger.log(logging.INFO if self.over else logging.WARNING, "%s", command.gap)
            try:
                self._on_gap(command.gap)
            except Exception:  # the application's; it must not take the stream's thread with it
                logger.exception("on_gap of %s raised", self._target.name)
        elif isinstance(command, SettleCommit):
            self._tickets.settle(command)

    # Threads.

    def _spawn(self, role: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=lambda: self._guard(work),
            name=f"sfpubsub-{role} {self._target.name}",
            daemon=True,
        )
        self._threads = [other for other in self._threads if other.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a fault of ours has to end the subscription, not silence it
            if self.over:  # aborted while it was at work: nobody waits for this any more
                logger.debug("after the end of %s", self._target.name, exc_info=True)
                return
            logger.exception("internal error on %s", self._target.name)
            crash = StreamError(
                f"{self._target.name}: internal error, {type(error).__name__}: please report it"
            )
            crash.__cause__ = error
            self._apply(lambda _now: self._protocol.crashed(crash))

    def _read(self, opening: OpenStream) -> None:
        stream = opening.stream
        if stream > 1:
            logger.info("opening %s again (stream %d)", self._target.name, stream)
        if self._wanted != stream:  # cancelled before this thread came to it
            return
        try:
            call = self._transport.open_stream(self._target, opening)
        except SfPubSubError as error:
            self._ended(stream, _unclassified(error))
            return
        with self._lock:
            self._headers = call.headers
            wanted = self._wanted == stream
            if wanted:
                self._call = call
        if not wanted:
            call.cancel()
            # Read on: the end of the call is what lets go of it.
        while isinstance(message := call.receive(), Response):
            self._received(stream, message)
        del call
        self._ended(stream, message)

    def _received(self, stream: int, response: Response) -> None:
        self._apply(lambda now: self._protocol.response(stream, response, now))

    def _ended(self, stream: int, failure: Failure | None) -> None:
        if failure is not None:
            logger.info("stream %d of %s ended: %s", stream, self._target.name, failure.error)

        def end(now: float) -> list[Command]:
            if self._wanted == stream:
                self._call = None
            return self._protocol.ended(stream, failure, now, self._jitter())

        self._apply(end)

    def _renew_session(self) -> None:
        try:
            self._renew(self._headers)
        except SfPubSubError as error:
            failure = _unclassified(error)
            self._apply(lambda now: self._protocol.renewal_failed(failure, now, self._jitter()))
        else:
            self._apply(self._protocol.session_renewed)


def _unclassified(error: SfPubSubError) -> Failure:
    # An error of ours from before the call: it says itself whether trying again may help.
    return Failure(FailureKind.RETRY if error.retryable else FailureKind.STOP, error)
