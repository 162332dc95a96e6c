"""Carries out what the protocol says: one thread for its deadlines, and one for each lane.

What happens is passed to the protocol in the thread where it happens, under one lock, and what the
protocol wants is carried out there as well; only requests wait for the thread of their lane.
Nothing is decided here. The application's replay store is not touched here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sfpubsub.errors import LocalProtocolError, StreamUnavailableError
from sfpubsub.streaming.bayeux import Command, Cut, Lane, Send
from sfpubsub.streaming.protocol import State, StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.types import Gap

logger = logging.getLogger("sfpubsub.streaming")

# Longest wait for a thread at the end, in seconds; one that looks a name up is left behind.
_JOIN = 1.0


class StreamingDriver:
    """Runs one protocol from `start` until it stops. Thread-safe.

    Args:
        protocol: Owned by the driver.
        transport: The HTTP side; closed at the end.
        on_gap: Told of every position that is given up; must not wait.
    """

    def __init__(
        self,
        protocol: StreamingProtocol,
        transport: LongPolling,
        on_gap: Callable[[Gap], None] | None,
    ) -> None:
        self.protocol = protocol
        self.items = protocol.items
        """What waits for the application. Not to be taken from but by `take`."""
        self.over = True
        """Whether nothing will happen any more, or nothing yet."""
        self._transport = transport
        self._on_gap = on_gap
        self._ring: Callable[[], None]
        self._news = threading.Condition()  # its lock serialises the protocol and its commands
        self.room_at = protocol.max_pending_count - 1  # so many wait when polling goes on
        self._jobs = {lane: queue.SimpleQueue[Send | None]() for lane in Lane}
        self._threads: list[threading.Thread] = []

    def start(self, ring: Callable[[], None] = lambda: None) -> None:
        """Start the threads; they end with the protocol.

        Args:
            ring: Called in any thread when there may be news for the application; must not wait.
        """
        self._ring, self.over = ring, False
        work: dict[str, Callable[[], None]] = {"sfpubsub-streaming": self._run}
        work |= {f"sfpubsub-{lane.value}": partial(self._work, lane) for lane in Lane}
        for name, target in work.items():
            # An application that ends without closing is not held up by any of them.
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def step(self, input_: Callable[[float], None] = lambda _now: None) -> None:
        """Tell the protocol of something, or of the time, and carry out what it wants.

        Nothing happens once it is over.

        Raises:
            LocalProtocolError: The caller broke a rule; nothing has changed.
        """
        with self._news:
            if self.over:
                return
            now = time.monotonic()
            try:
                input_(now)
                self._carry_out(self.protocol.tick(now))
            except LocalProtocolError:
                raise
            except Exception as error:
                # A bug of ours, or of a callback: the application must not wait for ever.
                logger.exception("the streaming client failed")
                failure = StreamUnavailableError(f"the client failed: {error!r}", retryable=False)
                self.protocol.stop(failure)
                self._carry_out(self.protocol.tick(now))
            self.over = self.protocol.state is State.STOPPED
            for jobs in self._jobs.values() if self.over else ():
                jobs.put(None)
            self._news.notify_all()
            self._ring()

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until *condition* holds after a step, or for *timeout* seconds."""
        with self._news:
            self._news.wait_for(condition, timeout)

    def take(self) -> None:
        """Take the first item away. For one thread."""
        self.items.popleft()
        if len(self.items) == self.room_at:
            self.step()

    def join(self) -> None:
        """Wait for the end of the threads."""
        for thread in self._threads:
            thread.join(_JOIN)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._jobs[command.lane].put(command)
            elif isinstance(command, Cut):
                self._transport.cut(command.request)
            elif self._on_gap is not None:
                self._on_gap(command)

    def _run(self) -> None:
        with self._news:
            while not self.over:
                rest = self.protocol.deadline - time.monotonic()
                if rest > 0:
                    self._news.wait(min(rest, threading.TIMEOUT_MAX))
                else:
                    self.step()

    def _work(self, lane: Lane) -> None:
        while (request := self._jobs[lane].get()) is not None:
            outcome = self._transport.exchange(request)
            # Here, where it was read: another processor would have to fetch it first.
            self.step(partial(self.protocol.landed, request, outcome))
        self._transport.drop(lane)
