"""What a mirror knows of its event stream. This module is pure: no I/O, no clock, no threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfpubsub.types import ReplayId

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.sidecars import KeptGap
    from sfpubsub.spark.mirror.backlog import Backlog


@dataclass(frozen=True)
class StreamState:
    """The state of a mirror's event stream."""

    is_anchored: bool = False
    """Whether a position is durable, so no later event can be missed."""
    is_caught_up: bool = False
    """Whether the service has no more events, and all received events are in the raw table."""
    written: int = 0
    """Number of events received so far; increases with each write."""
    gaps: tuple[KeptGap, ...] = ()
    """The stored gaps of this process and earlier ones. The stream has a new position after each of
    them.
    """
    has_open_gap: bool = True
    """Whether `gaps` may lack one, because the stream is not known to have continued after it."""
    position: ReplayId | None = None
    """The last position that the subscription has received; None before the first."""
    name: str = ""
    """The topic, or the managed subscription's name or id."""
    backlog: Backlog | None = None
    """The rows of the raw table that the mirror has not applied; None if this is not recorded."""
