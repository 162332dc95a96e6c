"""The result of a write."""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.types import ReplayId


@dataclass(frozen=True)
class WriteResult:
    """The result of a write. Everything in it is durable."""

    rows: int
    """Events written."""
    duplicates: int
    """Events dropped because they were already in the table or occurred twice."""
    undecodable: int
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    batch_id: str | None
    """The table's id for the batch; None if nothing was left to write."""
    first_seq: int | None
    """``ingest_seq`` of the first row."""
    position: ReplayId | None
    """Where the topic or channel resumes; None for a managed subscription."""
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    repeated: bool = False
    """Whether the write was skipped, because the table already has a batch with this name."""
    conflicts: int = 0
    """Events with the id of another event but a different payload; stored in the sidecar
    ``_conflicts``.
    """
    reencoded: int = 0
    """Duplicates whose payload differs because they were encoded with another schema or came
    through another channel.
    """

    @property
    def received(self) -> int:
        """Events processed."""
        return self.rows + self.duplicates + self.set_aside + self.conflicts
