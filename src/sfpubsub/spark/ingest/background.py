"""A background thread that runs one task at a time.

`concurrent.futures` is not used, because its threads keep the interpreter from exiting, and a write
may never return if Spark hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A daemon thread that runs submitted work in order. Not thread-safe.

    Use it as a context manager: on exit, it waits for the submitted work, but no longer than
    *patience*. Work that is still running then continues in the thread.

    Args:
        name: Name of the thread.
        patience: Seconds to wait for the submitted work on exit; None waits without limit.
    """

    def __init__(self, name: str, patience: float | None = None) -> None:
        self._work: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._patience = patience

    def __enter__(self) -> Background[T]:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._work.put(None)
        self._thread.join(self._patience)

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Queue *work* behind the work submitted earlier; return a future for its result."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def _run(self) -> None:
        for future, work in iter(self._work.get, None):
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised when the result is requested
                future.set_exception(error)
            del future, work  # otherwise this thread would keep a batch alive until the next one
