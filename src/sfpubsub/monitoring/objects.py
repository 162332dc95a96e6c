"""What the monitor needs to know about each object that a mirror keeps in sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from sfpubsub.monitoring.metrics import ENTITY, SYSTEM, SYSTEM_NAME, Metric
from sfpubsub.monitoring.registry import Sample, labels_of

# Reasons of waiting, so that their metric is exported before it first becomes 1.
REASONS = ("rights", "gone", "deselected", "read", "paused")

# Causes of repairs, for the same reason.
CAUSES = ("missing", "existence", "changed", "derived")


class ObjectState(Protocol):
    """The state of one mirrored object; `sfpubsub.spark.mirror.status.ObjectStatus` has it."""

    @property
    def entity(self) -> str:
        """API name of the object."""
        ...

    @property
    def state(self) -> str:
        """One word for the state, such as ``current`` or ``waiting``."""
        ...

    @property
    def repaired(self) -> Mapping[str, int]:
        """Rows that were repaired since the start, by cause: one of `CAUSES`."""
        ...

    @property
    def waits(self) -> Mapping[str, str]:
        """Why the object waits: one of `REASONS`, and what happened and what to do."""
        ...

    @property
    def records(self) -> int | None:
        """Number of live records; None if unknown."""
        ...

    @property
    def behind(self) -> float | None:
        """For how many seconds the oldest unapplied event has been waiting; None without any."""
        ...

    @property
    def queued(self) -> int:
        """Open entries of the reread queue."""
        ...

    @property
    def oldest_entry(self) -> float | None:
        """When the oldest open entry was added, in seconds since the epoch; None without any."""
        ...

    @property
    def read_at(self) -> float | None:
        """When the last read of the whole object was merged, in seconds since the epoch."""
        ...

    @property
    def parked_rows(self) -> int:
        """Rows that wait until somebody confirms that they were deleted."""
        ...


def object_samples(objects: Iterable[ObjectState]) -> Iterator[Sample]:
    """Yield the metrics of the objects as samples, omitting unknown values."""
    for each in objects:
        own = {SYSTEM: SYSTEM_NAME, ENTITY: each.entity}
        labels = labels_of(own)
        yield Sample(Metric.MIRROR_BEHIND, each.behind or 0.0, labels)
        yield Sample(Metric.MIRROR_QUEUE, each.queued, labels)
        yield Sample(Metric.MIRROR_PARKED, each.parked_rows, labels)
        for cause in dict.fromkeys((*CAUSES, *each.repaired)):
            of_cause = labels_of({**own, "messaging.salesforce.repair.cause": cause})
            yield Sample(Metric.MIRROR_REPAIRED, each.repaired.get(cause, 0), of_cause)
        if each.oldest_entry is not None:
            yield Sample(Metric.MIRROR_OLDEST_ENTRY, each.oldest_entry, labels)
        if each.read_at is not None:
            yield Sample(Metric.MIRROR_READ_AT, each.read_at, labels)
        for reason in dict.fromkeys((*REASONS, *each.waits)):
            of_reason = labels_of({**own, "messaging.salesforce.wait.reason": reason})
            yield Sample(Metric.MIRROR_WAITING, float(reason in each.waits), of_reason)
