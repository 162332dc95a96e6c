"""The settings of an ingest. Importing this module loads no other package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.undecodable import OnUndecodable

# Events per write. The fixed cost of a write in Spark (about 0.1 s) is small for 10,000 events
# (measured: 10k events 0.2 s, 100k events 1 s). If a job is killed, about two batches at most have
# to be received again: the one being written and the one being collected.
DEFAULT_BATCH_EVENTS = 10_000

# Longest time that a batch waits for more events after its first one, in seconds.
DEFAULT_BATCH_SECONDS = 10.0

# Payload bytes per write. They are sent to an executor in one task, together with their JSON of
# about twice the size, and Spark rejects more than 128 MiB (spark.rpc.message.maxSize).
DEFAULT_BATCH_BYTES = 32 * 1024 * 1024

# Seconds without an event after which a job that runs once ends. Longer than gRPC's 20 s connection
# timeout, so that an unreachable endpoint is not mistaken for an idle one.
DEFAULT_IDLE_TIMEOUT = 30.0

# Maximum number of keys in the window of known events. At 24 bytes each, they take 240 MB. This is
# enough for 33 events per second, 2.9 million a day: those of 73 h and, as a block expires as a
# whole, of an eighth more.
DEFAULT_WINDOW_KEYS = 10_000_000

OnFailure: TypeAlias = Literal["stop", "continue"]


@dataclass(frozen=True)
class IngestSettings:
    """The settings of an ingest, all of which have defaults."""

    batch_events: int = DEFAULT_BATCH_EVENTS
    """See `IngestJob`."""
    batch_bytes: int = DEFAULT_BATCH_BYTES
    """See `IngestJob`."""
    batch_seconds: float = DEFAULT_BATCH_SECONDS
    """See `IngestJob`."""
    max_events: int | None = None
    """Stop after this many events from each source; see `IngestJob`."""
    idle_timeout: float | None = None
    """Stop when the stream has been open for this many seconds without an event."""
    until_caught_up: bool = False
    """Stop when the service reports that all events have been read."""
    window_keys: int = DEFAULT_WINDOW_KEYS
    """Maximum number of dedupe keys in memory; see `EventWriter`."""
    fallback: Literal["earliest", "latest"] | None = None
    """Where to continue if the service rejects the position stored in the table. With None, the
    source fails.
    """
    on_source_failure: OnFailure = "stop"
    """What to do if a source fails: ``stop`` the other sources cleanly, or ``continue`` with them.
    They always stop if the table cannot be written.
    """
    on_undecodable: OnUndecodable = "quarantine"
    """What to do with an event that cannot be decoded; see `EventWriter`. ``quarantine`` is the
    table's own.
    """
    maintain: bool = True
    """Whether the days before today are compacted once a day; see `EventWriter`."""
    staging: str | os.PathLike[str] | None = None
    """With parquet: directory for staging and sidecars; see `EventWriter`."""
    table_properties: Mapping[str, str] = field(default_factory=dict)
    """With delta and iceberg: properties to set if the table has to be created."""
