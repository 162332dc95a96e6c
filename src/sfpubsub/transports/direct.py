"""A live grpc call, read in grpc's own thread: what grpcio does, without its hand-over a message.

The documented way to read a stream is ``next(call)``: it starts one operation, waits on a condition
until the channel's thread has completed it, and wakes up for each message. With one event in a
response that is most of what a response costs (measured: 83 µs of 83 with bare grpcio, against 26
here). A request goes out of an iterator, by another thread that has to be woken.

Here the same operations are started: a message is handed over in the channel's thread, which then
starts to receive the next one; a request is sent by the thread that has it.

grpcio does not document these operations. So only this file uses them, only with versions of grpcio
that were tested, and only for grpc's own calls, not an interceptor's. In all other cases
`open_direct` returns None, and the call is read in the documented way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

logger = logging.getLogger("sfpubsub.transport")

# The first version of grpcio whose sources and behaviour were checked, and the first one for which
# they were not. With newer ones calls are read in the documented way until the tests of this file
# have passed.
TRIED = ((1, 78), (1, 86))


def is_tried(version: str) -> bool:
    """Return whether calls of that version of grpcio can be read directly."""
    major, minor = version.split(".")[:2]
    return TRIED[0] <= (int(major), int(minor)) < TRIED[1]


_IS_TRIED = is_tried(grpc.__version__)
if _IS_TRIED:
    from grpc._channel import _MultiThreadedRendezvous
    from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs

    _RECEIVE = cygrpc.OperationType.receive_message
    _SEND = cygrpc.OperationType.send_message


class DirectCall:
    """One streaming call. `send`, `half_close` and `cancel` are for any thread.

    Args:
        call: What the stub returned. Its iterator of requests ends when *end_requests* is called,
            and brings none.
        end_requests: Ends that iterator.
    """

    def __init__(self, call: Any, end_requests: Callable[[], None]) -> None:
        self._rpc = call
        self._call = call._call
        # Guarded by its condition, as in grpcio, which keeps in ``due`` what was started. A call
        # lives until the event after which nothing is due; its handler has to return True for that
        # one, and for no other.
        self._state = call._state
        self._end_requests = end_requests
        self._unsent: deque[bytes] = deque()  # core takes one message at a time
        self._closing = False
        self._received: Callable[[bytes], None] = _ignore
        self._ended: Callable[[], None] | None = None

    # Requests.

    def send(self, message: bytes) -> None:
        """Send a message after those before it; never waits. After the end it goes nowhere."""
        with self._state.condition:
            self._unsent.append(message)
            self._send_next()

    def half_close(self) -> None:
        """Say that no further message follows; those before it go first."""
        with self._state.condition:
            self._closing = True
            self._send_next()

    def _send_next(self) -> None:
        state = self._state
        if _SEND in state.due:
            return
        if self._unsent and state.code is None:
            operation = cygrpc.SendMessageOperation(self._unsent.popleft(), 0)
            state.due.add(_SEND)
            if not self._start(operation, self._sent):
                state.due.remove(_SEND)
        elif self._closing:
            self._end_requests()

    def _sent(self, _event: Any) -> bool:
        state = self._state
        with state.condition:
            state.due.remove(_SEND)
            self._send_next()
            return not state.due

    # Messages.

    def read(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Begin to receive; returns at once.

        Args:
            received: Called with each message in grpc's thread. Must not wait, nor raise: the other
                calls of the channel are served by that thread, too.
            ended: Called once, there or here, when nothing follows and the status is known.
        """
        self._received, self._ended = received, ended
        state = self._state
        with state.condition:
            state.due.add(_RECEIVE)
            if not self._start(cygrpc.ReceiveMessageOperation(0), self._took):
                state.due.remove(_RECEIVE)
        if not self._rpc.add_callback(self._look):  # has its status already
            self._look()

    def _took(self, event: Any) -> bool:
        message = event.batch_operations[0].message()
        # The next one first: core works on it while this one is handled.
        if message is not None and self._start(cygrpc.ReceiveMessageOperation(0), self._took):
            self._received(message)
            return False
        state = self._state
        with state.condition:
            state.due.remove(_RECEIVE)
            is_last = not state.due
        if message is not None:
            self._received(message)
        self._look()
        return is_last

    def _look(self) -> None:
        """Say so if that was the end: of a status and the last message either may come first."""
        state = self._state
        with state.condition:
            if state.code is None or _RECEIVE in state.due:
                return
            ended, self._ended = self._ended, None
        if ended is not None:
            self._unsent.clear()
            self._received = _ignore  # which refers to the owner of this
            ended()

    def _start(self, operation: Any, handler: Callable[[Any], bool]) -> bool:
        """Start an operation; return False if the call is over."""
        try:
            return bool(self._call.operate((operation,), handler))
        except ValueError:  # core refuses it: then the call has to end, and grpc's thread continue
            logger.exception("internal error: an operation was refused")
            self._rpc.cancel()
            return False


def _ignore(_message: bytes) -> None:
    """Take a message that nobody waits for."""


def open_direct(call: Any, end_requests: Callable[[], None]) -> DirectCall | None:
    """Return *call* as one that is read directly, if it can be."""
    if not _IS_TRIED or type(call) is not _MultiThreadedRendezvous:
        return None
    return DirectCall(call, end_requests)
