"""The result of a write."""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.types import ReplayId


@dataclass(frozen=True)
class WriteResult:
    """The outcome of a write, after its rows and positions have become durable."""

    rows: int
    """Events written to the table."""
    duplicates: int
    """Events dropped because the table or the same write already contained them."""
    undecodable: int
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    batch_id: str | None
    """The table's id for the batch; None if no rows were written."""
    first_seq: int | None
    """``ingest_seq`` of the first row; None if there are no rows."""
    position: ReplayId | None
    """Stored position of the topic or channel. None if no position is stored, for a managed
    subscription, and for `EventWriter.write_rows` with several sources.
    """
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    repeated: bool = False
    """Whether the write was skipped, because a recent batch of the table has the same name."""
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
        """Events processed: the sum of `rows`, `duplicates`, `set_aside` and `conflicts`."""
        return self.rows + self.duplicates + self.set_aside + self.conflicts
