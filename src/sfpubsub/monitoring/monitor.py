"""The monitor: collects the state of a running command, in a background thread.

The monitor reads subscriptions (`Observation`), jobs (functions that return counts), and steps such
as writes (`Steps`). The results are shown by `/metrics`, `/health`, the web page, OpenTelemetry and
the status line on a terminal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sfpubsub.monitoring.history import History, Series
from sfpubsub.monitoring.metrics import OPERATION, SYSTEM, SYSTEM_NAME, Metric
from sfpubsub.monitoring.objects import ObjectState, object_samples
from sfpubsub.monitoring.observation import Observation, SourceKind, Watched
from sfpubsub.monitoring.registry import Labels, Reader, Registry, Sample, labels_of
from sfpubsub.monitoring.situations import SITUATIONS, Bounds, Problem, problems
from sfpubsub.monitoring.sources import samples_of
from sfpubsub.monitoring.steps import Done, Steps

# Seconds between updates: short enough for a person who watches the display.
EVERY = 1.0

# Seconds to wait for the thread at the end; it only reads values in memory.
_JOIN = 5.0

# Number of warnings and errors shown on the page.
_SHOWN = 20

OUR = ((SYSTEM, SYSTEM_NAME),)


@dataclass(frozen=True)
class LoggedProblem:
    """A warning or error logged by sfpubsub."""

    at: float
    level: str
    text: str


class Monitor:
    """Collects the state of a command, or of your own program. Thread-safe.

    ::

        with Monitor("my program") as monitor, serve(monitor, "127.0.0.1", 9090):
            with client.subscribe(topic) as subscription:
                monitor.follow("topic", topic, subscription)
                ...

    Args:
        title: Name of the command or program, for display.
        bounds: Time limits for `problems`.
        clock: Returns the current time, in seconds since the epoch.
    """

    def __init__(
        self,
        title: str,
        *,
        bounds: Bounds | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.title = title
        self.bounds = bounds or Bounds()
        self.clock = clock
        self.started_at = clock()
        self.registry = Registry()
        self.steps = Steps()
        self.history = History()
        self.logged: deque[LoggedProblem] = deque(maxlen=_SHOWN)
        self._observations: list[Observation] = []
        self._counts: list[Reader] = []
        self._objects: Callable[[], Sequence[ObjectState]] = tuple
        self._on_update: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._handler = _Listener(self)
        self.registry.read(self._own_samples)

    # Sources.

    def follow(self, kind: SourceKind, name: str, subscription: Watched) -> Observation:
        """Monitor a subscription.

        Args:
            kind: Kind of source: ``managed`` (a managed subscription), ``topic`` or ``channel``.
            name: Name of the source.
            subscription: The subscription.

        Returns:
            The subscription's observation. Call its `acked` after each ack, and its `turn` about
            once a second, so that lag and stuck loops can be detected.
        """
        observation = Observation(kind, name, clock=self.clock)
        observation.follow(subscription)
        self.observe(observation)
        return observation

    def observe(self, observation: Observation) -> None:
        """Monitor the subscription of an existing observation."""
        self._observations = [*self._observations, observation]
        self.registry.read(lambda: samples_of(observation.facts(), self.clock()))
        name = observation.facts().name
        self.history.follow(
            Series(
                f"{name}: events",
                "events/s",
                lambda _: float(observation.facts().health.delivered),
                is_rate=True,
            )
        )
        self.history.follow(
            Series(f"{name}: lag", "s behind", lambda now: observation.facts().lag(now))
        )

    def follow_counts(self, read: Reader) -> None:
        """Monitor the counts that *read* returns, such as the number of rows written.

        *read* is called whenever the page is rendered or the metrics are collected.
        """
        self._counts = [*self._counts, read]
        self.registry.read(read)

    def follow_objects(self, read: Callable[[], Sequence[ObjectState]]) -> None:
        """Monitor the objects of a mirror.

        *read* is called like that of `follow_counts`, and has to be thread-safe.
        """
        self._objects = read
        self.registry.read(lambda: object_samples(read()))
        self.history.follow(
            Series(
                "Tables behind the stream",
                "s behind",
                lambda _: max((each.behind or 0.0 for each in read()), default=None),
            )
        )

    def on_update(self, update: Callable[[], None]) -> None:
        """Register *update*, which the monitor's thread calls about once a second."""
        self._on_update.append(update)

    def follow_step(
        self,
        kind: str,
        seconds: Callable[[], float | None],
        labels: Labels = OUR,
        *,
        of: str = "",
    ) -> None:
        """Monitor the steps of one kind, and detect stuck ones.

        Args:
            kind: Kind of step, such as ``write`` or ``table step``.
            seconds: Returns how long the current step has been running, in seconds; None if no step
                is running.
            labels: Labels of the metrics.
            of: Name of the topic or subscription whose events the steps process, for display.
        """
        self.steps.follow(_named(kind, of), seconds)
        labels = labels_of({**dict(labels), OPERATION: kind})
        self.registry.read(lambda: [Sample(Metric.STEP_RUNNING, seconds() or 0.0, labels)])

    def step_ended(
        self, kind: str, seconds: float, text: str, labels: Labels = OUR, *, of: str = ""
    ) -> None:
        """Record a finished step.

        Args:
            kind: Kind of step; see `follow_step`.
            seconds: Duration of the step.
            text: What the step did, for display.
            labels: Labels of the metrics.
            of: Name of the topic or subscription whose events it processed, for display.
        """
        self.steps.ended(Done(_named(kind, of), self.clock(), seconds, text))
        labels = labels_of({**dict(labels), OPERATION: kind})
        self.registry.observe(Metric.PROCESS_DURATION, seconds, labels)

    # Results.

    @property
    def observations(self) -> list[Observation]:
        """The observations of all monitored subscriptions."""
        return list(self._observations)

    def counts(self) -> list[Sample]:
        """Return the counts from all functions passed to `follow_counts`."""
        return [sample for read in self._counts for sample in read()]

    def objects(self) -> list[ObjectState]:
        """Return the state of each object of the monitored mirror; empty if there is no mirror."""
        return list(self._objects())

    def problems(self) -> list[Problem]:
        """Return the current problems; empty if the command is healthy."""
        facts = [observation.facts() for observation in self._observations]
        return problems(facts, self.steps.running(), self.bounds, self.clock(), self._objects())

    def update(self) -> None:
        """Record a point for each plot, log stuck steps, and call the `on_update` functions.

        The monitor's thread calls this about once a second.
        """
        self.history.measure(self.clock())
        self.steps.report_stuck(self._running(), self.bounds.stuck)
        for update in self._on_update:
            update()

    def _running(self) -> dict[str, float | None]:
        """Return how long the current step of each kind has been running, in seconds.

        The value is None for a kind that has no running step. If no step is running,
        the current iteration of each subscription's loop is included.
        """
        running = self.steps.running()
        if all(seconds is None for seconds in running.values()):
            for observation in self._observations:
                facts = observation.facts()
                if facts.turned_at is not None and not facts.health.has_ended:
                    running[f"the loop of {facts.name}"] = self.clock() - facts.turned_at
        return running

    def _own_samples(self) -> Iterable[Sample]:
        failing = {problem.situation for problem in self.problems()}
        for situation in SITUATIONS:
            labels = labels_of({SYSTEM: SYSTEM_NAME, "situation": situation})
            yield Sample(Metric.FAILING, float(situation in failing), labels)

    # Start and stop.

    def __enter__(self) -> Monitor:
        logging.getLogger("sfpubsub").addHandler(self._handler)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_JOIN)
        logging.getLogger("sfpubsub").removeHandler(self._handler)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            try:
                self.update()
            except Exception:  # a failing monitor must not end the command that it monitors
                logging.getLogger("sfpubsub.monitoring").exception(
                    "the monitor failed: until the program is restarted, plots are not updated and "
                    "stuck steps are not detected"
                )
                return


def _named(kind: str, of: str) -> str:
    return f"{kind} of {of}" if of else kind


class _Listener(logging.Handler):
    """Logging handler that keeps and counts warnings and errors of this package."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(logging.WARNING)
        self._monitor = monitor
        # Export zeros too: Prometheus sees no increase when a series first appears.
        for level in ("warning", "error"):
            self._count(level, 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        text, _, _ = record.getMessage().partition("\n")
        self._monitor.logged.append(LoggedProblem(record.created, level, text))
        self._count(level, 1.0)

    def _count(self, level: str, amount: float) -> None:
        labels = labels_of({SYSTEM: SYSTEM_NAME, "level": level})
        self._monitor.registry.add(Metric.LOG_RECORDS, amount, labels)
