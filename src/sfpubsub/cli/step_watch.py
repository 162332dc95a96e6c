"""What the monitor learns of the steps that make tables: counts, durations, how long one takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sfpubsub.cli.words import counted
from sfpubsub.monitoring.history import Series
from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import OUR, Monitor
from sfpubsub.monitoring.registry import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from sfpubsub.spark.tables.engine import StepReport

_STEP = "table step"


class Engine(Protocol):
    """What does the steps."""

    on_step: Callable[[StepReport], None] | None

    def step_seconds(self) -> float | None:
        """Return how long the step under way has taken."""
        ...


class StepWatch:
    """Adds up the steps of one engine. `on_step` is for its thread, the rest for any."""

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._total: StepReport | None = None

    @property
    def total(self) -> StepReport:
        """What all steps did."""
        from sfpubsub.spark.tables.engine import StepReport  # which loads pyspark

        return self._total or StepReport()

    def follow(self, engine: Engine, monitor: Monitor) -> None:
        """Watch *engine* from now on."""
        self._monitor = monitor
        engine.on_step = self._on_step
        monitor.follow_step(_STEP, engine.step_seconds)
        monitor.follow_counts(self._samples)
        monitor.history.follow(
            Series("Rows into tables", "rows/s", lambda _: float(self._rows), is_rate=True)
        )
        monitor.history.follow(
            Series("Step under way", "s", lambda _: engine.step_seconds() or 0.0)
        )

    def text(self) -> str:
        """Return what all steps did, for display; blank before the first one."""
        total = self._total
        return "" if total is None else _text(total)

    @property
    def _rows(self) -> int:
        return 0 if self._total is None else sum(self._total.rows.values())

    def _on_step(self, report: StepReport) -> None:
        self._total = self.total + report
        if self._monitor is not None:
            self._monitor.step_ended(_STEP, report.seconds, _text(report))

    def _samples(self) -> list[Sample]:
        total = self._total
        return [
            Sample(Metric.TABLE_BATCHES, 0 if total is None else total.batches, OUR),
            Sample(Metric.TABLE_ROWS, self._rows, OUR),
            Sample(Metric.TABLE_UNDECODABLE, 0 if total is None else total.undecodable, OUR),
        ]


def _text(report: StepReport) -> str:
    if not report.batches:  # of a mirror: a read that was merged, or a note
        return "beside the raw table"
    rows = counted(sum(report.rows.values()), "row")
    return f"{counted(report.batches, 'batch')}, {rows}, {report.undecodable} not decoded"
