"""The thread that writes beside the one that receives."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from sfpubsub.errors import WriteError
from sfpubsub.spark.ingest.background import Background


def test_work_is_done_in_order_in_one_other_thread():
    """The writer is not thread-safe: one thread, one piece of work at a time."""
    with Background[int]("test") as background:
        futures = [background.start(threading.get_ident) for _ in range(3)]
        (thread,) = {future.result(10.0) for future in futures}
    assert thread != threading.get_ident()


def test_a_failure_is_raised_where_the_result_is_asked_for():
    """And the next piece of work is done all the same."""

    def fail() -> int:
        raise WriteError("disk full")

    with Background[int]("test") as background:
        failed, next_one = background.start(fail), background.start(lambda: 7)
        with pytest.raises(WriteError, match="disk full"):
            failed.result(10.0)
        assert next_one.result(10.0) == 7


def test_the_end_waits_for_the_work():
    """A lease that is given up after that has no write of its own behind it."""
    release, done = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(10.0)
        done.set()

    with Background[None]("test") as background:
        background.start(work)
        release.set()
    assert done.is_set()


def test_work_that_never_ends_does_not_keep_the_process():
    """A second Ctrl-C ends a job whose Spark is stuck."""
    program = (
        "import threading\n"
        "from sfpubsub.spark.ingest.background import Background\n"
        "Background('test').__enter__().start(threading.Event().wait)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=300, check=False)
    assert done.returncode == 0
