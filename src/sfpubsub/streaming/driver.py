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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sfpubsub.auth.session import CurrentSession
from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming.bayeux import Command, Cut, Lane, Send
from sfpubsub.streaming.protocol import State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.types import Gap

logger = logging.getLogger("sfpubsub.streaming")

# Longest wait for a lane's thread at the end, in seconds; one that looks a name up is left behind.
_JOIN = 1.0


class StreamingDriver:
    """Runs one protocol until it stops. Thread-safe.

    Args:
        protocol: Owned by the driver.
        sessions: Where tokens come from.
        transport: The HTTP side; closed at the end.
        loads: Reads JSON.
        notify: Called in any thread when there may be news for the application; must not wait.
        on_gap: Told of every position that is given up; must not wait.
    """

    def __init__(
        self,
        protocol: StreamingProtocol,
        sessions: CurrentSession,
        transport: LongPolling,
        loads: Callable[[str], Any],
        notify: Callable[[], None],
        on_gap: Callable[[Gap], None] | None,
    ) -> None:
        self.protocol = protocol
        self._items = protocol.items  # looked up for each message
        self._sessions = sessions
        self._transport = transport
        self._loads = loads
        self._notify = notify
        self._on_gap = on_gap
        self._jobs: dict[Lane, queue.SimpleQueue[Send | None]] = {
            lane: queue.SimpleQueue() for lane in Lane
        }
        self._clock = threading.Condition()  # its lock serialises the protocol and its commands
        self._room_at = protocol.max_pending_count - 1  # so many wait when polling goes on
        self._wakes_at = math.inf  # when the thread for the deadlines will look again
        # An application that ends without closing is not held up by any of them.
        self._lanes = [
            threading.Thread(
                target=self._work, args=(lane,), name=f"sfpubsub-{lane.value}", daemon=True
            )
            for lane in Lane
        ]
        self._timer = threading.Thread(target=self._run, name="sfpubsub-streaming", daemon=True)
        self.over = False
        """Whether nothing will happen any more."""

    def start(self) -> None:
        """Start the threads; they end with the protocol."""
        for thread in (*self._lanes, self._timer):
            thread.start()

    def step(self, input_: Callable[[float], None] = lambda _now: None) -> None:
        """Tell the protocol of something, or of the time, and carry out what it wants.

        Nothing happens once it is over.

        Raises:
            LocalProtocolError: The caller broke a rule; nothing has changed.
        """
        with self._clock:
            if self.over:
                return
            try:
                now = time.monotonic()
                input_(now)
                self._carry_out(self.protocol.tick(now))
            except LocalProtocolError:
                raise
            except Exception as error:
                # A bug of ours, or of a callback: the application must not wait for ever.
                logger.exception("the streaming client failed")
                self.protocol.stop(
                    StreamUnavailableError(f"the client failed: {error!r}", retryable=False)
                )
                self._carry_out(self.protocol.tick(now))
            self.over = self.protocol.state is State.STOPPED
            self._notify()
            if self.over or self.protocol.deadline < self._wakes_at:
                self._clock.notify()

    def take(self) -> None:
        """Take the first item away. For one thread."""
        self._items.popleft()
        if len(self._items) == self._room_at:
            self.step()

    def join(self) -> None:
        """Wait for the end of the threads."""
        self._timer.join()

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._jobs[command.lane].put(command)
            elif isinstance(command, Cut):
                self._transport.cut(command.request)
            elif self._on_gap is not None:
                self._on_gap(command)

    def _run(self) -> None:
        with self._clock:
            while not self.over:
                self._wakes_at = self.protocol.deadline
                rest = self._wakes_at - time.monotonic()
                if rest > 0:
                    self._clock.wait(min(rest, threading.TIMEOUT_MAX))
                else:
                    self.step()
        for jobs in self._jobs.values():
            jobs.put(None)
        for thread in self._lanes:
            thread.join(_JOIN)
        for lane in Lane:
            self._transport.drop(lane)

    def _work(self, lane: Lane) -> None:
        while (request := self._jobs[lane].get()) is not None:
            outcome = self._exchange(request)
            # Here, where it was read: another processor would have to fetch it first.
            self.step(partial(self.protocol.landed, request, outcome))

    def _exchange(self, request: Send) -> Sequence[Any] | SfPubSubError:
        try:
            request.session = self._sessions.get_session(request.refused)
            text = self._transport.post(request, request.session)
            try:
                messages = self._loads(text)
            except ValueError:
                kind = "HTML" if text.lstrip()[:1] == "<" else "no JSON"
                return RemoteProtocolError(f"the server sent {kind}", retryable=True)
        except SfPubSubError as error:
            return error
        except Exception as error:  # noqa: BLE001  # a JSON function is anyone's code
            # Its text may be that of the answer, or of the request.
            return RemoteProtocolError(f"an answer could not be read: {type(error).__name__}")
        if not isinstance(messages, list):
            return RemoteProtocolError("the server sent no list of messages", retryable=True)
        return messages
