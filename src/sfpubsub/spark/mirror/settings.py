"""The settings and the report of a mirror."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Deletes = Literal["mark", "remove"]

# Seconds by which answers of the org may lag behind its events. REST answers have been seen to lag
# by seconds; no limit is documented, so it is a setting.
DEFAULT_MARGIN = 300.0

# Number of records from which an object is read in bulk: below it, five queries are faster than a
# job.
DEFAULT_BULK_FROM = 10_000

# Rows per piece: see `sfpubsub.rest.jobs.PAGE_ROWS`.
DEFAULT_PIECE_ROWS = 50_000

DEFAULT_REFRESH = 24 * 3600.0
DEFAULT_SWEEP = 7 * 24 * 3600.0


@dataclass(frozen=True)
class MirrorSettings:
    """The settings of a mirror."""

    margin: float = DEFAULT_MARGIN
    """Seconds by which answers of the org may lag behind its events."""
    deletes: Deletes = "mark"
    """What to do with the row of a deleted record: ``mark`` or ``remove`` it."""
    bulk_from: int = DEFAULT_BULK_FROM
    """Number of records from which an object is read in bulk."""
    piece_rows: int = DEFAULT_PIECE_ROWS
    """Rows read and merged at a time."""
    refresh_formulas: float = DEFAULT_REFRESH
    """Interval in seconds at which objects with formula fields are read again; 0 for never."""
    sweep: float = DEFAULT_SWEEP
    """Interval in seconds at which purged records are searched for; 0 for never."""
    api_calls_per_day: int | None = None
    """Maximum number of API calls in 24 hours; at this number no new read begins. None for no
    limit.
    """


@dataclass(frozen=True)
class MirrorReport:
    """Counts of the work of a mirror in this run."""

    events: int = 0
    """Raw rows applied."""
    records: int = 0
    """Rows of reads that were merged."""
    reads: int = 0
    """Reads of whole objects that were merged completely."""
    api_calls: int = 0
    """Requests made to the org."""
