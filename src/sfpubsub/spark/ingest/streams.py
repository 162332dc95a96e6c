"""Run several ingest jobs concurrently: one thread each, one table, one client.

If a job fails, the others either continue, or write and commit the events that they have received
and then stop. If the table cannot be written, all jobs stop. This module makes no decisions about
events: each job decides about those of its own source (job.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from sfpubsub.errors import SfPubSubError, WriteError
from sfpubsub.spark.ingest.job import IngestJob, Subscription
from sfpubsub.spark.ingest.progress import Summary
from sfpubsub.spark.ingest.settings import OnFailure
from sfpubsub.spark.raw.sources import Source

_log = logging.getLogger("sfpubsub.spark")

# Seconds between checks of whether a job has ended. Usually it says so sooner.
_POLL = 0.2


class SourceSubscription(Subscription, Protocol):
    """A subscription of an `Ingest`. Its ``with`` block opens it, and drains it at the end."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any: ...

    def abort(self) -> None:
        """End it without draining. Thread-safe."""
        ...


@dataclass
class Stream:
    """The job, subscription and outcome of one source. Any thread may read it."""

    source: Source
    job: IngestJob
    subscription: SourceSubscription
    """The source's subscription. Use only `health` of it."""
    block: AbstractContextManager[Any]
    """Context in which the job runs: it opens the subscription on entry, and drains it on exit."""
    finish: Callable[[], None]
    """Called in the job's thread after the drain, even after a failure."""
    summary: Summary | None = None
    """How the job ended; None while it runs or if it failed."""
    error: BaseException | None = None
    """The error that the job failed with; None if it has not failed."""
    is_running: bool = False

    def run(self) -> None:
        """Open the subscription, run the job, then drain the subscription."""
        with self.block:
            self.summary = self.job.run()


class Streams:
    """Runs the jobs of several sources concurrently until all have ended.

    Args:
        streams: At least one stream. The thread of each job enters and leaves `Stream.block`.
        on_failure: Whether the other sources stop or continue if one fails. They always stop if the
            table cannot be written.
    """

    def __init__(self, streams: Sequence[Stream], on_failure: OnFailure = "stop") -> None:
        self._streams = streams
        self._on_failure = on_failure
        self._failed: list[Stream] = []
        self._ended = threading.Event()

    def stop(self) -> None:
        """Tell all jobs to stop after writing and acking the events received so far.

        Returns immediately. Safe to call in signal handlers.
        """
        for stream in self._streams:
            stream.job.stop()

    def run(self) -> None:
        """Run all jobs, and wait until all have ended.

        Raises:
            SfPubSubError: The first job that failed raised this error. With several sources, the
                message names the job's source. The error is raised after all jobs have ended.
                Depending on *on_failure*, the first failure stops the other jobs. If they fail
                too, their errors are only logged.
        """
        for stream in self._streams:
            stream.is_running = True
            name = f"ingest {stream.source.name}"
            threading.Thread(target=self._run, args=(stream,), name=name, daemon=True).start()
        while any(stream.is_running for stream in self._streams):
            self._ended.wait(_POLL)
            self._ended.clear()
            self._handle_failures()
        self._handle_failures()
        if self._failed:
            raise _failure(self._failed[0], named=len(self._streams) > 1)

    def _handle_failures(self) -> None:
        """Log new failures, and stop the other jobs unless they may continue.

        The first failure is logged only if the others continue; if they stop, `run` soon raises it.
        """
        for stream in self._streams:
            if stream.error is None or stream in self._failed:
                continue
            self._failed.append(stream)
            if self._on_failure == "continue" and _is_of_its_source(stream.error):
                _log.error("%s failed, continuing without it: %s", stream.source, stream.error)
                continue
            if len(self._failed) > 1:
                _log.error("%s: %s", stream.source, stream.error)
            self.stop()

    def _run(self, stream: Stream) -> None:
        for step in (stream.run, stream.finish):
            try:
                step()
            except BaseException as error:  # noqa: BLE001  # raised by `run`
                if stream.error is None:
                    stream.error, stream.summary = error, None
                else:  # a second error must not hide the first
                    _log.warning("%s: %s", stream.source, error)
        stream.is_running = False
        self._ended.set()


def _is_of_its_source(error: BaseException) -> bool:
    """Return whether *error* affects only its own source, so that the others can continue."""
    return isinstance(error, SfPubSubError) and not isinstance(error, WriteError)


def _failure(stream: Stream, *, named: bool) -> BaseException:
    error = stream.error
    assert error is not None  # noqa: S101  # it has failed
    if named and isinstance(error, SfPubSubError) and stream.source.name not in str(error):
        error.args = (f"{stream.source}: {error.args[0]}", *error.args[1:])
    return error
