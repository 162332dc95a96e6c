"""A job in a thread of its own: whatever line Ctrl-C hits, nothing stays open or hangs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import pytest

from sfpubsub.errors import WriteError
from sfpubsub.spark.runtime import threaded
from sfpubsub.spark.runtime.threaded import ThreadedJob
from tests.conftest import until


class Job(ThreadedJob):
    """A job that works until it is stopped or aborted."""

    def __init__(self, work: Callable[[], object] = list) -> None:
        super().__init__("job")
        self.log: list[str] = []
        self._do = work
        self._ends = threading.Event()

    def run(self) -> str:
        """Run, and return a result."""
        self._run()
        return "done"

    def _open(self, opened: ExitStack) -> None:
        self.log.append("open")
        opened.callback(self.log.append, "close")

    def _work(self) -> None:
        self.log.append("work")
        self._do()
        until(lambda: self._is_stopping or self._ends.is_set(), "the stop")

    def _stop(self) -> None:
        pass

    def _abort(self) -> None:
        self._ends.set()


@contextmanager
def interrupted_at(number: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt once in the block, at line *number* of the job that is reached. Yield
    a list that then has the place.
    """
    left, places, entered = number, [], set()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != threaded.__file__ or places:
            return None
        # Nobody can handle an interrupt at the first line of `__exit__`: the block has been left,
        # and what would close the job has not begun. Once it has run, there is nothing to close.
        place = (frame.f_code.co_name, frame.f_lineno, id(frame))
        is_first = frame.f_code.co_name == "__exit__" and id(frame) not in entered
        entered.add(id(frame))
        if event == "line" and not is_first and place not in seen:
            seen.add(place)
            left -= 1
            if not left:
                places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    seen: set[tuple[str, int, int]] = set()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_line_closes_everything():
    """Wherever Ctrl-C hits the application's thread, everything that was opened is closed, and the
    interrupt is raised, unless the job was done.
    """
    number = 0
    while True:
        number += 1
        job: Job = Job(lambda: job.stop())  # noqa: B023  # called at once
        with interrupted_at(number) as places:
            try:
                with job:
                    assert job.run() == "done"
                was_raised = False
            except KeyboardInterrupt:
                was_raised = True
        assert was_raised == bool(places)
        if job._thread.ident is not None:
            until(lambda: job._has_ended, f"the end after {places}")  # noqa: B023
        assert job.log.count("open") == job.log.count("close"), places
        if not places:
            break
    assert number > 25, "the lines of the path"


def test_a_first_interrupt_drains_and_a_second_one_aborts():
    """The work ends as after a stop, or, if it does not end, within a time."""
    aborted: list[Job] = []

    class Stubborn(Job):
        def _work(self) -> None:
            self.log.append("work")
            raise_in_main()
            until(lambda: self._is_stopping, "the stop")
            raise_in_main()
            until(lambda: self._ends.is_set(), "the abort")
            aborted.append(self)

    job = Stubborn()
    with pytest.raises(KeyboardInterrupt), job:
        job.run()
    assert aborted == [job]
    assert job.log == ["open", "work", "close"]


def raise_in_main() -> None:
    """Send Ctrl-C to this process's main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_errors_are_raised_where_the_program_waits():
    """An error of the opening is raised on entry, one of the work by `run`, and one that nobody was
    told at the end of the block, unless another error has ended it.
    """

    class Broken(Job):
        def _open(self, opened: ExitStack) -> None:
            super()._open(opened)
            raise WriteError("opening")

    broken = Broken()
    with pytest.raises(WriteError, match="opening"), broken:
        raise AssertionError("the block was entered")
    assert broken.log == ["open", "close"]

    def fail() -> None:
        raise WriteError("working")

    job = Job(fail)
    with job, pytest.raises(WriteError, match="working"):
        job.run()
    for kind, own in ((WriteError, None), (ValueError, ValueError("mine"))):
        with pytest.raises(kind), Job(fail) as unread:
            _begin_and_end(unread, own)


def _begin_and_end(job: Job, error: Exception | None) -> None:
    job.begin()
    until(lambda: job._has_ended, "the end")
    if error is not None:
        raise error
