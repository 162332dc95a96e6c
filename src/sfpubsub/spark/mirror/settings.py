"""The settings and the report of a mirror."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfpubsub.spark.ingest.settings import DEFAULT_BATCH_SECONDS

Deletes = Literal["mark", "remove"]
By = Literal["auto", "events", "modstamp"]

# Maximum seconds by which the org's responses lag behind its events. REST responses have been
# observed to lag by seconds. No limit is documented, so this is a setting.
DEFAULT_MARGIN = 300.0

# Minimum number of records for which an object is read in bulk: for fewer, five queries are faster
# than a job.
DEFAULT_BULK_FROM = 10_000

# Rows per piece: see `sfpubsub.rest.jobs.PAGE_ROWS`.
DEFAULT_PIECE_ROWS = 50_000

# Seconds by which a read of changed records begins before the end of the last one: longer than a
# transaction takes, because its records have their stamps before it is committed. Transactions of
# Apex are limited to ten minutes (Salesforce documentation, Execution Governors and Limits).
DEFAULT_OVERLAP = 900.0

DEFAULT_DRIFT = 3600.0

DEFAULT_POLL = 300.0

DEFAULT_REFRESH = 24 * 3600.0
DEFAULT_SWEEP = 7 * 24 * 3600.0


@dataclass(frozen=True)
class MirrorSettings:
    """The settings of a mirror, all of which have defaults."""

    margin: float = DEFAULT_MARGIN
    """Maximum time in seconds by which the org's responses lag behind its events."""
    deletes: Deletes = "mark"
    """What to do with the row of a deleted record: ``mark`` or ``remove`` it."""
    history: bool = False
    """Whether a new mirror also has a history table for each object, with one row per version. An
    existing one keeps what it has.
    """
    bulk_from: int = DEFAULT_BULK_FROM
    """Minimum number of records for which an object is read in bulk."""
    piece_rows: int = DEFAULT_PIECE_ROWS
    """Number of rows to read and merge at a time."""
    refresh_formulas: float = DEFAULT_REFRESH
    """Interval in seconds at which objects with fields that no event reports, such as formulas, are
    reread; 0 for never.
    """
    drift: float = DEFAULT_DRIFT
    """Interval in seconds at which the records are read that have changed, with or without an
    event; at most `due_reads.DERIVED_EVERY` for an object with fields that no event reports; 0 for
    never.
    """
    by: By = "auto"
    """What tells the mirror about changes. ``auto``: events, and for an object whose events the
    channel does not deliver, its stamps (SystemModstamp) alone. ``events``: such an object waits.
    ``modstamp``: the stamps alone, without a subscription.
    """
    poll: float = DEFAULT_POLL
    """Interval in seconds at which the changed records of an object without events are read."""
    overlap: float = DEFAULT_OVERLAP
    """Longest time in seconds that a transaction of the org takes; see `reads.changed_from`."""
    sweep: float = DEFAULT_SWEEP
    """Interval in seconds at which the mirror looks for purged records, or reads an object without
    events as a whole; 0 for never.
    """
    start: Literal["latest", "earliest"] = "latest"
    """Where a new raw table begins to read a topic."""
    batch_seconds: float = DEFAULT_BATCH_SECONDS
    """Longest time that events wait to be written to the raw table; see `IngestJob`."""
    maintain: bool = True
    """Whether the tables are compacted now and then; see `EventTables` and `EventWriter`."""
    api_calls_per_day: int | None = None
    """Maximum number of API calls in 24 hours, after which no new read begins; None for no limit.
    """


@dataclass(frozen=True)
class MirrorReport:
    """What a mirror has done since it was started, as counts."""

    events: int = 0
    """Number of raw rows applied."""
    records: int = 0
    """Number of rows merged from reads."""
    reads: int = 0
    """Number of reads of whole objects merged completely."""
    api_calls: int = 0
    """Number of requests made to the org."""
