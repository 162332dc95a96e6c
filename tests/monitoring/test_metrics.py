"""Tests of the metrics: their definitions, their page, and their export to Prometheus and
OpenTelemetry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from sfpubsub.monitoring.metrics import BUCKETS, OPERATION, SCHEMA_URL, SYSTEM, Metric, metrics_page
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.prometheus import prometheus_text
from sfpubsub.monitoring.registry import Registry, Sample, labels_of
from sfpubsub.types import Gap, ReplayId
from sfpubsub.types.health import GapReason

from .support import NOW, Clock, Subscription

ROOT = Path(__file__).parent.parent.parent
LABELS = labels_of({SYSTEM: "x"})


@pytest.fixture
def filled_monitor():
    """Return a monitor that has a subscription with gaps, a running step, a finished one, and log
    records.
    """
    monitor = Monitor("test", clock=Clock())
    monitor.follow(
        "managed",
        "My_Sub",
        Subscription(
            delivered=5,
            responses=7,
            committed=ReplayId(b"\x01"),
            gaps=(Gap("rejected", "My_Sub"), Gap("rejected", "My_Sub"), Gap("missing", "My_Sub")),
        ),
    )
    monitor.follow_step("write", lambda: 3.5, of="My_Sub")
    monitor.step_ended("write", 0.2, "1 row")
    monitor.registry.add(Metric.LOG_RECORDS, 2, labels_of({SYSTEM: "x", "level": "error"}))
    return monitor


def test_metrics_page_is_generated_from_the_metrics():
    """The page docs/reference/metrics.md equals the generated one, and its introduction names only
    metrics that exist.
    """
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert page == metrics_page(), "run scripts/metrics_page.sh"
    for name in re.findall(r"\bmessaging_[a-z_]+", page.partition("## All metrics")[0]):
        assert name in {metric.prometheus for metric in Metric}


def test_every_metric_is_well_formed():
    """Metric names are unique, units are valid in OpenTelemetry, and each metric has a meaning and
    a remedy.
    """
    assert len({metric.otel for metric in Metric}) == len(Metric)
    assert len({metric.prometheus for metric in Metric}) == len(Metric)
    for metric in Metric:
        assert re.fullmatch(r"messaging(\.[a-z_]+)+", metric.otel)
        assert re.fullmatch(r"s|By|\{[a-z]+\}", metric.unit)
        assert metric.meaning.endswith(".")
        assert metric.cure.endswith(".")
        assert metric.labels[0] == SYSTEM


def test_other_metric_names_exist_in_opentelemetry_conventions():
    """Every metric outside of ``messaging.salesforce`` is defined in OpenTelemetry's semantic
    conventions.
    """
    names = pytest.importorskip("opentelemetry.semconv._incubating.metrics.messaging_metrics")
    known = {value for name, value in vars(names).items() if name.startswith("MESSAGING_")}
    for metric in Metric:
        assert metric.otel.startswith("messaging.salesforce.") or metric.otel in known


def test_prometheus_text_of_all_metrics(filled_monitor):
    """Every line is valid Prometheus text, values are correct, and each metric is declared only
    once.
    """
    text = prometheus_text(filled_monitor.registry.collect())
    sub = 'messaging_destination_subscription_name="My_Sub"'
    system = 'messaging_system="salesforce_pubsub"'
    for line in (
        f'messaging_client_consumed_messages_total{{{sub},messaging_operation_name="receive",'
        f"{system}}} 5",
        f'messaging_salesforce_gaps_total{{{sub},messaging_salesforce_gap_reason="rejected",'
        f"{system}}} 2",
        f'messaging_salesforce_step_running_seconds{{messaging_operation_name="write",{system}}} '
        f"3.5",
        f'messaging_process_duration_seconds_bucket{{messaging_operation_name="write",{system},'
        f'le="0.1"}} 0',
        f'messaging_process_duration_seconds_bucket{{messaging_operation_name="write",{system},'
        f'le="0.25"}} 1',
        f'messaging_process_duration_seconds_bucket{{messaging_operation_name="write",{system},'
        f'le="+Inf"}} 1',
        f'messaging_process_duration_seconds_count{{messaging_operation_name="write",{system}}} 1',
        f"messaging_salesforce_last_message_time_seconds{{{sub},{system}}} {NOW:.0f}",
        'messaging_salesforce_log_records_total{level="error",messaging_system="x"} 2',
        f'messaging_salesforce_failing{{{system},situation="silent"}} 0',
    ):
        assert line in text.splitlines()
    value = r'[a-z_]+(\{([a-z_]+="[^"\n]*",?)+\})? -?[0-9.e+-]+'
    for line in text.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) [a-z_]+ .+|{value}", line), line
    order = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(order) == len(set(order))


def test_counters_used_in_alerts_start_at_zero():
    """Counters used in alerts are exported as 0 from the start, because Prometheus sees no increase
    when a counter first appears with its first count.
    """
    monitor = Monitor("test", clock=Clock())
    monitor.follow("topic", "T", Subscription())
    text = prometheus_text(monitor.registry.collect())
    for reason in get_args(GapReason):
        labels = f'messaging_destination_name="T",messaging_salesforce_gap_reason="{reason}",'
        system = 'messaging_system="salesforce_pubsub"'
        assert f"messaging_salesforce_gaps_total{{{labels}{system}}} 0" in text.splitlines()
    page = metrics_page().partition("## All metrics")[0]
    for name in re.findall(r"increase\((\w+)\[", page):
        assert f"\n{name}{{" in text


def test_prometheus_label_values_are_escaped():
    """A quote, a backslash or a line break in a label value does not break the format."""
    sample = Sample(Metric.CONSUMED, 1, labels_of({SYSTEM: 'a"b\\c\nd'}))
    assert prometheus_text([sample]).endswith('{messaging_system="a\\"b\\\\c\\nd"} 1\n')


def test_samples_use_only_documented_labels(filled_monitor):
    """Every label of a sample is declared by its metric, and thus listed on the metrics page."""
    for sample in filled_monitor.registry.collect():
        assert {name for name, _ in sample.labels} <= set(sample.metric.labels), sample


def test_registry_reads_values_only_when_collected():
    """Adding to a counter does not call the functions that read values; each `collect` calls them
    once.
    """
    asked = []
    registry = Registry()
    registry.read(lambda: asked.append(1) or [])
    for _ in range(3):
        registry.add(Metric.LOG_RECORDS, 1, LABELS)
    assert asked == []
    assert [sample.value for sample in registry.collect()] == [3]
    assert asked == [1]


def test_histogram_counts_each_value_once():
    """A value equal to a bound is in the bucket that ends there; a value above all bounds is in the
    last.
    """
    registry = Registry()
    for value in (0.05, 0.06, 1e9):
        registry.observe(Metric.PROCESS_DURATION, value)
    (sample,) = registry.collect()
    assert sample.value.counts == (1, 1, *[0] * (len(BUCKETS) - 2), 1)
    assert sample.value.total == 0.05 + 0.06 + 1e9


def test_opentelemetry_exports_the_same_metrics(filled_monitor):
    """OpenTelemetry's SDK exports every metric, with the right units, values, attributes and
    bounds.
    """
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from sfpubsub.monitoring.otel import export_metrics

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export_metrics(filled_monitor.registry, provider)
    filled_monitor.step_ended("write", 0.3, "2 rows")
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    provider.shutdown()
    assert scope.scope.schema_url == SCHEMA_URL
    found = {metric.name: metric for metric in scope.metrics}
    wanted = {sample.metric.otel for sample in filled_monitor.registry.collect()}
    assert set(found) == wanted
    consumed = found[Metric.CONSUMED.otel]
    assert consumed.unit == "{message}"
    (point,) = consumed.data.data_points
    assert (point.value, point.attributes[OPERATION]) == (5, "receive")
    (duration,) = found[Metric.PROCESS_DURATION.otel].data.data_points
    assert (duration.count, duration.sum) == (1, 0.3), (
        "observations from before the export are not exported"
    )
    assert duration.explicit_bounds == BUCKETS


def test_export_without_opentelemetry_names_the_missing_extra(monkeypatch):
    """Without OpenTelemetry, exporting raises an error that names the extra to install."""
    from sfpubsub.errors import MissingExtraError
    from sfpubsub.monitoring.otel import export_metrics

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"sfpubsub\[otel\]"):
        export_metrics(Registry())
