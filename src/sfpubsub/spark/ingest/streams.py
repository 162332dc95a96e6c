"""Several ingest jobs side by side: one thread each, one table, one client.

One that fails stops the others in order, so that they write and commit what they have; or they go
on without it. A table that cannot be written stops all. Decides nothing about events; each job
(job.py) does that for its own source.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from sfpubsub.errors import SfPubSubError, WriteError
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.progress import Summary
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import Health

_log = logging.getLogger("sfpubsub.spark")

# Seconds between checks of whether a job has ended. A signal wakes the main thread by itself.
_POLL = 0.2

# Seconds that `abort` waits for writes under way; a write of the largest batch takes about one.
_ABORT_TIMEOUT = 5.0

OnFailure: TypeAlias = Literal["stop", "continue"]


class Watched(Protocol):
    """A subscription, as far as words about it go."""

    def health(self) -> Health:
        """Return what it is doing, or did last."""
        ...


@dataclass
class Stream:
    """One job with what belongs to it."""

    source: Source
    job: IngestJob
    subscription: Watched
    block: AbstractContextManager[Any]
    """The job runs in it; leaving it drains the subscription."""
    finish: Callable[[], None]
    """Called in the job's thread after the drain, whatever came before."""
    summary: Summary | None = None
    """How the job ended; None while it runs, and if it failed."""
    error: BaseException | None = None
    """What it failed with."""
    is_running: bool = False

    def run(self) -> None:
        """Run the job, and drain."""
        with self.block:
            self.summary = self.job.run()


class Streams:
    """Runs jobs until all have ended.

    Args:
        streams: One or more, opened.
        on_failure: What becomes of the others when a source fails.
    """

    def __init__(self, streams: Sequence[Stream], on_failure: OnFailure = "stop") -> None:
        self._streams = streams
        self._on_failure = on_failure
        self._told: list[Stream] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(stream,), name=f"ingest {stream.source.name}", daemon=True
            )
            for stream in streams
        ]

    def stop(self) -> None:
        """End all jobs soon and in order. Safe in signal handlers."""
        for stream in self._streams:
            stream.job.stop()

    def run(self) -> None:
        """Run all jobs; for the main thread, which stays free for signals.

        Raises:
            SfPubSubError: What the first job to fail failed with; with several the text names its
                source. The others have ended in order, and what they failed with is logged.
        """
        for stream, thread in zip(self._streams, self._threads, strict=True):
            stream.is_running = True
            thread.start()
        while any(stream.is_running for stream in self._streams):
            self._ended.wait(_POLL)
            self._ended.clear()
            self._look()
        self._look()
        if self._told:
            raise _failure(self._told[0], named=len(self._streams) > 1)

    def _look(self) -> None:
        """See whether one has failed since the last time; log all but the first, which is raised.

        With those that continue, the first one is logged as well: its end may be days away.
        """
        for stream in self._streams:
            if stream.error is None or stream in self._told:
                continue
            self._told.append(stream)
            if self._on_failure == "continue" and _is_of_its_source(stream.error):
                _log.error("%s failed, and is left out: %s", stream.source, stream.error)
                continue
            if len(self._told) > 1:
                _log.error("%s: %s", stream.source, stream.error)
            self.stop()

    def join(self) -> None:
        """Wait a moment for jobs whose subscriptions were aborted."""
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(_ABORT_TIMEOUT)

    def _run(self, stream: Stream) -> None:
        for step in (stream.run, stream.finish):
            try:
                step()
            except BaseException as error:  # noqa: BLE001  # raised in the main thread
                if stream.error is None:
                    stream.error, stream.summary = error, None
                else:  # the second must not hide the first
                    _log.warning("%s: %s", stream.source, error)
        stream.is_running = False
        self._ended.set()


def _is_of_its_source(error: BaseException) -> bool:
    """Whether the other sources can continue: the table is writable and nothing is broken here."""
    return isinstance(error, SfPubSubError) and not isinstance(error, WriteError)


def _failure(stream: Stream, *, named: bool) -> BaseException:
    error = stream.error
    assert error is not None  # noqa: S101  # it has failed
    if named and isinstance(error, SfPubSubError) and stream.source.name not in str(error):
        error.args = (f"{stream.source}: {error.args[0]}", *error.args[1:])
    return error
