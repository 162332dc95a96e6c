"""A fake subscription with the methods that the ingest job and its command use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import SubscriptionClosedError
from sfpubsub.types import Gap, Health, ReplayId
from tests.spark.sample_events import MANAGED, batch_of


class Clock:
    """A clock, in seconds, that advances only when a fake waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeSubscription:
    """Delivers what a script describes, and then no more batches.

    An int in the script delivers a batch of that size, a float waits for that many seconds, an
    exception is raised, and a function is called. A job that keeps waiting for more than *patience*
    seconds in total fails the test.
    """

    def __init__(
        self,
        script: Iterable[int | float | BaseException | Callable[[], None]],
        clock: Clock | None = None,
        topic: str | None = None,
        patience: float = 10_000.0,
    ) -> None:
        self.script = list(script)
        self.clock = clock or Clock()
        self.topic = topic
        self.patience = patience
        self.name = topic or MANAGED
        self.next_seq = 0
        self.acked: list[tuple[int, int]] = []
        self.state = "streaming"
        self.gaps: tuple[Gap, ...] = ()
        self.confirmed = 0
        self.committed: ReplayId | None = None
        self.caught_up = False
        self.waiting_events = 0
        self.log: list[str] = []
        self.timeouts: list[float] = []

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        assert timeout is not None, "a job that waits without a timeout cannot be stopped"
        self.timeouts.append(timeout)
        if not self.script and self.state in ("draining", "closing", "closed"):
            raise SubscriptionClosedError(f"{self.name} is closed")
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, int):
            return self._batch(step)
        if callable(step):
            step()
        self.clock.now += step if isinstance(step, float) else timeout
        time.sleep(0.0005)  # real time for writes in other threads
        self.patience -= timeout
        assert self.patience > 0, "the job did not end in time"
        return None

    def _batch(self, size: int) -> EventBatch:
        first = self.next_seq
        self.next_seq += size
        return batch_of(
            range(first, first + size), topic=self.topic, first_seq=first, ack=self._ack
        )

    def _ack(self, first: int, last: int) -> None:
        self.acked.append((first, last))
        self.log.append("ack")

    def health(self) -> Health:
        return Health(
            state=self.state,
            reason=None,
            outstanding=100,
            pending_count=self.waiting_events,
            pending_bytes=0,
            unacked=0,
            delivered=0,
            redelivered=0,
            reconnects=0,
            last_position=None,
            committed=self.committed,
            gaps=self.gaps,
            confirmed=self.confirmed,
            caught_up=self.caught_up,
            responses=self.next_seq,  # all delivered events were received
        )

    def report_gap(self, gap: Gap) -> None:
        self.gaps = (*self.gaps, gap)

    def __enter__(self) -> FakeSubscription:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.log.append("drain" if kind is None else f"leave after {kind.__name__}")

    def abort(self) -> None:
        self.state = "closed"
