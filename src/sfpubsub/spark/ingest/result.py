"""What became of one write."""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.types import ReplayId


@dataclass(frozen=True)
class WriteResult:
    """What became of one write. All of it is durable."""

    rows: int
    """Events written."""
    duplicates: int
    """Events dropped because the table has them, or because they came twice."""
    undecodable: int
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    batch_id: str | None
    """The table's name for the batch; None if nothing was left to write."""
    first_seq: int | None
    """``ingest_seq`` of the first row."""
    position: ReplayId | None
    """Where the topic or channel resumes; None with a managed subscription."""
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    repeated: bool = False
    """Whether nothing was looked at, because the table has a batch of this name already."""
    conflicts: int = 0
    """Events with the id of another event and another payload: in the sidecar ``_conflicts``."""
    reencoded: int = 0
    """Of the duplicates: those with another payload, since they were encoded with another schema
    or came by another channel."""

    @property
    def received(self) -> int:
        """Events that were dealt with."""
        return self.rows + self.duplicates + self.set_aside + self.conflicts
