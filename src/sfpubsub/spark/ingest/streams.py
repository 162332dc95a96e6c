"""Several ingest jobs side by side: one thread each, one Spark session, one client.

The first one that fails stops the others in order: they write and commit what they have. Decides
nothing about events; each job (job.py) does that for its own table.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.progress import Summary
from sfpubsub.spark.raw.destination import Source
from sfpubsub.types import Health

_log = logging.getLogger("sfpubsub.spark")

# Seconds between two looks at whether a job has ended. A signal wakes the main thread by itself.
_POLL = 0.2

# Seconds that `abort` waits for writes under way; a write of the largest batch takes about one.
_ABORT_TIMEOUT = 5.0

# A namespace of a catalog, as Spark SQL writes it without quotes.
_NAMESPACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

_NOT_IN_A_NAME = re.compile(r"\W", re.ASCII)


def table_name(source: Source) -> str:
    """Return the name of a source's table in a directory of several tables.

    Every character that is no ASCII letter, digit or underscore becomes an underscore, those at the
    ends are left out: ``/event/Order_Event__e`` is ``event_Order_Event__e``. So it is a name for
    every file system and every catalog, and is not hidden from readers.
    """
    return _NOT_IN_A_NAME.sub("_", source.name).strip("_") or "source"


def table_place(source: Source, to: str, format: str) -> str:  # noqa: A002  # Spark's own word
    """Return where a source's table is among several.

    Args:
        source: Whose table it is.
        to: A directory or URL; for iceberg also ``catalog.namespace``.
        format: The tables' format.
    """
    in_catalog = format == "iceberg" and _NAMESPACE.fullmatch(to)
    return f"{to.rstrip('/')}{'.' if in_catalog else '/'}{table_name(source)}"


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
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
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
                source. The others were ended in order, and what they failed with is logged.
        """
        for stream, thread in zip(self._streams, self._threads, strict=True):
            stream.is_running = True
            thread.start()
        while any(stream.is_running for stream in self._streams):
            self._ended.wait(_POLL)
            self._ended.clear()
            if any(stream.error is not None for stream in self._streams):
                self.stop()
        failed = [stream for stream in self._streams if stream.error is not None]
        for stream in failed[1:]:
            _log.error("%s: %s", stream.source, stream.error)
        if failed:
            raise _failure(failed[0], named=len(self._streams) > 1)

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


def _failure(stream: Stream, *, named: bool) -> BaseException:
    error = stream.error
    assert error is not None  # noqa: S101  # it has failed
    if named and isinstance(error, SfPubSubError) and stream.source.name not in str(error):
        error.args = (f"{stream.source}: {error.args[0]}", *error.args[1:])
    return error
