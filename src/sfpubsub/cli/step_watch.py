"""Report to the monitor how the tables are built.

An engine builds the tables in steps. This module reports how much each completed step processed,
and how long it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sfpubsub.monitoring.history import Series
from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import OUR, Monitor
from sfpubsub.monitoring.registry import Sample
from sfpubsub.monitoring.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from sfpubsub.spark.tables.engine import StepReport

_STEP = "table step"


class Engine(Protocol):
    """An engine that builds tables in steps, and reports each completed step to `on_step`."""

    on_step: Callable[[StepReport], None] | None

    def step_seconds(self) -> float | None:
        """Return the seconds since the current step began; None if no step is running."""
        ...


class StepWatch:
    """Reports each completed step of one engine, and the totals of all its steps, to a monitor.

    The engine reports its steps from its own thread. All public methods are thread-safe.
    """

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._total: StepReport | None = None

    @property
    def total(self) -> StepReport:
        """The totals of all steps completed so far."""
        # Imported here, because it loads pyspark.
        from sfpubsub.spark.tables.engine import StepReport

        return self._total or StepReport()

    def follow(self, engine: Engine, monitor: Monitor) -> None:
        """Report the steps of *engine* to *monitor* from now on."""
        self._monitor = monitor
        engine.on_step = self._on_step
        monitor.follow_step(_STEP, engine.step_seconds)
        monitor.follow_counts(self._samples)
        monitor.history.follow(
            Series("Rows into tables", "rows/s", lambda _: float(self._rows), is_rate=True)
        )
        monitor.history.follow(Series("Current step", "s", lambda _: engine.step_seconds() or 0.0))

    def text(self) -> str:
        """Return the totals of all steps for the status line; empty if no step has completed."""
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
    if not report.batches:  # a step of a mirror without raw rows
        return "no batches of the raw table"
    rows = counted(sum(report.rows.values()), "row")
    return f"{counted(report.batches, 'batch')}, {rows}, {report.undecodable} not decoded"
