"""The receipts of a publisher's events, and the thread that runs their callbacks.

Callbacks are code of the application: they may take long, publish more events, or fail. So they run
in a thread of the publisher that does nothing else, and never in a thread of the client.

An application's thread may be interrupted at any line, even while it holds the lock of a
`concurrent.futures.Future`. So the methods of a receipt use no lock, and a result is set without
one. Only the functions of `concurrent.futures` use the lock that a receipt inherits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from sfpubsub.client.publishing import Outbound
from sfpubsub.errors import PublishError
from sfpubsub.types import PublishResult

logger = logging.getLogger("sfpubsub.client")


class Receipt(Future[PublishResult]):
    """The future of an event's result. Thread-safe.

    An event that was handed over cannot be cancelled.
    """

    def __init__(self, callbacks: Callbacks, event_id: str) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.event_id: str = event_id
        """Id of the event."""
        self._callbacks = callbacks
        self._waiting: deque[Callable[[Future[PublishResult]], object]] = deque()
        self._found: PublishResult | None = None
        self._is_announced = False

    def result(self, timeout: float | None = None) -> PublishResult:
        """Wait for the result and return it.

        Args:
            timeout: Maximum time to wait, in seconds. None means no limit; the publisher's own
                timeout then limits the wait.

        Raises:
            PublishError: The event has failed; `PublishError.results` has its result. `flush` and
                `close` do not raise it again.
            TimeoutError: There is no result yet.
        """
        found = self._wait(timeout)
        if not found.ok:
            raise self._callbacks.outbound.failure_of(found)
        return found

    def exception(self, timeout: float | None = None) -> PublishError | None:
        """Wait like `result`, and return the error that it would raise; None if there is none."""
        found = self._wait(timeout)
        return None if found.ok else self._callbacks.outbound.failure_of(found)

    def _wait(self, timeout: float | None) -> PublishResult:
        self._callbacks.outbound.wait(self.done, timeout)
        if self._found is None:
            raise TimeoutError(f"event {self.event_id} has no result yet")
        return self._found

    def done(self) -> bool:
        """Return whether the result is known."""
        return self._found is not None

    def running(self) -> bool:
        """Return whether the result is not known yet."""
        return self._found is None

    def cancel(self) -> bool:
        """Return False: the event was handed over, and may already be published."""
        return False

    def cancelled(self) -> bool:
        """Return False; see `cancel`."""
        return False

    def add_done_callback(self, fn: Callable[[Future[PublishResult]], object]) -> None:
        """Call *fn* with this receipt once the result is known, in a thread of the publisher.

        That thread runs one callback at a time. A callback that sends events does not wait while
        too many are pending; see `Publisher.send`. An exception is logged.
        """
        self._waiting.append(fn)
        if self.done():
            self._callbacks.add(self)

    def settle(self, result: PublishResult) -> None:
        """Set the result. For the client."""
        self._found = result

    def next_callback(self) -> Callable[[Future[PublishResult]], object] | None:
        """Return the next callback to call; None if there is none. For the client."""
        if not self._is_announced:
            self._is_announced = True
            self._announce()
        return self._waiting.popleft() if self._waiting else None

    def _announce(self) -> None:
        # For `concurrent.futures.wait` and `as_completed`, which do not call the methods above.
        found = self._found
        assert found is not None  # noqa: S101  # it is done
        if found.ok:
            self.set_result(found)
        else:
            self.set_exception(self._callbacks.outbound.error_of(found))


class Callbacks:
    """Runs the callbacks of a publisher's receipts, in the order of the results. Thread-safe.

    The thread starts with the first result, and ends once the publisher has ended.
    """

    outbound: Outbound[Receipt]
    """The publisher's events; set before the first event is sent."""

    def __init__(self) -> None:
        self._due: deque[Receipt] = deque()  # receipts with a result
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._current: tuple[Receipt, Callable[..., object]] | None = None

    def settle(self, outcomes: Sequence[tuple[Receipt, PublishResult]]) -> None:
        """Set the results of receipts. Called by threads of the client, one at a time."""
        for receipt, result in outcomes:
            receipt.settle(result)
            self._due.append(receipt)
        if self._thread is None:
            name = f"sfpubsub-callbacks {self.outbound.topic}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread = thread
            thread.start()

    def add(self, receipt: Receipt) -> None:
        """Run the callbacks of a receipt that had its result before they were added."""
        self._due.append(receipt)
        self.outbound.driver.wake()
        if self._has_ended:
            self._run_due()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the one that runs callbacks."""
        return threading.current_thread() is self._thread

    def finish(self, timeout: float) -> str:
        """Wait until the callbacks of a publisher that has ended have returned.

        Args:
            timeout: Maximum time to wait, in seconds.

        Returns:
            What is still running; an empty string if nothing is.
        """
        if self.is_current or self.outbound.wait(self._is_through, timeout):
            return ""
        current = self._current
        if current is None:
            return "the callbacks of some events have not been called yet"
        receipt, callback = current
        name = getattr(callback, "__qualname__", None) or repr(callback)
        return f"the callback {name} of event {receipt.event_id} has not returned"

    def _is_through(self) -> bool:
        return self._thread is None or self._has_ended

    def _run(self) -> None:
        outbound = self.outbound
        while True:
            changes = outbound.driver.changes
            self._run_due()
            if outbound.is_over and not self._due:
                break
            outbound.driver.wait(changes, None)
        self._has_ended = True
        self._run_due()  # what `add` has added in between
        outbound.driver.wake()

    def _run_due(self) -> None:
        while True:
            try:
                receipt = self._due.popleft()
            except IndexError:
                return
            while (callback := receipt.next_callback()) is not None:
                self._call(receipt, callback)

    def _call(self, receipt: Receipt, callback: Callable[[Future[PublishResult]], Any]) -> None:
        self._current = receipt, callback
        try:
            callback(receipt)
        except BaseException:  # of the application; the other callbacks still run
            logger.exception(
                "a callback of event %s on %s failed", receipt.event_id, self.outbound.topic
            )
        finally:
            self._current = None
