"""A gRPC call that is read in gRPC's own thread, which avoids a thread switch per message.

The documented way to read a stream is ``next(call)``. For each message it starts an operation,
waits on a condition until the channel's thread has completed it, and wakes up. For responses with
one event, this is most of the cost (measured: 83 µs per response with bare grpcio, 26 µs here).
Requests come from an iterator, and another thread has to wake up to read each one.

This module starts the same operations directly: the channel's thread handles each message and
starts to receive the next one, and the calling thread sends a request.

grpcio does not document these operations. So they are used only in this file, only with tested
versions of grpcio, and only for gRPC's own call objects, not for those of an interceptor. In all
other cases `open_direct` returns None, and the call is read in the documented way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

logger = logging.getLogger("sfpubsub.transport")

# Range of grpcio versions whose sources and behaviour were checked: first version, and first
# version after the range. Outside it, grpcio's public API is used; extend the range once this
# file's tests pass with a newer version.
TRIED = ((1, 78), (1, 86))


def is_tried(version: str) -> bool:
    """Return whether grpcio *version* is in the range for which direct reading was tested."""
    major, minor = version.split(".")[:2]
    return TRIED[0] <= (int(major), int(minor)) < TRIED[1]


_IS_TRIED = is_tried(grpc.__version__)
if _IS_TRIED:
    from grpc._channel import _MultiThreadedRendezvous
    from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs

    _RECEIVE = cygrpc.OperationType.receive_message
    _SEND = cygrpc.OperationType.send_message


class DirectCall:
    """One streaming call. `send` and `half_close` are thread-safe.

    Args:
        call: The call returned by the stub. Its request iterator yields nothing and ends when
            *end_requests* is called.
        end_requests: Called to end that iterator.
    """

    def __init__(self, call: Any, end_requests: Callable[[], None]) -> None:
        self._rpc = call
        self._call = call._call
        # Guarded by its condition, as in grpcio, which keeps the started operations in ``due``.
        # grpcio serves the call until ``due`` is empty. A handler must return True only for the
        # event that empties it.
        self._state = call._state
        self._end_requests = end_requests
        self._unsent: deque[bytes] = deque()  # gRPC core accepts one message at a time
        self._closing = False
        self._received: Callable[[bytes], None] = _ignore
        self._ended: Callable[[], None] | None = None

    # Requests.

    def send(self, message: bytes) -> None:
        """Send a message after all earlier ones, without blocking.

        If the gRPC call has ended, the message is discarded.
        """
        with self._state.condition:
            self._unsent.append(message)
            self._send_next()

    def half_close(self) -> None:
        """Send the pending messages, and then signal that no further message follows."""
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
        """Start receiving, and return immediately.

        Args:
            received: Called with each message in gRPC's thread. Must not block or raise, because
                that thread also serves the other calls of the channel.
            ended: Called once, after the last message and the status have arrived, in gRPC's thread
                or the calling thread.
        """
        self._received, self._ended = received, ended
        state = self._state
        with state.condition:
            state.due.add(_RECEIVE)
            if not self._start(cygrpc.ReceiveMessageOperation(0), self._took):
                state.due.remove(_RECEIVE)
        if not self._rpc.add_callback(self._report_end):  # the call already has its status
            self._report_end()

    def _took(self, event: Any) -> bool:
        message = event.batch_operations[0].message()
        # Start the next one first, so that gRPC core receives it while this one is handled.
        if message is not None and self._start(cygrpc.ReceiveMessageOperation(0), self._took):
            self._received(message)
            return False
        state = self._state
        with state.condition:
            state.due.remove(_RECEIVE)
            is_last = not state.due
        if message is not None:
            self._received(message)
        self._report_end()
        return is_last

    def _report_end(self) -> None:
        """Report the end if the status and the last message have both arrived, in either order."""
        state = self._state
        with state.condition:
            if state.code is None or _RECEIVE in state.due:
                return
            ended, self._ended = self._ended, None
        if ended is not None:
            self._unsent.clear()
            self._received = _ignore  # drop the callback, which refers to this object's owner
            ended()

    def _start(self, operation: Any, handler: Callable[[Any], bool]) -> bool:
        """Start a gRPC operation; return False if the call has ended or gRPC rejects it."""
        try:
            return bool(self._call.operate((operation,), handler))
        except ValueError:  # rejected by gRPC core: end the call, but keep gRPC's thread running
            logger.exception("internal error: gRPC core rejected an operation; cancelling the call")
            self._rpc.cancel()
            return False


def _ignore(_message: bytes) -> None:
    """Ignore a message. This handler is used until `read` is called, and after the call ends."""


def open_direct(call: Any, end_requests: Callable[[], None]) -> DirectCall | None:
    """Return a `DirectCall` for *call*, or None if it cannot be read directly."""
    if not _IS_TRIED or type(call) is not _MultiThreadedRendezvous:
        return None
    return DirectCall(call, end_requests)
