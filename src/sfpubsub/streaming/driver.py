"""Carries out what the protocol says: one thread for its deadlines, and one for each lane.

What happens is handed to the protocol under one lock: what the application wants, failures and
deadlines through an inbox, answers by the lane that has read them. Nothing is decided here. The
application's replay store is not touched here.
"""

from __future__ import annotations

import logging
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming.channels import Stage
from sfpubsub.streaming.commands import (
    Command,
    Cut,
    Deliver,
    Lane,
    Renew,
    Send,
    Settle,
)
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.protocol import State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.types import Gap

logger = logging.getLogger("sfpubsub.streaming")

# Longest wait for the threads at the end, in seconds; one that looks a name up is left behind.
_JOIN = 1.0

_Step: TypeAlias = Callable[[float], Sequence[Command]]


class StreamingDriver:
    """Runs one protocol until it stops. Thread-safe.

    Args:
        protocol: Owned by the driver's thread once it is opened.
        sessions: Where tokens come from.
        transport: The HTTP side; closed at the end.
        path: Of every request.
        loads: Reads JSON.
        notify: Called in the driver's thread when there is news for the application.
        on_gap: Told of every position that is given up; must not wait.
    """

    def __init__(
        self,
        protocol: StreamingProtocol,
        sessions: CurrentSession,
        transport: LongPolling,
        path: str,
        loads: Callable[[str], Any],
        notify: Callable[[], None],
        on_gap: Callable[[Gap], None] | None,
    ) -> None:
        self._protocol = protocol
        self._sessions = sessions
        self._transport = transport
        self._path = path
        self._loads = loads
        self._notify = notify
        self._on_gap = on_gap
        self._session: Session | None = None  # of the last request
        self._inbox: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._jobs: dict[Lane, queue.SimpleQueue[Callable[[], None] | None]] = {
            lane: queue.SimpleQueue() for lane in Lane
        }
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"sfpubsub-{lane.value}")
            for lane in Lane
        ]
        self._threads.append(threading.Thread(target=self._run, name="sfpubsub-streaming"))
        self._lock = threading.Lock()  # serialises the protocol and its commands
        self._ending = threading.Lock()  # a call comes before the end and is answered, or after
        self._waiters: set[Future[None]] = set()
        self.items: deque[StreamingMessage | SfPubSubError] = deque()
        """What waits for the application, errors in their place among the messages."""
        self.over = False
        """Whether nothing will be put into `items` any more."""

    # What the application wants; each call returns at once.

    def open(self) -> Future[None]:
        """Begin; the future is done when the server has answered the first connect."""
        for thread in self._threads:
            thread.daemon = True  # an application that ends without closing is not held up
            thread.start()
        return self._call(lambda waiter, now: self._protocol.open(waiter, now))

    def subscribe(self, channel: str, start: int, *, rewind: bool) -> Future[None]:
        """Subscribe; the future is done when the server has confirmed it."""
        return self._call(
            lambda waiter, now: self._protocol.subscribe(channel, start, waiter, now, rewind=rewind)
        )

    def unsubscribe(self, channel: str) -> Future[None]:
        """Unsubscribe; the future is done when the server has confirmed it."""
        return self._call(lambda waiter, now: self._protocol.unsubscribe(channel, waiter, now))

    def close(self) -> None:
        """Begin the goodbye; `join` or `notify` tell its end."""
        self._inbox.put(lambda now: self._protocol.close(now))

    def join(self) -> None:
        """Wait for the end of the goodbye."""
        self._threads[-1].join()

    def consumed(self) -> None:
        """The application has taken an item."""
        if self._protocol.is_full and not self._is_full():
            self._inbox.put(self._protocol.room)

    @property
    def subscriptions(self) -> set[str]:
        """The channels that the server has confirmed, or that are being resumed."""
        return {
            channel.name
            for channel in self._protocol.channels
            if channel.waiter is None or channel.stage in (Stage.LEAVING, Stage.LEFT)
        }

    def _call(self, step: Callable[[Future[None], float], Sequence[Command]]) -> Future[None]:
        waiter: Future[None] = Future()

        def tried(now: float) -> Sequence[Command]:
            try:
                return step(waiter, now)
            except LocalProtocolError as error:
                return [Settle(waiter, error)]

        with self._ending:
            if self.over:
                waiter.set_exception(LocalProtocolError("the client is closed: open it first"))
            else:
                self._waiters.add(waiter)
                self._inbox.put(tried)
        return waiter

    # The driver's thread.

    def _run(self) -> None:
        try:
            while self._protocol.state is not State.STOPPED:
                deadline = self._protocol.deadline
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    step = self._inbox.get(timeout=wait)
                except queue.Empty:
                    step = self._protocol.tick
                self._take(step)
        except Exception as error:
            # A bug of ours, or of a callback: the application must not wait for ever.
            logger.exception("the streaming client failed")
            failure = StreamUnavailableError(f"the client failed: {error!r}", retryable=False)
            self.items.append(failure)
        finally:
            self._end()

    def _take(self, step: _Step) -> None:
        with self._lock:
            if self.over or self._protocol.state is State.STOPPED:
                return
            self._carry_out(step(time.monotonic()))
            if self._protocol.is_full and not self._is_full():
                # The application has taken the rest while the answer was on its way here.
                self._carry_out(self._protocol.room(time.monotonic()))

    def _is_full(self) -> bool:
        return self._protocol.is_full_with(len(self.items))

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._jobs[command.lane].put(partial(self._exchange, command))
            elif isinstance(command, Deliver):
                self.items.extend(command.items)
                self._notify()
            elif isinstance(command, Cut):
                self._transport.cut(command.lane, command.ticket)
            elif isinstance(command, Settle):
                self._settle(command.waiter, command.error)
            elif isinstance(command, Renew):
                self._jobs[Lane.ASK].put(self._renew)
            elif self._on_gap is not None:
                self._on_gap(command.gap)

    def _settle(self, waiter: object, error: SfPubSubError | None) -> None:
        assert isinstance(waiter, Future)  # noqa: S101  # the protocol hands back what it was given
        self._waiters.discard(waiter)
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    def _end(self) -> None:
        with self._ending:
            self.over = True
        for lane, jobs in self._jobs.items():
            self._transport.cut(lane, sys.maxsize)
            jobs.put(None)
        for thread in self._threads[:-1]:
            thread.join(_JOIN)
        self._transport.close()
        for waiter in list(self._waiters):  # calls that came too late for the protocol
            self._settle(waiter, LocalProtocolError("the client was closed"))
        self._notify()

    # The lanes' threads.

    def _work(self, lane: Lane) -> None:
        while (job := self._jobs[lane].get()) is not None:
            job()

    def _exchange(self, request: Send) -> None:
        ticket = request.ticket
        chance = random.random()  # noqa: S311  # spreads clients over time
        try:
            self._session = session = self._sessions.get()
            text = self._transport.post(request, session, self._path)
            messages = self._read(text)
        except SfPubSubError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001  # a JSON function is anyone's code
            error = RemoteProtocolError(f"an answer could not be read: {caught!r}")
        else:
            self._answered(
                lambda now: self._protocol.answered(ticket, messages, now, len(self.items), chance)
            )
            return
        self._inbox.put(lambda now: self._protocol.failed(ticket, error, now, chance))

    def _answered(self, step: _Step) -> None:
        # Here, where the messages were read: another processor would have to fetch them first.
        try:
            self._take(step)
        except Exception as error:  # noqa: BLE001  # raised again where its end is seen to
            failure = error

            def fail(now: float) -> Sequence[Command]:
                raise failure

            self._inbox.put(fail)
        else:
            self._inbox.put(_nothing)  # there may be another deadline, or an end

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
        chance = random.random()  # noqa: S311  # as above
        error: SfPubSubError | None = None
        try:
            if self._session is not None:
                self._sessions.renew(self._session)
        except SfPubSubError as caught:
            error = caught
        self._inbox.put(lambda now: self._protocol.renewed(error, now, chance))


def _nothing(now: float) -> Sequence[Command]:
    return ()
