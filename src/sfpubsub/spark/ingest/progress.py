"""What an ingest job reports about itself: while it runs, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.types import Gap, ReplayId

Ending: TypeAlias = Literal["idle", "caught-up", "max-events", "stopped"]


@dataclass(frozen=True)
class Progress:
    """What a job has done so far. Counts are of this run."""

    received: int = 0
    """Events taken from the subscription and done with: `rows`, `duplicates`, `set_aside` and
    `conflicts`."""
    rows: int = 0
    """Events written."""
    duplicates: int = 0
    """Events that the table had already."""
    undecodable: int = 0
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    conflicts: int = 0
    """Events with the id of another event and another payload: kept in ``_conflicts``."""
    reencoded: int = 0
    """Of the duplicates: those that were encoded again."""
    batches: int = 0
    """Batches published."""
    position: ReplayId | None = None
    """The last event's position that was made durable."""
    seconds: float = field(default=0.0, compare=False)
    """How long the last write took."""

    def after(self, result: WriteResult, position: ReplayId | None, seconds: float) -> Progress:
        """Return the progress with one more write, which took some seconds."""
        return Progress(
            received=self.received + result.received,
            rows=self.rows + result.rows,
            duplicates=self.duplicates + result.duplicates,
            undecodable=self.undecodable + result.undecodable,
            set_aside=self.set_aside + result.set_aside,
            conflicts=self.conflicts + result.conflicts,
            reencoded=self.reencoded + result.reencoded,
            batches=self.batches + (result.batch_id is not None),
            position=position or self.position,
            seconds=seconds,
        )


@dataclass(frozen=True)
class Summary:
    """How a job ended."""

    progress: Progress
    ending: Ending
    gaps: tuple[Gap, ...]
    """Every position that the subscription gave up: events may be missing there."""
