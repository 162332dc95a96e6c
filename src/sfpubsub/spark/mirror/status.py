"""What a mirror tells about each of its objects, for people and monitoring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["first read", "current", "reading", "waiting"]


@dataclass(frozen=True)
class ObjectStatus:
    """The state of one mirrored object at one moment."""

    entity: str
    """API name of the object."""
    state: State = "first read"
    """``first read``: not all records have been read yet. ``reading``: a read is running.
    ``waiting``: it waits for the reasons in `waits`. ``current``: none of these.
    """
    waits: dict[str, str] = field(default_factory=dict)
    """Why the object waits: the reason (`waiting.Why`), and what happened and what to do."""
    records: int | None = None
    """Number of live records in the table, as last known; None if unknown."""
    behind: float | None = None
    """Age in seconds of the oldest event in the raw table that is not applied yet; None if there is
    none.
    """
    queued: int = 0
    """Open entries of the reread queue."""
    oldest_entry: float | None = None
    """When the oldest open entry was added, in seconds since the epoch; None if there is none."""
    read_at: float | None = None
    """When the last read of the whole object was merged, in seconds since the epoch."""
    parked_rows: int = 0
    """Rows whose deletion rests on absence alone, and waits for a confirmation."""
