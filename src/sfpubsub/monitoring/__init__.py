"""Monitoring of a running command or program: metrics, health and a web page."""

from typing import TYPE_CHECKING, Any

from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.observation import Observation
from sfpubsub.monitoring.situations import Bounds, Problem, Situation

if TYPE_CHECKING:
    from sfpubsub.monitoring.server import serve

__all__ = ["Bounds", "Metric", "Monitor", "Observation", "Problem", "Situation", "serve"]


def __getattr__(name: str) -> Any:
    if name != "serve":
        raise AttributeError(f"module 'sfpubsub.monitoring' has no attribute {name!r}")
    from sfpubsub.monitoring.server import serve  # loads an HTTP server

    return serve
