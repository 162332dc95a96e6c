"""Derive a subscription's metrics from its `Facts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from sfpubsub.monitoring.metrics import (
    DESTINATION,
    OPERATION,
    SUBSCRIPTION,
    SYSTEM,
    SYSTEM_NAME,
    Metric,
)
from sfpubsub.monitoring.observation import Facts, SourceKind
from sfpubsub.monitoring.registry import Labels, Sample, labels_of
from sfpubsub.types.health import GapReason

# States in which events can arrive; while a schema is missing they arrive and wait.
_OPEN = ("streaming", "waiting_for_schema")


def source_labels(kind: SourceKind, name: str) -> Labels:
    """Return the labels that identify a subscription."""
    # The service does not reveal which topic a managed subscription reads.
    return labels_of(
        {SYSTEM: SYSTEM_NAME, SUBSCRIPTION if kind == "managed" else DESTINATION: name}
    )


def samples_of(facts: Facts, now: float) -> Iterator[Sample]:
    """Yield a subscription's metrics as samples, omitting unknown values.

    Args:
        facts: Facts about the subscription.
        now: Seconds since the epoch.
    """
    labels = source_labels(facts.kind, facts.name)
    health = facts.health
    received = labels_of({**dict(labels), OPERATION: "receive"})
    yield Sample(Metric.CONSUMED, health.delivered, received)
    values = {
        Metric.REDELIVERED: health.redelivered,
        Metric.RESPONSES: health.responses,
        Metric.RECONNECTS: health.reconnects,
        Metric.STREAM_OPEN: int(health.state in _OPEN),
        Metric.LAST_MESSAGE: facts.last_message_at,
        Metric.OUTSTANDING: health.outstanding,
        Metric.PENDING: health.pending_count,
        Metric.PENDING_SIZE: health.pending_bytes,
        Metric.UNACKED: health.unacked,
        Metric.LAG: facts.lag(now),
        Metric.ACKED_EVENT: facts.acked_event_at,
        Metric.SETTLED: health.confirmed,
        Metric.LAST_COMMIT: facts.last_commit_at,
        Metric.QUARANTINED: health.quarantined,
        Metric.SKIPPED: health.skipped,
    }
    for metric, value in values.items():
        if value is not None:
            yield Sample(metric, value, labels)
    reasons = Counter(gap.reason for gap in health.gaps)
    # Export zeros too: Prometheus sees no increase when a series first appears.
    for reason in get_args(GapReason):
        of_reason = labels_of({**dict(labels), "messaging.salesforce.gap.reason": reason})
        yield Sample(Metric.GAPS, reasons[reason], of_reason)
