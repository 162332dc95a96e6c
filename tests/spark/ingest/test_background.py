"""Tests of the background thread that writes while the job receives events."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from sfpubsub.errors import WriteError
from sfpubsub.spark.ingest.background import Background


def test_all_work_runs_in_one_background_thread():
    """All calls run in one background thread, one after another and in the order in which they were
    started, because the writer is not thread-safe.
    """
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return threading.get_ident()

    with Background[int]("test") as background:
        futures = [background.start(partial(work, number)) for number in range(20)]
        (thread,) = {future.result(10.0) for future in futures}
    assert thread != threading.get_ident()
    assert begun == list(range(20))


def test_failure_is_raised_when_the_result_is_requested():
    """A failed call raises its error when its result is requested, and the next call still runs."""

    def fail() -> int:
        raise WriteError("disk full")

    with Background[int]("test") as background:
        failed, next_one = background.start(fail), background.start(lambda: 7)
        with pytest.raises(WriteError, match="disk full"):
            failed.result(10.0)
        assert next_one.result(10.0) == 7


def test_leaving_the_block_waits_for_the_work():
    """The end of the `with` block waits for the work, so that no write is in progress when the
    lease is released.
    """
    release, done = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(10.0)
        done.set()

    with Background[None]("test") as background:
        background.start(work)
        release.set()
    assert done.is_set()


def test_endless_work_does_not_keep_the_process_alive():
    """A background thread that never ends does not keep the process from exiting, so a second
    Ctrl-C can end a job whose Spark hangs.
    """
    program = (
        "import threading\n"
        "from sfpubsub.spark.ingest.background import Background\n"
        "Background('test').__enter__().start(threading.Event().wait)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=300, check=False)
    assert done.returncode == 0
