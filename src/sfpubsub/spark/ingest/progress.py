"""Progress and summary of an ingest job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.types import Gap, ReplayId

Ending: TypeAlias = Literal["idle", "caught-up", "max-events", "stopped"]


@dataclass(frozen=True)
class Progress:
    """What a job has done since it started: counts, and the last position stored."""

    received: int = 0
    """Events processed: the sum of `rows`, `duplicates`, `set_aside` and `conflicts`."""
    rows: int = 0
    """Events written to the table."""
    duplicates: int = 0
    """Events dropped because the table or the same write already contained them."""
    undecodable: int = 0
    """Events that could not be decoded: written as rows without JSON, or `set_aside`."""
    set_aside: int = 0
    """Undecodable events without a row: quarantined or skipped."""
    conflicts: int = 0
    """Events with the id of another event but a different payload; stored in ``_conflicts``."""
    reencoded: int = 0
    """Duplicates whose payload differs, because they were encoded with another schema or came
    through another channel.
    """
    batches: int = 0
    """Batches added to the table."""
    position: ReplayId | None = None
    """Position of the last event processed durably; None before the first write."""
    seconds: float = field(default=0.0, compare=False)
    """How long the last write took, in seconds."""

    def after(self, result: WriteResult, position: ReplayId | None, seconds: float) -> Progress:
        """Return the progress including one more write.

        Args:
            result: The result of the write.
            position: Position of its last event; None if unchanged.
            seconds: How long the write took.
        """
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
    """The final progress of a job, and why it ended."""

    progress: Progress
    ending: Ending
    """Why the job ended without an error."""
    gaps: tuple[Gap, ...]
    """Gaps of the subscription, where events may be missing."""
