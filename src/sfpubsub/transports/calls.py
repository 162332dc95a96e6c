"""Base of the drivers that run a protocol with threads, timers and calls.

The driver handles every input (a message, an action of the application, a deadline, the end of a
call) as follows:

1. pass it to the protocol with the current time;
2. execute the returned commands in order, under the lock that serialises the protocol;
3. set the timer to the protocol's next deadline, if that is earlier than the current setting;
4. notify the application, outside the lock.

The driver does not decide what to send, when to reconnect, or how long to wait. Each call is opened
in a separate thread, because obtaining a session may block. Messages are received in the call's
reader thread if it has one, otherwise in the thread that opened the call.

An application's thread may be interrupted at any line. So it never does any of this: it puts its
input into the inbox, which the next input of any kind, or the client's `AlarmClock`, works off.
Invariant: an application's thread holds neither the lock nor anything of gRPC's.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from sfpubsub.errors import SfPubSubError, StreamError
from sfpubsub.process import CreatorProcess, one_wait
from sfpubsub.protocol.commands import (
    CancelStream,
    Command,
    Finish,
    HalfClose,
    OpenPublish,
    OpenStream,
    RenewSession,
)
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.retries import is_final
from sfpubsub.transports.alarm import AlarmClock, Clock, Reminder
from sfpubsub.transports.base import Call, Headers
from sfpubsub.transports.mailbox import Mailbox

logger = logging.getLogger("sfpubsub.transport")

Opening = TypeVar("Opening", OpenStream, OpenPublish)
T = TypeVar("T")

# Maximum seconds for which an application's thread waits for what happens at once, such as an
# abort: far longer than it takes on a busy machine.
AT_ONCE = 5.0

# Seconds between two looks at a protocol that another thread is changing, which takes microseconds.
_GLANCE = 50e-6


class Driven(Protocol):
    """The methods that `CallDriver` calls on every protocol."""

    def abort(self) -> list[Command]: ...
    def crashed(self, error: SfPubSubError) -> list[Command]: ...
    def ended(
        self, stream: int, failure: Failure | None, now: float, jitter: float
    ) -> list[Command]: ...
    def session_renewed(self, now: float) -> list[Command]: ...
    def renewal_failed(self, failure: Failure, now: float, jitter: float) -> list[Command]: ...
    def deadline(self) -> float | None: ...
    def timer(self, now: float, jitter: float) -> list[Command]: ...


class CallDriver(ABC, Generic[Opening]):
    """The part of a driver that is independent of the message type. Thread-safe.

    Args:
        protocol: The protocol to run, owned by this object from now on.
        name: Topic or subscription of the calls, for logs and thread names.
        title: Description for error messages, such as ``the subscription My_Subscription``.
        alarm: Timer thread, shared by the drivers of a client.
        renew: Gets a new session in place of the one with the given headers. It may block, and may
            raise SfPubSubError.
        clock: Monotonic clock in seconds, the same as the alarm's.
        jitter: Returns uniform random numbers in [0, 1).
    """

    def __init__(
        self,
        protocol: Driven,
        name: str,
        title: str,
        *,
        alarm: AlarmClock,
        renew: Callable[[Headers], None],
        clock: Clock = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._driven = protocol
        self._name = name
        self._title = title
        self._renew = renew
        self._clock = clock
        self._jitter = jitter
        # Serialises the protocol and the execution of its commands.
        self._lock = threading.Lock()
        # Inputs of the application's threads, in order. A single operation adds or removes one.
        self._inbox: deque[tuple[Callable[..., list[Command]], tuple[Any, ...]]] = deque()
        self._alarm = alarm
        self._version = 0  # odd while the protocol changes; see `_snapshot`
        self._wanted = 0  # number of the stream that should be active; 0 for none
        self._call: Call[Any, Any] | None = None
        self._headers: Headers = ()  # of the most recent call
        self._threads: list[threading.Thread] = []
        self._reading: list[_Latch] = []  # one per call; open once it has ended
        # Received messages, the outcome, and the notification of waiters.
        self._mailbox = Mailbox()
        self._home = CreatorProcess()
        self._reminder = Reminder(alarm, self._on_alarm)
        alarm.start()

    @abstractmethod
    def _open_call(self, opening: Opening) -> Call[Any, Any]:
        """Start the call that *opening* describes, and return it.

        Raises:
            SfPubSubError: The call could not be started.
        """

    @abstractmethod
    def _received(self, stream: int, message: Any) -> None:
        """Pass a message that was received on *stream* to the protocol."""

    @abstractmethod
    def _carry_out(self, command: Command) -> bool:
        """Execute a command under the lock; return False if `_tell` must handle it outside the
        lock.
        """

    @abstractmethod
    def _tell(self, command: Command) -> None:
        """Execute a command for which `_carry_out` returned False. Called outside the lock."""

    # For the application's threads.

    @property
    def changes(self) -> int:
        """Counter that increases whenever a thread in `wait` should check the state again."""
        return self._mailbox.count

    def wait(self, changes: int, timeout: float | None) -> None:
        """Wait until the property *changes* differs from the argument *changes*.

        Returns after *timeout* seconds at the latest, and after `LONGEST_WAIT` without a change.
        """
        self._check_process()
        self._mailbox.wait(changes, one_wait(timeout))

    def wake(self) -> None:
        """Wake all waiters so that they check the state again."""
        self._mailbox.wake()

    def listen(self, changed: Callable[[], None]) -> None:
        """Register *changed* to be called on every change; see `Mailbox.listen`."""
        self._mailbox.listen(changed)

    @property
    def over(self) -> bool:
        """Whether the driver has ended. Nothing more arrives after that."""
        return self._mailbox.finish is not None

    def raise_failure(self) -> None:
        """Raise the error that ended the driver; do nothing if there was no error."""
        if self.failure is not None:
            # Several callers may raise the same error, so drop the previous caller's traceback.
            raise self.failure.with_traceback(None)

    @property
    def failure(self) -> SfPubSubError | None:
        """The error that ended the driver; None if it is active or ended without an error."""
        finish = self._mailbox.finish
        return None if finish is None else finish.error

    def abort(self) -> None:
        """End immediately, without draining."""
        if self.over:
            return
        self._post(lambda _now: self._driven.abort())
        if self._alarm.is_current:  # called from a callback
            self._work_off()
        else:
            self._until(lambda: self.over, AT_ONCE)

    def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the end, and for all threads and calls to finish.

        Call this before closing the channel.
        """
        deadline = time.monotonic() + timeout
        self._until(lambda: self.over, timeout)
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for reading in list(self._reading):
            reading.wait(max(0.0, deadline - time.monotonic()))

    @property
    def is_done(self) -> bool:
        """Whether the driver has ended, and all its threads and calls have finished."""
        return (
            self.over
            and not any(thread.is_alive() for thread in self._threads)
            and all(reading.is_open for reading in self._reading)
        )

    def _until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until *condition* is true; return whether it was within *timeout* seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            changes = self._mailbox.count
            if condition():
                return True
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                return False
            self._mailbox.wait(changes, one_wait(rest))

    def _snapshot(self, read: Callable[[], T]) -> T:
        """Return the result of *read*, which reads the protocol, at a moment between two inputs.

        All inputs that this thread has posted before are worked off first.
        """
        self._check_process()
        self.catch_up()
        deadline = time.monotonic() + AT_ONCE
        while True:
            version = self._version
            if not version % 2 or time.monotonic() > deadline:
                try:
                    found = read()
                except RuntimeError:  # a collection changed while it was read
                    continue
                if self._version == version or time.monotonic() > deadline:
                    return found
            time.sleep(_GLANCE)

    def catch_up(self) -> None:
        """Wait until the inputs that this thread has posted, such as acks, are worked off."""
        is_through = not self._inbox and not self._version % 2  # in this order
        if is_through or self.over or self._alarm.is_current:
            return
        behind = _Latch()

        def reached(_now: float) -> list[Command]:
            behind.open()
            return []

        self._post(reached)
        behind.wait(AT_ONCE)

    def _check_process(self) -> None:
        self._home.check(self._title)

    # Event handling.

    def _post(self, happened: Callable[..., list[Command]], *what: Any) -> None:
        """Hand in an input of an application's thread. Takes no lock, and does not wait.

        If it is interrupted before its end, the input may be lost, or take effect only with the
        next input of any kind.

        Args:
            happened: See `_apply`. It must not raise.
            what: See `_apply`.
        """
        if not self._home.is_current:
            self._check_process()
        self._inbox.append((happened, what))
        self._alarm.post(self._work_off)

    def _work_off(self) -> None:
        if self._inbox:
            self._guard(lambda: self._apply(None))

    def _apply(self, happened: Callable[..., list[Command]] | None, *what: Any) -> None:
        """Handle the inbox, and then one input, in a thread of the client's or gRPC's.

        For each: update the protocol, execute its commands. Then set the timer.

        Args:
            happened: Passes the input to the protocol and returns the protocol's commands. Its
                arguments are those in *what*, followed by the current time. None for no input.
            what: Arguments that describe the input, such as a message.
        """
        told: list[Command] | None = None
        inbox = self._inbox
        with self._lock:
            self._version += 1
            try:
                while inbox:
                    posted, arguments = inbox.popleft()
                    told = self._execute(posted(*arguments, self._clock()), told)
                if happened is not None:
                    told = self._execute(happened(*what, self._clock()), told)
                self._handled()
                self._reminder.set(self._driven.deadline())
            finally:
                self._version += 1
        for command in told or ():
            self._tell(command)

    def _handled(self) -> None:
        """Look at the protocol after it has handled inputs. Called under the lock."""

    def _execute(self, commands: list[Command], told: list[Command] | None) -> list[Command] | None:
        for command in commands:
            if not self._carry_out(command):
                told = [*(told or ()), command]
        return told

    def _on_alarm(self) -> None:
        def rung(now: float) -> list[Command]:
            self._reminder.rung()
            return self._driven.timer(now, self._jitter())

        self._guard(lambda: self._apply(rung))

    def _steer(self, command: Command) -> bool:
        """Execute a command common to all drivers; return False for any other command."""
        if isinstance(command, (OpenStream, OpenPublish)):
            self._wanted = command.stream
            opening: Any = command  # of the type that this driver's protocol returns
            self._spawn("read", lambda: self._read(opening))
        elif isinstance(command, HalfClose):
            if self._call is not None:
                self._call.half_close()
            else:  # the call has not started yet, so nothing will end it
                self._wanted = 0
        elif isinstance(command, CancelStream):
            self._wanted = 0
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
        elif isinstance(command, RenewSession):
            self._spawn("renew", self._renew_session)
        elif isinstance(command, Finish):
            self._mailbox.close(command)
        else:
            return False
        return True

    # Threads.

    def _spawn(self, role: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=lambda: self._guard(work),
            name=f"sfpubsub-{role} {self._name}",
            daemon=True,
        )
        self._threads = [other for other in self._threads if other.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # reported, and ends the driver
            self._crash(error)

    def _crash(self, error: Exception) -> None:
        # An internal error must end the driver instead of leaving it silent.
        if self.over:  # already ended, so no caller is waiting for the result
            logger.debug("%s: internal error after the driver had ended", self._name, exc_info=True)
            return
        logger.exception("%s: internal error", self._name)
        crash = StreamError(
            f"{self._name}: internal error, {type(error).__name__}: please report it"
        )
        crash.__cause__ = error
        self._apply(lambda _now: self._driven.crashed(crash))

    def _read(self, opening: Opening) -> None:
        stream = opening.stream
        if stream > 1:
            logger.info("reopening %s (stream %d)", self._name, stream)
        if self._wanted != stream:  # cancelled before this thread started
            return
        try:
            call = self._open_call(opening)
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
            # Keep reading: only the end of the call releases its resources.
        over = _Latch()
        self._reading = [other for other in self._reading if not other.is_open]
        self._reading.append(over)

        def end(failure: Failure | None) -> None:
            try:
                self._guard(lambda: self._ended(stream, failure))
            finally:
                over.open()

        try:
            call.read(lambda message: self._take(stream, message), end)
        except BaseException:  # reading has stopped, so `end` will not be called
            over.open()
            raise

    def _take(self, stream: int, message: Any) -> None:
        # May run in gRPC's thread, which serves other calls as well.
        try:
            self._received(stream, message)
        except Exception as error:  # noqa: BLE001  # reported, and ends the driver
            self._crash(error)

    def _ended(self, stream: int, failure: Failure | None) -> None:
        if failure is not None:
            logger.info("stream %d of %s ended: %s", stream, self._name, failure.error)

        def end(now: float) -> list[Command]:
            if self._wanted == stream:
                self._call = None
            return self._driven.ended(stream, failure, now, self._jitter())

        self._apply(end)

    def _renew_session(self) -> None:
        try:
            self._renew(self._headers)
        except SfPubSubError as error:
            kind = FailureKind.STOP if is_final(error) else FailureKind.TURNED_AWAY
            failure = Failure(FailureKind.RETRY if error.retryable else kind, error)
            self._apply(lambda now: self._driven.renewal_failed(failure, now, self._jitter()))
        else:
            self._apply(self._driven.session_renewed)


def _unclassified(error: SfPubSubError) -> Failure:
    # Raised by this library before the call started: ``retryable`` states whether a retry may help.
    kind = FailureKind.RETRY if error.retryable else FailureKind.STOP
    return Failure(kind, error, is_unheard=True)


class _Latch:
    """Opens once. Thread-safe, and an interrupted wait leaves no lock behind."""

    def __init__(self) -> None:
        self._shut = threading.Lock()
        self._shut.acquire()
        self.is_open: bool = False
        """Whether `open` was called."""

    def open(self) -> None:
        """Let all waiters go on. Called once."""
        self.is_open = True
        self._shut.release()

    def wait(self, timeout: float) -> None:
        """Wait until it is open, up to *timeout* seconds."""
        if not self.is_open and self._shut.acquire(timeout=timeout):
            self._shut.release()
