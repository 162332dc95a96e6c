"""Call gRPC in a thread that signals do not interrupt."""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def apart(call: Callable[[], T]) -> T:
    """Return the result of *call* or raise its error.

    Python runs signal handlers, such as that of Ctrl-C, in the main thread. An interruption while
    gRPC holds a lock of its channel would leave the lock held, and every call of the channel would
    hang. So in the main thread, *call* runs in another one. If the wait is interrupted, the call
    goes on, and its result is dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    # Not a Thread or a future, whose methods can be interrupted while they hold a lock.
    outcome: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # noqa: BLE001  # raised in the calling thread
            outcome.put((None, error))

    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:  # since Python 3.12, at the end of the interpreter
        return call()
    found, error = outcome.get()
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # the first element of a pair without an error
