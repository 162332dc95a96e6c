"""The metrics as data, the page about them, and the two ways in which they are told."""

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
def told():
    """A monitor with something of every kind."""
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


def test_the_page_is_what_the_metrics_say():
    """docs/reference/metrics.md is made from the metrics, and nobody has edited it."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert page == metrics_page(), "run scripts/metrics_page.sh"
    for name in re.findall(r"\bmessaging_[a-z_]+", page.partition("## All metrics")[0]):
        assert name in {metric.prometheus for metric in Metric}


def test_every_metric_is_whole():
    """Names are told apart, units are OpenTelemetry's, and each says what to do."""
    assert len({metric.otel for metric in Metric}) == len(Metric)
    assert len({metric.prometheus for metric in Metric}) == len(Metric)
    for metric in Metric:
        assert re.fullmatch(r"messaging(\.[a-z_]+)+", metric.otel)
        assert re.fullmatch(r"s|By|\{[a-z]+\}", metric.unit)
        assert metric.meaning.endswith(".")
        assert metric.cure.endswith(".")
        assert metric.labels[0] == SYSTEM


def test_names_of_the_conventions_are_those_of_opentelemetry():
    """What is outside of messaging.salesforce is in the conventions, with this unit."""
    names = pytest.importorskip("opentelemetry.semconv._incubating.metrics.messaging_metrics")
    known = {value for name, value in vars(names).items() if name.startswith("MESSAGING_")}
    for metric in Metric:
        assert metric.otel.startswith("messaging.salesforce.") or metric.otel in known


def test_prometheus_text_of_everything(told):
    """Each line has the form; counts are right; a metric's lines are together with its help."""
    text = prometheus_text(told.registry.collect())
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


def test_what_one_alerts_on_is_there_before_it_grows():
    """A counter that appears with its first count shows no increase in Prometheus."""
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


def test_prometheus_escapes_names_of_others():
    """A quote, a backslash and a line break in a name do not break the format."""
    sample = Sample(Metric.CONSUMED, 1, labels_of({SYSTEM: 'a"b\\c\nd'}))
    assert prometheus_text([sample]).endswith('{messaging_system="a\\"b\\\\c\\nd"} 1\n')


def test_every_attribute_told_is_on_the_page(told):
    """What samples are labelled with is what the metric says of itself."""
    for sample in told.registry.collect():
        assert {name for name, _ in sample.labels} <= set(sample.metric.labels), sample


def test_nothing_is_read_until_somebody_asks():
    """A subscription that is followed is not asked for its health by the registry."""
    asked = []
    registry = Registry()
    registry.read(lambda: asked.append(1) or [])
    for _ in range(3):
        registry.add(Metric.LOG_RECORDS, 1, LABELS)
    assert asked == []
    assert [sample.value for sample in registry.collect()] == [3]
    assert asked == [1]


def test_a_histogram_counts_each_value_once():
    """At a bound a value is in the bucket that the bound closes; beyond the last one as well."""
    registry = Registry()
    for value in (0.05, 0.06, 1e9):
        registry.observe(Metric.PROCESS_DURATION, value)
    (sample,) = registry.collect()
    assert sample.value.counts == (1, 1, *[0] * (len(BUCKETS) - 2), 1)
    assert sample.value.total == 0.05 + 0.06 + 1e9


def test_opentelemetry_reads_the_same(told):
    """Every metric told is exported by OpenTelemetry's SDK with its value, unit and attributes."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from sfpubsub.monitoring.otel import export_metrics

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export_metrics(told.registry, provider)
    told.step_ended("write", 0.3, "2 rows")
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    provider.shutdown()
    assert scope.scope.schema_url == SCHEMA_URL
    found = {metric.name: metric for metric in scope.metrics}
    wanted = {sample.metric.otel for sample in told.registry.collect()}
    assert set(found) == wanted
    consumed = found[Metric.CONSUMED.otel]
    assert consumed.unit == "{message}"
    (point,) = consumed.data.data_points
    assert (point.value, point.attributes[OPERATION]) == (5, "receive")
    (duration,) = found[Metric.PROCESS_DURATION.otel].data.data_points
    assert (duration.count, duration.sum) == (1, 0.3), "what came before it was set up is not told"
    assert duration.explicit_bounds == BUCKETS


def test_without_opentelemetry_the_extra_is_named(monkeypatch):
    """The error says what to install."""
    from sfpubsub.errors import MissingExtraError
    from sfpubsub.monitoring.otel import export_metrics

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"sfpubsub\[otel\]"):
        export_metrics(Registry())
