"""Decides which event a handler gets next, for runs of both clients.

No I/O, no clock, no threads. Whenever something has changed, a runner calls `Dispatcher.next`,
carries out the step that it returns, reports the result, and calls it again:

==============  ==================================================  =========================
step            what the runner does                                what it reports
==============  ==================================================  =========================
`Start`         calls the handler                                   `succeeded` or `failed`
`SetAside`      stores the event durably in the quarantine          `set_aside` or `broke`
`Ack`           acks the events                                     nothing, or `broke`
`WaitUntil`     waits for a change, or until `WaitUntil.time`       nothing
`Finish`        ends the run                                        nothing
==============  ==================================================  =========================

Each key has a queue of events, in order of arrival. An event can start once it is at the front of
the queues of all its keys. Consecutive events that share a key (ˢ) are at the front together::

    key A   │ 1  │ 4 │
    key B   │ 2  │ 4 │        1, 2, 3 and 5 can run together, because 3 and 5 share key C.
    key C   │ 3ˢ 5ˢ  │ 6 │    4 waits for 1 and 2, and 6 for 3 and 5.

The oldest unfinished event is always at the front of all its queues, so at least one event can
proceed, and there is no deadlock. An event leaves its queues when it is done: handled, or durable
in the quarantine. An event waiting for a retry keeps its place but occupies no worker.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from sfpubsub.backoff import Backoff
from sfpubsub.client.consumer import WaitUntil
from sfpubsub.errors import SfPubSubError

T = TypeVar("T")

# Maximum number of events in a run per worker, including running ones. Enough for workers to find
# other work while events with the same key queue up. With 8 workers and events of 1 MB the limit is
# 128 MB, about as much as one batch of 100 events.
ROOM_PER_WORKER = 16


@dataclass(frozen=True)
class Retry:
    """Retry policy: when and for how long a handler is called again after an exception.

    An `SfPubSubError` that is not ``retryable``, such as a `DecodeError`, is never retried.

    Raises:
        ValueError: *seconds*, *initial* or *maximum* is negative.
    """

    seconds: float = 60.0
    """How long an event is retried after its first failure, in seconds. The default is longer than
    a database takes to restart; events with other keys are still handled.
    """
    initial: float = 0.5
    """Upper bound of the first delay in seconds. Each delay is a random fraction of its upper
    bound, which doubles after each failure.
    """
    maximum: float = 10.0
    """Upper bound in seconds at which the delay stops doubling, so that an event is retried soon
    after the problem is solved.
    """
    exceptions: tuple[type[Exception], ...] = (Exception,)
    """The exceptions to retry; all others are final."""

    def __post_init__(self) -> None:
        for name in ("seconds", "initial", "maximum"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Retry.{name} must be at least 0, not {getattr(self, name)}")

    def may_help(self, error: BaseException) -> bool:
        """Return whether to call the handler again after *error*."""
        is_final = isinstance(error, SfPubSubError) and not error.retryable
        return isinstance(error, self.exceptions) and not is_final


@dataclass(frozen=True)
class QuarantineLimit:
    """How many events may fail before the handler itself is considered broken.

    A run stops when more than `failures` of the `last` most recently finished events have failed.
    The event that exceeds the limit is not quarantined, so at most `failures` events in a row can
    be quarantined.

    Raises:
        ValueError: `failures` is negative, or not less than `last`.
    """

    failures: int = 10
    """Number of failed events that a run tolerates. Bad events usually occur singly or in small
    groups. A handler that fails for a tenth of all events is probably broken.
    """
    last: int = 100
    """Number of most recently finished events to consider. The default is the maximum number of
    events in one response.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.failures < self.last:
            raise ValueError(
                f"QuarantineLimit.failures must be at least 0 and less than last ({self.last}), "
                f"not {self.failures}"
            )


class Shared(NamedTuple):
    """A key that several events can hold at the same time.

    An event with a shared key waits only for earlier events that hold the same key exclusively.
    """

    key: Hashable


class Job(Generic[T]):
    """An event and its progress. Outside this module, use only `event`, `tries` and `error`."""

    __slots__ = ("blockers", "error", "event", "keys", "order", "pauses", "retry_until", "tries")

    def __init__(self, order: int, event: T) -> None:
        self.order: int = order  # number in order of arrival
        self.event: T = event
        self.keys: dict[Hashable, bool] = {}  # key -> whether it is shared
        self.blockers: int = 0  # turns that it waits for
        self.tries: int = 0
        self.error: BaseException | None = None  # of its last try
        self.pauses: Backoff | None = None  # from its first failure on
        self.retry_until: float = 0.0


class Start(NamedTuple, Generic[T]):
    """Step: call the handler for an event."""

    job: Job[T]


class SetAside(NamedTuple, Generic[T]):
    """Step: store an event durably in the quarantine."""

    job: Job[T]


class Ack(NamedTuple, Generic[T]):
    """Step: ack events that were handled or are in the quarantine."""

    events: list[T]


class Finish(NamedTuple):
    """Step: end the run, because all handlers have finished."""


Step: TypeAlias = Start[T] | SetAside[T] | Ack[T] | WaitUntil | Finish

_FOR_EVER, _FINISH = WaitUntil(None), Finish()


class _QueueEntry(Generic[T]):
    """An entry in a key's queue: one exclusive event, or consecutive events that share the key.

    The events of an entry can be handled at the same time.
    """

    __slots__ = ("left", "shared", "waiting")

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.left = 0  # events in it that are not done
        self.waiting: list[Job[T]] = []  # events added while another turn was at the front


class Dispatcher(Generic[T]):
    """Decides which steps one run takes. Not thread-safe.

    Args:
        workers: Maximum number of events that are being handled or quarantined at a time.
        retry: The retry policy; None means that no event is retried.
        limit: Limit on quarantined events; None stops the run at the first failure.
        room: Maximum number of unfinished events that the run holds.
    """

    def __init__(
        self,
        *,
        workers: int,
        retry: Retry | None,
        limit: QuarantineLimit | None,
        room: int,
    ) -> None:
        self._workers = workers
        self._retry = retry
        self._limit = limit
        self._room = room
        self._is_full = False
        self._arrivals = 0
        self._held = 0  # arrived and not done
        self._busy = 0  # with a handler, or being set aside
        self._turns: dict[Hashable, deque[_QueueEntry[T]]] = {}
        self._ready: list[tuple[int, Job[T]]] = []  # heap by order: commits wait for the oldest
        self._retries: list[tuple[float, int, Job[T]]] = []  # heap by time
        self._aside: deque[Job[T]] = deque()
        self._acks: list[T] = []
        self._outcomes: deque[bool] = deque(maxlen=limit.last if limit else 0)  # whether it failed
        self._closed = False
        self.stopped = False
        """Whether the run has stopped, so that no more events are passed to the handler."""
        self.failed_job: Job[T] | None = None
        """The event that stopped the run."""
        self.over_limit = False
        """Whether `failed_job` exceeded the limit of events to quarantine."""
        self.breakage: BaseException | None = None
        """The error that stopped the run because an event could not be quarantined or acked."""
        self.handled = 0
        """Number of events handled."""
        self.retried = 0
        """Number of retries."""
        self.quarantined = 0
        """Number of events quarantined."""

    # Inputs.

    @property
    def has_room(self) -> bool:
        """Whether the run can accept more events.

        Once it is full, it accepts no more events until at least half of its capacity is free.
        """
        self._is_full = self._held >= (self._room // 2 + 1 if self._is_full else self._room)
        return not self._is_full

    def arrived(self, event: T, keys: Iterable[Hashable] = ()) -> None:
        """Add the next event.

        Args:
            event: The event.
            keys: Keys of the event. Events with a common key are processed in order of arrival.
        """
        job = self._job(event)
        for key in keys:
            if isinstance(key, Shared):
                job.keys.setdefault(key.key, True)
            else:
                job.keys[key] = False
        for key, shared in job.keys.items():
            turns = self._turns.setdefault(key, deque())
            if not (turns and shared and turns[-1].shared):
                turns.append(_QueueEntry(shared))
            turns[-1].left += 1
            if turns[-1] is not turns[0]:
                turns[-1].waiting.append(job)
                job.blockers += 1
        if not job.blockers:
            self._is_ready(job)

    def arrived_broken(self, event: T, error: Exception) -> None:
        """Add the next event, whose keys cannot be determined because of *error*.

        The event counts as failed only when its turn comes, so that older events are handled first.
        Otherwise, a run that stops at this event after every restart would never make progress.
        """
        job = self._job(event)
        job.error = error
        self._is_ready(job)

    def _job(self, event: T) -> Job[T]:
        self._arrivals += 1
        self._held += 1
        return Job(self._arrivals, event)

    def _is_ready(self, job: Job[T]) -> None:
        heapq.heappush(self._ready, (job.order, job))

    def succeeded(self, job: Job[T]) -> None:
        """Record that the handler succeeded for an event, which can now be acked."""
        self._busy -= 1
        self.handled += 1
        self._outcomes.append(False)
        self._done(job)

    def failed(self, job: Job[T], error: BaseException, now: float, jitter: float) -> None:
        """Record that the handler failed on an event.

        The event will be retried or quarantined, or it stops the run. If the run has already
        stopped, the event is simply left unacked.

        Args:
            job: The event.
            error: The exception raised.
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
        """
        self._busy -= 1
        job.error = error
        if self.stopped:
            return  # it is not acked and will be redelivered
        due = self._due(job, error, now, jitter)
        if due is None:
            self._give_up(job)
        else:
            heapq.heappush(self._retries, (due, job.order, job))

    def _due(self, job: Job[T], error: BaseException, now: float, jitter: float) -> float | None:
        if self._retry is None or not self._retry.may_help(error):
            return None
        if job.pauses is None:
            job.retry_until = now + self._retry.seconds
            job.pauses = Backoff(self._retry.initial, self._retry.maximum)
        if now >= job.retry_until:
            return None
        return min(now + job.pauses.next(jitter), job.retry_until)

    def set_aside(self, job: Job[T]) -> None:
        """Record that an event was stored durably in the quarantine, and can now be acked."""
        self._busy -= 1
        self.quarantined += 1
        self._done(job)

    def broke(self, error: BaseException, job: Job[T] | None = None) -> None:
        """Stop the run because of an error. `breakage` keeps the first such error.

        Args:
            error: The exception raised.
            job: The event that could not be quarantined; None if acking failed.
        """
        if job is not None:
            self._busy -= 1
        self.breakage = self.breakage or error
        self.stop()

    def close(self) -> None:
        """Record that no more events will arrive; the run ends once all its events are done."""
        self._closed = True

    def stop(self) -> None:
        """Start no more handlers; those that are running may finish."""
        self.stopped = True

    def _give_up(self, job: Job[T]) -> None:
        limit = self._limit
        if limit is not None and isinstance(job.error, Exception):
            self._outcomes.append(True)
            if sum(self._outcomes) <= limit.failures:
                self._aside.append(job)
                return
            self.over_limit = True
        self.failed_job = job
        self.stop()

    def _done(self, job: Job[T]) -> None:
        self._held -= 1
        self._acks.append(job.event)
        for key in job.keys:
            turns = self._turns[key]
            turns[0].left -= 1
            if turns[0].left:
                continue
            turns.popleft()
            if not turns:
                del self._turns[key]
                continue
            waiting, turns[0].waiting = turns[0].waiting, []
            for other in waiting:
                other.blockers -= 1
                if not other.blockers:
                    self._is_ready(other)

    # Decisions.

    def next(self, now: float) -> Step[T]:
        """Decide what the runner does next, and return it as a step.

        Args:
            now: The current time, in seconds.
        """
        if self._acks:
            acks, self._acks = self._acks, []
            return Ack(acks)
        while self._retries and self._retries[0][0] <= now:
            self._is_ready(heapq.heappop(self._retries)[2])
        while self._busy < self._workers and not self.stopped:
            if self._aside:
                self._busy += 1
                return SetAside(self._aside.popleft())
            if not self._ready:
                break
            job = heapq.heappop(self._ready)[1]
            if job.error is not None and not job.tries:  # its keys could not be determined
                self._give_up(job)
                continue
            self._busy += 1
            job.tries += 1
            self.retried += job.tries > 1
            return Start(job)
        if self.stopped:
            return _FOR_EVER if self._busy else _FINISH
        if self._closed and not self._held:
            return _FINISH
        return WaitUntil(self._retries[0][0]) if self._retries else _FOR_EVER
