"""A thread pool for gRPC calls. It starts threads on demand, up to a limit, and ends idle threads.

The executor of the standard library keeps every thread that it has started: after 200 concurrent
streams, it would keep 200 threads. This module does not depend on gRPC.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S = 1.0
"""Seconds after which an idle thread ends. Starting a thread takes about 0.1 ms."""


class Workers(Executor):
    """Runs up to `most` work items at a time; further items wait, in the order of their submission.

    Thread-safe. The threads are daemons, so that a stuck thread does not keep the process alive.

    Args:
        most: Maximum number of threads.
        name: Name of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()  # guards everything below
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule a function to run in a thread; see `Executor.submit`."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this thread pool was shut down and accepts no more work")
            self._work.append((future, lambda: fn(*args, **kwargs)))
            if self._idle >= len(self._work):
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; see `Executor.shutdown`."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                while self._work:
                    self._work.popleft()[0].cancel()
            self._changed.notify_all()
            while wait and self._threads:
                self._changed.wait()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            future, work = found
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised through the future
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, work, found  # an idle thread must not keep a call alive

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next work item, or None if this thread must end because it has been idle for
        `_IDLE_S` or the pool was shut down.
        """
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(lambda: self._work or self._closed, _IDLE_S)
                if self._work:
                    return self._work.popleft()
            finally:
                self._idle -= 1
            self._threads -= 1
            self._changed.notify_all()
            return None
