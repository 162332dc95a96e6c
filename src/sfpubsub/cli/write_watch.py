"""Report to the monitor what an ingest job writes, and how long each write takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.registry import Sample
from sfpubsub.monitoring.sources import source_labels
from sfpubsub.monitoring.text import counted

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.job import IngestJob
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.raw.sources import Source

_STEP = "write"


class WriteWatch:
    """Reports the writes of one source to a monitor. `wrote` is called in the job's thread.

    Args:
        monitor: Monitor to report to.
        source: The source whose events are written.
    """

    def __init__(self, monitor: Monitor, source: Source) -> None:
        self._monitor = monitor
        self._name = source.name
        self._labels = source_labels(source.kind, source.name)
        self._seen: Progress | None = None

    def follow(self, job: IngestJob) -> None:
        """Start reporting the counts of an ingest job and the duration of its current write."""
        self._monitor.follow_step(_STEP, job.writing_seconds, self._labels, of=self._name)
        self._monitor.follow_counts(
            lambda: [
                Sample(metric, value, self._labels)
                for metric, value in _counts(job.progress).items()
            ]
        )

    def wrote(self, progress: Progress) -> None:
        """Report a completed write. *progress* is the job's progress after the write."""
        before, self._seen = self._seen, progress

        def new(name: str) -> int:
            return int(getattr(progress, name)) - (int(getattr(before, name)) if before else 0)

        parts = [counted(new("rows"), "row"), counted(new("duplicates"), "duplicate")]
        if new("undecodable"):
            parts.append(f"{new('undecodable')} not decoded")
        if new("conflicts"):
            parts.append(counted(new("conflicts"), "conflict"))
        self._monitor.step_ended(
            _STEP, progress.seconds, ", ".join(parts), self._labels, of=self._name
        )


def _counts(progress: Progress) -> dict[Metric, float]:
    return {
        Metric.WRITTEN: progress.rows,
        Metric.WRITES: progress.batches,
        Metric.DUPLICATES: progress.duplicates,
        Metric.CONFLICTS: progress.conflicts,
        Metric.UNDECODABLE: progress.undecodable,
    }
