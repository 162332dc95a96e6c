"""A job that lives in a thread of its own, where no Ctrl-C interrupts it.

Python raises KeyboardInterrupt in the main thread, between any two lines. So the application's
thread opens and closes nothing: it says what is wanted, and waits. It holds no lock that the job
needs: it sets fields, puts orders into a queue, and looks at fields that the job has set.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from sfpubsub.errors import LocalProtocolError

# Seconds between checks of what the job has set. Usually its news arrive sooner.
_POLL = 0.2

# Maximum seconds to wait for a job that is ended without draining. Writing the largest batch takes
# about one second.
_ABORT_TIMEOUT = 5.0


class ThreadedJob(ABC):
    """Base class of jobs that are opened by a ``with`` block, run once, and closed.

    Everything that the job opens is closed when it has run, and at the latest when the block is
    left. If Ctrl-C interrupts a call, the job stops as with `stop`, and KeyboardInterrupt is raised
    once everything is closed; a second Ctrl-C ends it without draining, within a few seconds.

    `stop` and the methods that return a state are thread-safe, and safe in signal handlers.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._orders: SimpleQueue[bool] = SimpleQueue()  # True: run; False: close
        self._news: SimpleQueue[None] = SimpleQueue()
        self._is_open = self._has_ended = self._is_stopping = self._is_told = False
        self._error: BaseException | None = None

    def stop(self) -> None:
        """Make `run` return soon, after writing and acking the events received so far.

        Returns immediately. Safe in signal handlers, and from any thread.
        """
        self._is_stopping = True
        self._stop()

    def __enter__(self) -> Self:
        try:
            self._thread.start()
            self._wait_until(lambda: self._is_open or self._has_ended)
            self._raise_error()
            return self  # noqa: TRY300  # Ctrl-C may hit this line, too
        except BaseException:
            self._leave(is_urgent=False)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(is_urgent=self._is_stopping and kind is KeyboardInterrupt)
        if kind is None and not self._is_told:
            self._raise_error()

    def _run(self) -> None:
        """Let the job run, and wait until it has ended and everything is closed.

        Raises:
            BaseException: The error that ended the job.
        """
        self.begin()
        self._wait_until(lambda: self._has_ended)
        self._is_told = True
        self._raise_error()

    def begin(self) -> None:
        """Let the job run in its thread, and return at once. `run` does the same, and waits.

        Raises:
            LocalProtocolError: The block has not been entered.
        """
        if self._thread.ident is None:
            raise LocalProtocolError(f"{type(self).__name__} must be run in its own with block")
        self._orders.put(True)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _leave(self, *, is_urgent: bool) -> None:
        self.stop()
        self._orders.put(False)
        if self._thread.ident is None:  # interrupted before it was started
            return
        if not is_urgent:
            try:
                self._wait_until(lambda: self._has_ended)
            except KeyboardInterrupt:  # the second one
                self._leave(is_urgent=True)
                raise
        else:
            self._abort()
            self._wait_until(lambda: self._has_ended, _ABORT_TIMEOUT)

    def _wait_until(self, is_so: Callable[[], bool], timeout: float = float("inf")) -> None:
        deadline = time.monotonic() + timeout
        while not is_so() and time.monotonic() < deadline:
            with suppress(Empty):
                self._news.get(timeout=_POLL)

    # In the job's thread.

    def _live(self) -> None:
        try:
            with ExitStack() as opened:
                self._open(opened)
                self._is_open = True
                self._news.put(None)
                if self._orders.get():
                    self._work()
        except BaseException as error:  # noqa: BLE001  # raised in the application's thread
            self._error = error
        self._has_ended = True
        self._news.put(None)

    @abstractmethod
    def _open(self, opened: ExitStack) -> None:
        """Open what the job needs; *opened* closes it again. Called in the job's thread."""

    @abstractmethod
    def _work(self) -> None:
        """Do the work until it is done or stopped. Called in the job's thread."""

    # In any thread.

    @abstractmethod
    def _stop(self) -> None:
        """Tell the parts of the job that are open to stop soon. Must not block."""

    @abstractmethod
    def _abort(self) -> None:
        """End what the job waits for, without draining."""
