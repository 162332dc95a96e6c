"""Executes the commands of the protocol (protocol.py).

There is one thread for deadlines, and one for each `Lane`, which sends that lane's requests.
Each input is passed to the protocol under one lock, in the thread where it occurs. That thread also
executes the resulting commands, except for sending requests. This module makes no decisions, and it
does not access the application's replay store.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sfpubsub.errors import LocalProtocolError, StreamUnavailableError
from sfpubsub.process import CreatorProcess, one_wait
from sfpubsub.streaming.bayeux import Command, Cut, Lane, Send
from sfpubsub.streaming.protocol import StreamingProtocol
from sfpubsub.streaming.transport import LongPolling
from sfpubsub.types import Gap

logger = logging.getLogger("sfpubsub.streaming")


class StreamingDriver:
    """Runs a protocol from `start` until the protocol stops. Thread-safe.

    Args:
        protocol: Used only under the driver's lock.
        transport: Sends the requests. Its connections are closed at the end.
        on_gap: Called with a `Gap` whenever a channel continues from another position and may have
            missed events; must not block.
    """

    def __init__(
        self, protocol: StreamingProtocol, transport: LongPolling, on_gap: Callable[[Gap], None]
    ) -> None:
        self.protocol = protocol
        self.pending = protocol.channels.pending
        self.pending.on_room = self.step  # resumes fetching
        self.over = True
        """Whether the driver has ended, or has not started yet."""
        self._transport = transport
        self._on_gap = on_gap
        self._home = CreatorProcess()
        lock = threading.RLock()  # serialises the protocol and its commands
        self._news = threading.Condition(lock)
        self._alarm = threading.Condition(lock)  # wakes the thread for deadlines
        self._wakes_at = 0.0  # when that thread wakes by itself
        self._jobs = {lane: queue.SimpleQueue[Send | None]() for lane in Lane}
        self._threads: list[threading.Thread] = []

    def start(self, ring: Callable[[], None] = lambda: None) -> None:
        """Start the threads, which end when the protocol stops.

        Args:
            ring: Called after each `step`, in any thread; must not block.
        """
        self._ring, self.over = ring, False
        work: dict[str, Callable[[], None]] = {"sfpubsub-streaming": self._run}
        work |= {f"sfpubsub-{lane.value}": partial(self._work, lane) for lane in Lane}
        for name, target in work.items():
            # Daemon threads, so that an application that exits without closing is not blocked.
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def step(self, input_: Callable[[], None] = lambda: None) -> None:
        """Pass an input, or only the time, to the protocol, and execute the resulting commands.

        Does nothing if the driver has ended.

        Raises:
            LocalProtocolError: The input is not allowed; nothing has changed.
        """
        with self._news:
            if self.over:
                return
            now = time.monotonic()
            try:
                self._carry_out(self.protocol.tick(now, input_))
            except LocalProtocolError:
                raise
            except Exception as error:
                # A bug in this package or in a callback: the application must not wait forever.
                logger.exception("the streaming client failed")
                failure = StreamUnavailableError(f"the client failed: {error!r}", retryable=False)
                self._carry_out(self.protocol.tick(now, partial(self.protocol.stop, failure)))
            self.over = self.protocol.over
            for jobs in self._jobs.values() if self.over else ():
                jobs.put(None)
            self._news.notify_all()
            if self.over or self.protocol.deadline < self._wakes_at:
                self._alarm.notify()
            self._ring()

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until *condition* is true, checking it after each step.

        Returns after *timeout* seconds at the latest; None means no limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not condition():
                rest = None if deadline is None else deadline - time.monotonic()
                if rest is not None and rest <= 0:
                    break
                self._news.wait(one_wait(rest))

    def close(self) -> None:
        """Disconnect from the server, and wait up to `Pace.close` seconds for each thread.

        Does nothing in a forked child, whose parent still uses the connections.
        """
        if not self._home.is_current:
            return
        self.step(self.protocol.close)
        for thread in self._threads:
            thread.join(self.protocol.pace.close)
        for connection in self._transport.connections.values():
            connection.cut()  # in case a request is still unanswered

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._jobs[command.lane].put(command)
            elif isinstance(command, Cut):
                self._transport.connections[command.request.lane].cut()
            else:
                self._on_gap(command)

    def _run(self) -> None:
        with self._alarm:
            while not self.over:
                self._wakes_at = self.protocol.deadline
                rest = self._wakes_at - time.monotonic()
                if rest > 0:
                    self._alarm.wait(min(rest, threading.TIMEOUT_MAX))
                else:
                    self.step()

    def _work(self, lane: Lane) -> None:
        while (request := self._jobs[lane].get()) is not None:
            outcome = None  # free the last response here: this thread reuses its memory
            outcome = self._transport.exchange(request)
            # In the same thread, whose processor has the response in its cache.
            self.step(partial(self.protocol.handle_outcome, request, outcome))
        self._transport.connections[lane].drop()
