"""The settings of a mirror, and what it reports about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Deletes = Literal["mark", "remove"]

# Seconds by which answers of the org may lag behind its events. REST answers were seen to lag by
# seconds; nobody promises anything, so it is a setting.
DEFAULT_MARGIN = 300.0

# Records from which on an object is read in bulk: below, five queries are quicker than a job.
DEFAULT_BULK_FROM = 10_000

# Rows of a piece: see `sfpubsub.rest.jobs.PAGE_ROWS`.
DEFAULT_PIECE_ROWS = 50_000

DEFAULT_REFRESH = 24 * 3600.0
DEFAULT_SWEEP = 7 * 24 * 3600.0


@dataclass(frozen=True)
class MirrorSettings:
    """The settings of a mirror."""

    margin: float = DEFAULT_MARGIN
    """Seconds by which answers of the org may lag behind its events."""
    deletes: Deletes = "mark"
    """What becomes of the row of a deleted record."""
    bulk_from: int = DEFAULT_BULK_FROM
    """Records from which on an object is read in bulk."""
    piece_rows: int = DEFAULT_PIECE_ROWS
    """Rows that are read and merged at a time."""
    refresh_formulas: float = DEFAULT_REFRESH
    """Seconds after which objects with formula fields are read again; 0 for never."""
    sweep: float = DEFAULT_SWEEP
    """Seconds after which records that were purged are looked for; 0 for never."""
    api_calls_per_day: int | None = None
    """Most calls of the org's allowance in 24 hours: no read begins beyond. None for any number."""


@dataclass(frozen=True)
class MirrorReport:
    """What a mirror has done so far in this run."""

    events: int = 0
    """Raw rows laid."""
    records: int = 0
    """Rows of reads merged."""
    reads: int = 0
    """Reads that were merged as a whole."""
    api_calls: int = 0
    """Requests made of the org."""
