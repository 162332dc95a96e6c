"""What a command or a program tells of itself while it runs: metrics, health, a page for people."""

from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.observation import Observation
from sfpubsub.monitoring.server import serve
from sfpubsub.monitoring.situations import Bounds, Problem, Situation

__all__ = ["Bounds", "Metric", "Monitor", "Observation", "Problem", "Situation", "serve"]
