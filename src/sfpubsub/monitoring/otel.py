"""Export the metrics through the OpenTelemetry SDK that the program has configured.

Requires ``sfpubsub[otel]``. If no SDK is configured, nothing is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from sfpubsub import __version__
from sfpubsub.errors import MissingExtraError
from sfpubsub.monitoring.metrics import BUCKETS, SCHEMA_URL, Metric
from sfpubsub.monitoring.registry import Histogram, Labels, Registry

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.metrics import Histogram as OtelHistogram


def export_metrics(registry: Registry, provider: MeterProvider | None = None) -> None:
    """Register all metrics with OpenTelemetry, which reads *registry* whenever it exports.

    Args:
        registry: The registry to export.
        provider: Meter provider; the global one by default.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise MissingExtraError("OpenTelemetry", "otel") from error
    meter = metrics.get_meter("sfpubsub", __version__, provider, SCHEMA_URL)
    for metric in Metric:
        about = {"unit": metric.unit, "description": metric.meaning}
        if metric.kind == "counter":
            meter.create_observable_counter(metric.otel, [_reader(registry, metric)], **about)
        elif metric.kind == "gauge":
            meter.create_observable_gauge(metric.otel, [_reader(registry, metric)], **about)
        else:
            histogram = meter.create_histogram(
                metric.otel, **about, explicit_bucket_boundaries_advisory=BUCKETS
            )
            registry.forward(metric, partial(_record, histogram))


def _record(histogram: OtelHistogram, value: float, labels: Labels) -> None:
    histogram.record(value, dict(labels))


def _reader(
    registry: Registry, metric: Metric
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(sample.value, dict(sample.labels))
            for sample in registry.collect()
            if sample.metric is metric and not isinstance(sample.value, Histogram)
        ]

    return read
