"""Output of ``sfpubsub ingest``: messages on stderr, and a JSON line per source on stdout."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sfpubsub.cli.live import echo
from sfpubsub.monitoring.text import counted

if TYPE_CHECKING:
    from sfpubsub.spark.formats.destination import Destination
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.ingest.streams import Stream
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.types import ReplayId


class Report:
    """Prints the messages of one run, and collects the progress of its sources. Thread-safe.

    Args:
        sources: The sources of the run. With several sources, each message about a source begins
            with the name of that source.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._several = len(sources) > 1
        self._lock = threading.Lock()  # guards the fields below
        self._progress: dict[Source, Progress] = {}

    def say(self, source: Source, text: str) -> None:
        """Print a message; it begins with *source* if the run has several sources."""
        echo(f"{source}: {text}" if self._several else text)

    def progress(self, source: Source, progress: Progress) -> None:
        """Record the progress of a source, so that `text` includes it."""
        with self._lock:
            self._progress[source] = progress

    def text(self) -> str:
        """Return the total progress of all sources as text; empty before the first write."""
        with self._lock:
            all_progress = list(self._progress.values())
        return _progress_text(all_progress) if all_progress else ""


def summary_line(stream: Stream, destination: Destination) -> str:
    """Return the JSON summary of one source. docs/how-to/ingest.md explains the keys."""
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
    # Replay ids of the Streaming API are numbers, whose digits the position contains.
    return bytes(position).decode() if source.kind == "channel" else position.hex()


def _progress_text(all_progress: Sequence[Progress]) -> str:
    rows = sum(progress.rows for progress in all_progress)
    batches = sum(progress.batches for progress in all_progress)
    duplicates = sum(progress.duplicates for progress in all_progress)
    undecodable = sum(progress.undecodable for progress in all_progress)
    text = f"{counted(rows, 'row')} in {counted(batches, 'batch')}, "
    text += f"{counted(duplicates, 'duplicate')} dropped"
    conflicts = sum(progress.conflicts for progress in all_progress)
    text += f", {counted(conflicts, 'conflict')} set aside" if conflicts else ""
    return f"{text}, {undecodable} not decoded" if undecodable else text
