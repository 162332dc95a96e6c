"""A thread that does one piece of work at a time, beside the thread that submits it.

Not `concurrent.futures`: its threads keep the interpreter from ending, and a write into a Spark
that is stuck may never end.
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
    """One daemon thread. Not thread-safe; a context manager, whose end waits for the work.

    Args:
        name: The thread's.
        patience: Seconds that the end waits for the work; None for as long as it takes.
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
        """Have *work* done after what was submitted before, and return its future result."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def _run(self) -> None:
        for future, work in iter(self._work.get, None):
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised when the result is requested
                future.set_exception(error)
            del future, work  # or this thread would keep a batch alive until the next one comes
