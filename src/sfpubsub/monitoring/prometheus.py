"""Write metrics in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from sfpubsub.monitoring.metrics import BUCKETS, Metric
from sfpubsub.monitoring.registry import Histogram, Labels, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Return the samples in Prometheus text format, grouped by metric."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric in Metric:
        if metric in by_metric:
            name = metric.prometheus
            lines.append(f"# HELP {name} {_escaped(metric.meaning)}")
            lines.append(f"# TYPE {name} {metric.kind}")
            for sample in by_metric[metric]:
                lines += _lines(name, sample)
    return "".join(f"{line}\n" for line in lines)


def _lines(name: str, sample: Sample) -> Iterator[str]:
    value = sample.value
    if not isinstance(value, Histogram):
        yield f"{name}{_labels(sample.labels)} {_number(value)}"
        return
    bounds = [*map(_number, BUCKETS), "+Inf"]
    counts = list(accumulate(value.counts))
    for bound, count in zip(bounds, counts, strict=True):
        yield f"{name}_bucket{_labels((*sample.labels, ('le', bound)))} {count}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(sample.labels)} {counts[-1]}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name.replace(".", "_")}="{_escaped(value, quote=True)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
