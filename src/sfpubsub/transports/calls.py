"""The recipe that drives a protocol: a clock, threads, and one call after another.

After anything happens (a message, something that the application did, a deadline, the end of a
call):

1. hand it to the protocol with the time;
2. carry out the returned commands in order, under the one lock that serialises the protocol;
3. re-arm the single timer from the protocol's next deadline, if that is earlier than it rings;
4. tell the application, outside the lock;
5. on a close command finish the call.

No decision about what to send, resuming or delays is made here. Each call is opened by a thread of
its own, since a session may have to be waited for; what comes is taken in the call's own thread, or
in that one.
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

from sfpubsub.errors import LocalProtocolError, SfPubSubError, StreamError
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
from sfpubsub.transports.alarm import AlarmClock, Clock, Reminder
from sfpubsub.transports.base import Call, Headers
from sfpubsub.transports.mailbox import Mailbox
from sfpubsub.transports.process import Home

logger = logging.getLogger("sfpubsub.transport")

Opening = TypeVar("Opening", OpenStream, OpenPublish)


class Driven(Protocol):
    """The inputs that every protocol takes."""

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
    """The part of a driver that does not depend on what its calls bring. Thread-safe.

    Args:
        protocol: Owned by this object from now on.
        name: What the calls are about, for logs and names of threads.
        title: What this is, for messages, such as ``the subscription My_Subscription``.
        alarm: Shared by the drivers of a client.
        renew: Gets a session other than that of the given headers; may wait; raises SfPubSubError.
        clock: Steady time in seconds, the alarm's.
        jitter: Uniform random numbers in [0, 1).
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
        # Serialises the protocol and the carrying out of its commands.
        self._lock = threading.Lock()
        self._wanted = 0  # the stream that is to be alive; 0 for none
        self._call: Call[Any, Any] | None = None
        self._headers: Headers = ()  # of the last call that was made
        self._threads: list[threading.Thread] = []
        self._reading: list[threading.Event] = []  # one for each call; set once it has ended
        # What came, how it ended, and the news that the waiter is waiting for.
        self._mailbox = Mailbox()
        self._home = Home()
        self._reminder = Reminder(alarm, self._on_alarm)
        self._todo: deque[Command] = deque()  # what an interrupted `_apply` has left to the next

    @abstractmethod
    def _open_call(self, opening: Opening) -> Call[Any, Any]:
        """Start a call; raises SfPubSubError."""

    @abstractmethod
    def _received(self, stream: int, message: Any) -> None:
        """Hand a message to the protocol."""

    @abstractmethod
    def _carry_out(self, command: Command) -> bool:
        """Do what needs the lock; return False for what has to be reported outside it."""

    @abstractmethod
    def _tell(self, command: Command) -> None:
        """Tell the application, outside the lock."""

    # For the application's threads.

    @property
    def changes(self) -> int:
        """Changes with everything that `wait` may be waiting for."""
        return self._mailbox.count

    def wait(self, changes: int, timeout: float | None) -> None:
        """Wait until `changes` differs from *changes*, or for *timeout* seconds; None for ever."""
        self._check_process()
        self._mailbox.wait(changes, timeout)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call *changed* with every change; see `Mailbox.listen`."""
        self._mailbox.listen(changed)

    @property
    def over(self) -> bool:
        """Whether it has ended; nothing more comes."""
        return self._mailbox.finish is not None

    def raise_failure(self) -> None:
        """Raise what ended it, if that was an error."""
        if self.failure is not None:
            # The same error may be raised by many calls: without the frames of the last one.
            raise self.failure.with_traceback(None)

    @property
    def failure(self) -> SfPubSubError | None:
        """What ended it, if that was an error."""
        finish = self._mailbox.finish
        return None if finish is None else finish.error

    def abort(self) -> None:
        """End now."""
        self._apply(lambda _now: self._driven.abort())

    def join(self, timeout: float) -> None:
        """Wait for the end of calls that were ended, so that none outlives its channel."""
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for reading in list(self._reading):
            reading.wait(max(0.0, deadline - time.monotonic()))

    @property
    def is_done(self) -> bool:
        """Whether it is over, and no thread and no call of it is left."""
        return (
            self.over
            and not any(thread.is_alive() for thread in self._threads)
            and all(reading.is_set() for reading in self._reading)
        )

    def _check_process(self) -> None:
        # A forked child has this object but none of its threads: nothing would ever happen here,
        # and a lock that another thread held at the fork is never released.
        if not self._home.is_here:
            raise LocalProtocolError(
                f"{self._title} belongs to process {self._home.pid}, which "
                f"forked this one: make a client after the fork"
            )

    # The recipe.

    def _apply(self, happened: Callable[..., list[Command]], *what: Any) -> None:
        """Do all of the recipe after something happened.

        Args:
            happened: Tells the protocol; the time is its last argument.
            what: The ones before.
        """
        if not self._home.is_here:
            self._check_process()
        told: list[Command] | None = None
        with self._lock:
            todo = self._todo
            todo += happened(*what, self._clock())
            while todo:
                command = todo.popleft()
                if not self._carry_out(command):
                    told = [*(told or ()), command]
            self._reminder.set(self._driven.deadline())
        for command in told or ():
            self._tell(command)

    def _on_alarm(self) -> None:
        def rung(now: float) -> list[Command]:
            self._reminder.rung()
            return self._driven.timer(now, self._jitter())

        self._guard(lambda: self._apply(rung))

    def _steer(self, command: Command) -> bool:
        """Carry out what every driver does alike; return False for another command."""
        if isinstance(command, (OpenStream, OpenPublish)):
            self._wanted = command.stream
            opening: Any = command  # of the kind that this driver's protocol makes
            self._spawn("read", lambda: self._read(opening))
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
        except Exception as error:  # noqa: BLE001  # told, and the end of it
            self._crash(error)

    def _crash(self, error: Exception) -> None:
        # A fault of ours has to end it, not silence it.
        if self.over:  # aborted while it was at work: nobody waits for this any more
            logger.debug("after the end of %s", self._name, exc_info=True)
            return
        logger.exception("internal error on %s", self._name)
        crash = StreamError(
            f"{self._name}: internal error, {type(error).__name__}: please report it"
        )
        crash.__cause__ = error
        self._apply(lambda _now: self._driven.crashed(crash))

    def _read(self, opening: Opening) -> None:
        stream = opening.stream
        if stream > 1:
            logger.info("opening %s again (stream %d)", self._name, stream)
        if self._wanted != stream:  # cancelled before this thread came to it
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
            # Read on: the end of the call is what lets go of it.
        over = threading.Event()
        self._reading = [other for other in self._reading if not other.is_set()]
        self._reading.append(over)

        def end(failure: Failure | None) -> None:
            try:
                self._guard(lambda: self._ended(stream, failure))
            finally:
                over.set()

        try:
            call.read(lambda message: self._take(stream, message), end)
        except BaseException:  # then nobody reads the call, and `end` is not called any more
            over.set()
            raise

    def _take(self, stream: int, message: Any) -> None:
        # In grpc's thread, perhaps, which serves others as well.
        try:
            self._received(stream, message)
        except Exception as error:  # noqa: BLE001  # told, and the end of it
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
            failure = _unclassified(error)
            self._apply(lambda now: self._driven.renewal_failed(failure, now, self._jitter()))
        else:
            self._apply(self._driven.session_renewed)


def _unclassified(error: SfPubSubError) -> Failure:
    # An error of ours from before the call: it says itself whether trying again may help.
    return Failure(FailureKind.RETRY if error.retryable else FailureKind.STOP, error)
