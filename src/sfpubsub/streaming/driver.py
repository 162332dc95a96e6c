"""Carries out what the protocol says: one thread for its deadlines, and one for each lane.

What happens is handed to the protocol in the thread where it happens, under one lock, and what the
protocol wants is carried out there as well; only requests wait for the thread of their lane.
Nothing is decided here. The application's replay store is not touched here.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming.commands import Command, Cut, Deliver, Lane, Renew, Report, Send, Settle
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.protocol import State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.types import Gap

logger = logging.getLogger("sfpubsub.streaming")

# Longest wait for a lane's thread at the end, in seconds; one that looks a name up is left behind.
_JOIN = 1.0

Items = deque[StreamingMessage | SfPubSubError]


class StreamingDriver:
    """Runs one protocol until it stops. Thread-safe.

    Args:
        protocol: Owned by the driver.
        items: What waits for the application, errors in their place among the messages.
        sessions: Where tokens come from.
        transport: The HTTP side; closed at the end.
        loads: Reads JSON.
        notify: Called in any thread when there is news for the application; must not wait.
        on_gap: Told of every position that is given up; must not wait.
    """

    def __init__(
        self,
        protocol: StreamingProtocol,
        items: Items,
        sessions: CurrentSession,
        transport: LongPolling,
        loads: Callable[[str], Any],
        notify: Callable[[], None],
        on_gap: Callable[[Gap], None] | None,
    ) -> None:
        self.protocol = protocol
        self.items = items
        self._sessions = sessions
        self._transport = transport
        self._loads = loads
        self._notify = notify
        self._on_gap = on_gap
        self._session: Session | None = None  # of the last request
        self._jobs: dict[Lane, queue.SimpleQueue[Callable[[], None] | None]] = {
            lane: queue.SimpleQueue() for lane in Lane
        }
        self._clock = threading.Condition()  # its lock serialises the protocol and its commands
        self._room_at = protocol.max_pending_count - 1  # so many wait when polling goes on
        self._wakes_at = math.inf  # when the thread for the deadlines will look again
        # An application that ends without closing is not held up by any of them.
        self._threads = [
            threading.Thread(target=work, args=args, name=name, daemon=True)
            for work, args, name in (
                (self._work, (Lane.POLL,), "sfpubsub-poll"),
                (self._work, (Lane.ASK,), "sfpubsub-ask"),
                (self._run, (), "sfpubsub-streaming"),
            )
        ]
        self.over = False
        """Whether nothing will be put into `items` any more."""

    def open(self) -> Future[None]:
        """Begin; the future is done when the server has answered the first connect."""
        opened = self.ask(self.protocol.open)
        for thread in self._threads:
            thread.start()
        return opened

    def ask(self, step: Callable[..., Sequence[Command]], *args: Any, **more: Any) -> Future[None]:
        """Have the protocol do what a caller waits for; the future tells how it went.

        Raises:
            LocalProtocolError: The protocol refuses it, or is over.
        """
        waiter: Future[None] = Future()
        with self._clock:
            if self.over:
                raise LocalProtocolError("the client is closed: open it first")
            commands = step(*args, waiter, time.monotonic(), **more)
            self.step(lambda now: commands)
        return waiter

    def step(self, input_: Callable[[float], Sequence[Command]]) -> None:
        """Tell the protocol of something, and carry out what it wants."""
        with self._clock:
            if self.over:
                return
            try:
                self._carry_out(input_(time.monotonic()))
            except Exception as error:
                # A bug of ours, or of a callback: the application must not wait for ever.
                logger.exception("the streaming client failed")
                failure = StreamUnavailableError(f"the client failed: {error!r}", retryable=False)
                self._carry_out(self.protocol.abort(failure, time.monotonic()))
            if self.protocol.state is State.STOPPED:
                self.over = True
                self._notify()
            if self.over or self._deadline() < self._wakes_at:
                self._clock.notify()

    def head(self) -> StreamingMessage | None:
        """Return the next message without taking it; raise an error in its place, once."""
        if not self.items:
            return None
        head = self.items[0]
        if isinstance(head, StreamingMessage):
            return head
        self.take()
        raise head

    def take(self) -> None:
        """Take the first item away. For one thread."""
        self.items.popleft()
        if len(self.items) == self._room_at:
            self.step(self.protocol.tick)

    def close(self) -> None:
        """Begin the goodbye; `join` or `over` tell its end."""
        self.step(self.protocol.close)

    def join(self) -> None:
        """Wait for the end of the goodbye."""
        self._threads[-1].join()

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Send():
                    self._jobs[command.lane].put(partial(self._exchange, command))
                case Deliver(items):
                    self.items.extend(items)
                    self._notify()
                case Cut(request):
                    self._transport.cut(request)
                case Settle(Future() as waiter, None):
                    waiter.set_result(None)
                case Settle(Future() as waiter, error):
                    waiter.set_exception(error)
                case Renew():
                    self._jobs[Lane.ASK].put(self._renew)
                case Report(gap) if self._on_gap is not None:
                    self._on_gap(gap)

    # The thread for the deadlines.

    def _deadline(self) -> float:
        deadline = self.protocol.deadline
        return math.inf if deadline is None else deadline

    def _run(self) -> None:
        with self._clock:
            while not self.over:
                self._wakes_at = self._deadline()
                rest = self._wakes_at - time.monotonic()
                if rest <= 0:
                    self.step(self.protocol.tick)
                else:
                    self._clock.wait(min(rest, threading.TIMEOUT_MAX))
        for jobs in self._jobs.values():
            jobs.put(None)
        for thread in self._threads[:-1]:
            thread.join(_JOIN)
        for lane in Lane:
            self._transport.drop(lane)

    # The lanes' threads.

    def _work(self, lane: Lane) -> None:
        while (job := self._jobs[lane].get()) is not None:
            job()

    def _exchange(self, request: Send) -> None:
        error: SfPubSubError
        try:
            self._session = session = self._sessions.get()
            messages = self._read(self._transport.post(request, session))
        except SfPubSubError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001  # a JSON function is anyone's code
            error = RemoteProtocolError(f"an answer could not be read: {caught!r}")
        else:
            # Here, where they were read: another processor would have to fetch them first.
            self.step(partial(self.protocol.answered, request, messages))
            return
        self.step(partial(self.protocol.failed, request, error))

    def _read(self, text: str) -> list[Any]:
        try:
            messages = self._loads(text)
        except ValueError:
            kind = "HTML" if text.lstrip()[:1] == "<" else "no JSON"
            raise RemoteProtocolError(f"the server sent {kind}", retryable=True) from None
        if not isinstance(messages, list):
            raise RemoteProtocolError("the server sent no list of messages", retryable=True)
        return messages

    def _renew(self) -> None:
        error: SfPubSubError | None = None
        try:
            if self._session is not None:
                self._sessions.renew(self._session)
        except SfPubSubError as caught:
            error = caught
        self.step(partial(self.protocol.renewed, error))
