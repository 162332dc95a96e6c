"""What ``sfpubsub ingest`` says: progress and words on stderr, a JSON line a source on stdout."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from sfpubsub.cli.words import counted

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.ingest.streams import Stream
    from sfpubsub.spark.raw.destination import Destination
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.types import ReplayId

# Seconds between two lines of progress of one source, where stderr is no terminal: a log of a day
# is then 17,000 lines at most.
EVERY = 5.0


class Report:
    """Words of all sources of one run. Thread-safe.

    On a terminal progress is one line that is updated, the sums of all sources. Elsewhere it is a
    line a source, for a batch that was written, at most one in `EVERY` seconds, and the last one.

    Args:
        sources: Whose run it is; with several of them each line names its own.
        clock: Steady seconds.
    """

    def __init__(
        self, sources: Sequence[Source], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._several = len(sources) > 1
        self._clock = clock
        self._updating = sys.stderr.isatty()
        self._lock = threading.Lock()  # guards what follows, and keeps lines whole
        self._shown = False
        self._progress: dict[Source, Progress] = {}
        self._told: dict[Source, float] = {}
        self._untold: set[Source] = set()

    def say(self, text: str, source: Source | None = None) -> None:
        """Print a line for people."""
        with self._lock:
            self._line(text, source)

    def progress(self, source: Source, progress: Progress) -> None:
        """Take what a source has done so far."""
        with self._lock:
            self._progress[source] = progress
            now = self._clock()
            if self._updating:
                text = _progress_text(list(self._progress.values()))
                click.echo(f"\r\033[K{text}", err=True, nl=False)
                self._shown = True
            elif now - self._told.get(source, now - EVERY) >= EVERY:
                self._line(_progress_text([progress]), source)
                self._told[source] = now
                self._untold.discard(source)
            else:
                self._untold.add(source)

    def end(self) -> None:
        """Print the progress that was not printed yet."""
        with self._lock:
            if self._shown:
                click.echo(err=True)
                self._shown = False
            for source in self._untold:
                self._line(_progress_text([self._progress[source]]), source)
            self._untold.clear()

    def _line(self, text: str, source: Source | None) -> None:
        if self._shown:  # what was updated stays, and the line begins a new one
            click.echo(err=True)
            self._shown = False
        click.echo(f"{source}: {text}" if self._several and source else text, err=True)


def summary_line(stream: Stream, destination: Destination) -> str:
    """Return what one source did, as JSON; docs/how-to/ingest.md explains the keys."""
    progress, source = stream.job.progress, stream.source
    health = stream.subscription.health()
    record: dict[str, Any] = {
        source.kind: source.name,
        "to": destination.address,
        "format": destination.format,
        "ending": stream.summary.ending if stream.summary else "failed",
        "error": None if stream.error is None else " ".join(str(stream.error).split()),
        "received": progress.received,
        "rows": progress.rows,
        "duplicates": progress.duplicates,
        "reencoded": progress.reencoded,
        "conflicts": progress.conflicts,
        "undecodable": progress.undecodable,
        "set_aside": progress.set_aside,
        "batches": progress.batches,
        "gaps": len(health.gaps),
        "position": _position_text(source, progress.position),
        "committed": health.committed.hex() if health.committed else None,
    }
    return json.dumps(record)


def _position_text(source: Source, position: ReplayId | None) -> str | None:
    if position is None:
        return None
    # The Streaming API's ids are numbers, and our positions their digits.
    return bytes(position).decode() if source.kind == "channel" else position.hex()


def _progress_text(all_progress: list[Progress]) -> str:
    rows = sum(progress.rows for progress in all_progress)
    batches = sum(progress.batches for progress in all_progress)
    duplicates = sum(progress.duplicates for progress in all_progress)
    undecodable = sum(progress.undecodable for progress in all_progress)
    text = f"{counted(rows, 'row')} in {counted(batches, 'batch')}, "
    text += f"{counted(duplicates, 'duplicate')} dropped"
    conflicts = sum(progress.conflicts for progress in all_progress)
    text += f", {counted(conflicts, 'conflict')} kept aside" if conflicts else ""
    return f"{text}, {undecodable} not decoded" if undecodable else text
