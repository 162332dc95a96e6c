"""What a mirror tells about each of its objects, for people and monitoring."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Why the object waits: the reason (`waiting.Why`, or ``paused``), what happened and what to
    do.
    """
    records: int | None = None
    """Number of live records, as of the last read of all records or ids; None before it."""
    behind: float | None = None
    """For how many seconds the oldest event that is not applied yet has been waiting since it was
    received; None if there is none.
    """
    queued: int = 0
    """Open entries of the reread queue."""
    oldest_entry: float | None = None
    """When the oldest open entry was added, in seconds since the epoch; None if there is none."""
    read_at: float | None = None
    """When the last read of the whole object was merged, in seconds since the epoch."""
    parked_rows: int = 0
    """Rows whose deletion rests on absence alone, and waits for a confirmation."""
    repaired: Mapping[str, int] = field(default_factory=dict)
    """Rows that were repaired since the start, because changes had no event, by `Repair`."""


def state_of(waits: Mapping[str, str], *, is_read: bool, is_reading: bool) -> State:
    """Return the state of an object.

    Args:
        waits: Why the object waits; empty if it does not.
        is_read: Whether a read of the whole object was merged completely.
        is_reading: Whether a read of the object is running or being merged.
    """
    if waits:
        return "waiting"
    if not is_read:
        return "first read"
    return "reading" if is_reading else "current"
