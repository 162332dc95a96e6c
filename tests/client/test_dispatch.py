"""The dispatcher, compared with a slow but simple model, and its rules one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from sfpubsub.client.consumer import WaitUntil
from sfpubsub.client.dispatch import (
    Ack,
    Dispatcher,
    Finish,
    Job,
    QuarantineLimit,
    Retry,
    SetAside,
    Shared,
    Start,
)
from sfpubsub.errors import CommitError, DecodeError, StreamUnavailableError

NO_LIMIT = QuarantineLimit(failures=10**6, last=10**6 + 1)


def dispatcher(**options: Any) -> Dispatcher[Any]:
    """Return a dispatcher with 4 workers, and no retries or failure limit unless
    *options* set them.
    """
    return Dispatcher(**{"workers": 4, "retry": None, "limit": None, "room": 100, **options})


def steps(work: Dispatcher[Any], now: float = 0.0) -> list[Any]:
    """Return all steps that are due now, ending with WaitUntil or Finish."""
    found = []
    while not isinstance(step := work.next(now), WaitUntil | Finish):
        found.append(step)
    return [*found, step]


def started(work: Dispatcher[Any], now: float = 0.0) -> dict[Any, Job[Any]]:
    """Return the jobs that the dispatcher starts at the time *now*, by event."""
    return {s.job.event: s.job for s in steps(work, now) if isinstance(s, Start)}


class Model:
    """What a run may do, computed anew each time from the list of all events that arrived."""

    def __init__(self, workers: int, retry: Retry | None, *, quarantines: bool) -> None:
        self.workers, self.retry, self.quarantines = workers, retry, quarantines
        self.keys: list[dict[Any, bool]] = []  # of each event: key -> whether it is shared
        self.state: list[str] = []  # waiting, running, pausing, failed, setting aside, done, acked
        self.due: dict[int, float] = {}
        self.first_failure: dict[int, float] = {}
        self.broken: dict[int, DecodeError] = {}  # events whose keys cannot be determined
        self.stopped = False

    def arrive(self, keys: Iterable[Any]) -> int:
        """Add an event with *keys*, and return its number."""
        found: dict[Any, bool] = {}
        for key in keys:
            if isinstance(key, Shared):
                found.setdefault(key.key, True)
            else:
                found[key] = False
        self.keys.append(found)
        self.state.append("waiting")
        return len(self.state) - 1

    def conflict(self, one: int, other: int) -> bool:
        """Return whether the two events must not run at the same time."""
        mine, theirs = self.keys[one], self.keys[other]
        return any(key in theirs and not (mine[key] and theirs[key]) for key in mine)

    def is_free(self, event: int) -> bool:
        """Return whether every earlier event that *event* must wait for is done."""
        return not any(
            self.conflict(event, other)
            for other in range(event)
            if self.state[other] not in ("done", "acked")
        )

    @property
    def busy(self) -> int:
        return sum(state in ("running", "setting aside") for state in self.state)

    def startable(self, now: float) -> list[int]:
        """Return the events that may be started now, the oldest first."""
        return [
            event
            for event, state in enumerate(self.state)
            if (state == "waiting" and self.is_free(event))
            or (state == "pausing" and self.due[event] <= now)
        ]


class Walk:
    """One random run: steps are taken in random order, and the model checks each of them."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.retry = rng.choice([None, Retry(5, 1, 4), Retry(0), Retry(3, 1, 2, (OSError,))])
        self.quarantines = rng.random() < 0.6
        workers = rng.randint(1, 5)
        self.model = Model(workers, self.retry, quarantines=self.quarantines)
        self.work: Dispatcher[int] = dispatcher(
            workers=workers, retry=self.retry, limit=NO_LIMIT if self.quarantines else None
        )
        self.names = list(range(rng.randint(1, 8)))
        self.failing = rng.choice([0.0, 0.1, 0.5])
        self.jobs: dict[int, Job[int]] = {}
        self.now = 0.0
        self.seen: list[str] = []

    def key(self) -> Any:
        name = self.random.choice(self.names)
        return Shared(name) if self.random.random() < 0.4 else name

    def act(self) -> None:
        going = [e for e, s in enumerate(self.model.state) if s in ("running", "setting aside")]
        what = self.random.choice(["arrive", "arrive", "look", "look", "report", "report", "time"])
        if what == "arrive" and not self.model.stopped:
            self.arrive()
        elif what == "report" and going:
            self.report(self.random.choice(going))
        elif what == "time":
            self.now += self.random.choice([0.1, 1.0, 3.0])
        else:
            self.next_step()

    def arrive(self) -> None:
        keys = [self.key() for _ in range(self.random.choice([0, 1, 1, 1, 2, 3]))]
        if self.random.random() < 0.02:
            event = self.model.arrive([])
            self.model.broken[event] = DecodeError("no keys")
            self.work.arrived_broken(event, self.model.broken[event])
        else:
            self.work.arrived(self.model.arrive(keys), keys)

    def report(self, event: int) -> None:
        model, job = self.model, self.jobs.pop(event)
        if model.state[event] == "setting aside":
            self.work.set_aside(job)
            model.state[event] = "done"
        elif self.random.random() >= self.failing:
            self.work.succeeded(job)
            model.state[event] = "done"
        else:
            error = self.random.choice(
                [OSError("down"), ValueError("bad"), DecodeError("bad"), SystemExit(1)]
                if self.random.random() < 0.3
                else [OSError("down")]
            )
            jitter = self.random.random()
            self.work.failed(job, error, self.now, jitter)
            self.failed(event, error)

    def failed(self, event: int, error: BaseException) -> None:
        model, retry = self.model, self.retry
        if model.stopped:
            model.state[event] = "dropped"
            return
        again = (
            retry is not None
            and isinstance(error, retry.exceptions)
            and not isinstance(error, DecodeError)
            and self.now < model.first_failure.setdefault(event, self.now) + retry.seconds
        )
        if again:
            due = next(due for due, _, job in self.work._retries if job.event == event)
            last = model.first_failure[event] + retry.seconds
            assert self.now <= due <= min(last, self.now + retry.maximum)
            model.state[event], model.due[event] = "pausing", due
        elif self.quarantines and isinstance(error, Exception):
            model.state[event] = "failed"
        else:
            model.state[event] = "dropped"
            model.stopped = True
            assert self.work.failed_job.event == event
            assert self.work.failed_job.error is error

    def next_step(self) -> Any:
        """Get one step from the dispatcher, and check it against the model."""
        model, step = self.model, self.work.next(self.now)
        if not isinstance(step, Ack):
            self.fail_events_without_keys(step)
        self.seen.append(type(step).__name__)
        if isinstance(step, Start):
            event = step.job.event
            assert not model.stopped
            assert event in model.startable(self.now), "out of order, or before its time"
            assert event == min(model.startable(self.now)), "the oldest must start first"
            model.state[event] = "running"
            self.jobs[event] = step.job
        elif isinstance(step, SetAside):
            event = step.job.event
            assert model.state[event] == "failed"
            assert not model.stopped
            model.state[event] = "setting aside"
            self.jobs[event] = step.job
        elif isinstance(step, Ack):
            for event in step.events:
                assert model.state[event] == "done", "acked twice, or not done"
                model.state[event] = "acked"
        else:
            self.check_nothing_to_do(step)
        assert model.busy <= model.workers
        return step

    def fail_events_without_keys(self, step: Any) -> None:
        """Update the model for events with unknown keys that failed before *step* was returned."""
        model = self.model
        if model.stopped or model.busy >= model.workers:
            return
        is_first = "failed" in model.state  # quarantined before anything is started
        while not is_first and not model.stopped and (due := model.startable(self.now)):
            if min(due) not in model.broken:
                break
            self.failed(min(due), model.broken[min(due)])
            is_first = "failed" in model.state

    def check_nothing_to_do(self, step: WaitUntil | Finish) -> None:
        """Check that the dispatcher was right to return *step*: to wait or to finish."""
        model = self.model
        assert "done" not in model.state, "something is left to ack"
        if model.stopped:
            assert isinstance(step, Finish) is (model.busy == 0)
            return
        if model.busy < model.workers:
            assert not model.startable(self.now), "a worker is idle without need"
            assert "failed" not in model.state
        pausing = [e for e, state in enumerate(model.state) if state == "pausing"]
        if isinstance(step, Finish):
            assert set(model.state) <= {"acked"}
        elif pausing and model.busy < model.workers:
            assert step.time == min(model.due[event] for event in pausing) > self.now

    def run(self) -> None:
        ends_early = self.random.random() < 0.2
        for _ in range(self.random.choice([20, 60, 150])):
            self.act()
        if ends_early:
            self.work.stop()
            self.model.stopped = True
        self.work.close()
        self.failing = self.random.choice([0.0, self.failing])
        self.finish()
        states = set(self.model.state)
        assert "running" not in states
        if not self.model.stopped:
            assert states <= {"acked"}
        count = sum(state == "acked" for state in self.model.state)
        assert self.work.handled + self.work.quarantined == count

    def finish(self) -> None:
        """Run until the dispatcher finishes; fail if that takes so many steps that it must be
        deadlocked.
        """
        for _ in range(100 * (len(self.model.state) + 10)):
            step = self.next_step()
            if isinstance(step, Finish):
                return
            if isinstance(step, WaitUntil):
                going = list(self.jobs)
                if going:
                    self.report(self.random.choice(going))
                else:
                    assert step.time is not None, "nothing runs, nothing is due: a deadlock"
                    self.now = step.time
        raise AssertionError("the run does not end")


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_random_interleavings_obey_the_rules(first: int):
    """Each key's events stay in order, no run uses too many workers, and none deadlocks.

    Each finished event is acked once, unless the run is stopped.
    """
    for seed in range(first, first + 40):
        try:
            Walk(seed).run()
        except BaseException:
            print(f"seed {seed}")
            raise


def test_events_of_one_key_run_in_order_and_others_do_not_wait():
    """An event starts once the previous event with its key is done.

    Events with other keys start without waiting.
    """
    work = dispatcher()
    for event, key in enumerate("aabab"):
        work.arrived(event, [key])
    first = started(work)
    assert list(first) == [0, 2]
    work.succeeded(first[0])
    assert list(started(work)) == [1]


def test_an_event_with_several_keys_waits_for_all_of_them():
    """An event with two keys starts after the earlier events of both and before the later ones."""
    work = dispatcher()
    for event, keys in enumerate(["a", "b", "ab", "a", "b"]):
        work.arrived(event, keys)
    first = started(work)
    assert list(first) == [0, 1]
    work.succeeded(first[1])
    assert list(started(work)) == []
    work.succeeded(first[0])
    both = started(work)
    assert list(both) == [2]
    work.succeeded(both[2])
    assert list(started(work)) == [3, 4]


def test_repeated_key_counts_once_and_exclusive_use_wins():
    """An event that lists a key several times, both shared and exclusive, uses it exclusively and
    does not wait for itself.
    """
    work = dispatcher()
    work.arrived(0, ["a", Shared("a"), "a"])
    work.arrived(1, [Shared("a")])
    first = started(work)
    assert list(first) == [0]
    work.succeeded(first[0])
    assert list(started(work)) == [1]


def test_shared_and_exclusive_uses_of_a_key_wait_for_each_other():
    """Events that only share a key (`Shared`) run concurrently.

    An event that uses the key exclusively waits for them, and later events wait for it.
    """
    work = dispatcher()
    for event, key in enumerate([Shared("o"), Shared("o"), "o", Shared("o"), Shared("o")]):
        work.arrived(event, [key])
    first = started(work)
    assert list(first) == [0, 1]
    work.succeeded(first[0])
    assert list(started(work)) == []
    work.succeeded(first[1])
    alone = started(work)
    assert list(alone) == [2]
    work.succeeded(alone[2])
    assert list(started(work)) == [3, 4]


def test_unused_keys_are_forgotten():
    """Memory is bounded by the events that are held, not by the number of keys ever seen."""
    work = dispatcher(workers=2)
    work.arrived("first", ["o"])
    work.arrived(0, ["x", Shared("o")])
    work.succeeded(started(work)["first"])
    held = started(work)[0]
    for event in range(1, 1000):
        work.arrived(event, [f"key {event}", Shared("o")])
        work.succeeded(started(work)[event])
        work.succeeded(held)
        work.arrived(-event, ["x", Shared("o")])
        held = started(work)[-event]
    assert len(work._turns) == 2
    assert not work._turns["o"][0].waiting


def test_event_waiting_for_a_retry_blocks_its_key_but_no_worker():
    """While an event waits for a retry, later events with its key wait too.

    Its worker is free for events with other keys.
    """
    work = dispatcher(workers=1, retry=Retry(seconds=60, initial=4, maximum=8))
    work.arrived("x", ["a"])
    work.arrived("behind", ["a"])
    work.arrived("other", ["b"])
    job = started(work)["x"]
    work.failed(job, OSError("down"), 10.0, 0.5)
    other = work.next(10.0)
    assert other.job.event == "other"
    work.succeeded(other.job)
    assert steps(work, 10.0) == [Ack(["other"]), WaitUntil(12.0)]
    assert work.next(11.9) == WaitUntil(12.0)
    assert work.next(12.0) == Start(job)
    work.failed(job, OSError("down"), 13.0, 0.5)
    assert work.next(13.0) == WaitUntil(17.0), "at most twice as long"
    assert work.next(17.0) == Start(job)
    work.succeeded(job)
    assert started(work, 17.0).keys() == {"behind"}
    assert (work.handled, work.retried) == (2, 2)


def test_last_retry_is_at_the_end_of_the_budget():
    """Retries end `Retry.seconds` after the first failure.

    The last delay is shortened so that the last retry happens exactly then.
    """
    work = dispatcher(retry=Retry(seconds=5, initial=4, maximum=100))
    work.arrived("x")
    job = started(work)["x"]
    work.failed(job, OSError(), 0.0, 0.9)
    assert started(work, 3.6)
    work.failed(job, OSError(), 4.0, 0.9)
    assert work.next(4.0) == WaitUntil(5.0)
    assert started(work, 5.0)
    work.failed(job, OSError(), 5.0, 0.9)
    assert work.failed_job is job
    assert job.tries == 3


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ValueError("bad"), True),
        (StreamUnavailableError("down"), True),
        (CommitError("no"), False),
        (DecodeError("no"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_errors_are_retried(error: BaseException, again: bool):
    """Errors are retried, except for final errors of this package, decoding errors, and
    KeyboardInterrupt.
    """
    work = dispatcher(retry=Retry())
    work.arrived("x")
    work.failed(started(work)["x"], error, 0.0, 0.5)
    assert work.stopped is not again


def test_only_named_exceptions_are_retried():
    """An exception that is not in `Retry.exceptions` fails the event at once."""
    work = dispatcher(retry=Retry(exceptions=(OSError,)))
    work.arrived("x")
    work.failed(started(work)["x"], ValueError(), 0.0, 0.5)
    assert work.failed_job.event == "x"


def test_stopped_run_finishes_and_acks_only_running_events():
    """After a failure, the events still running are awaited and acked; no others are acked."""
    work = dispatcher(workers=2)
    for event in range(4):
        work.arrived(event)
    jobs = started(work)
    work.failed(jobs[0], ValueError("bad"), 0.0, 0.5)
    assert work.next(0.0) == WaitUntil(None)
    work.succeeded(jobs[1])
    assert steps(work) == [Ack([1]), Finish()]
    assert work.failed_job is jobs[0]


def test_first_failure_is_the_one_reported():
    """Failures that happen while a run is stopping do not replace the one that stopped it."""
    work = dispatcher(workers=2)
    work.arrived("first")
    work.arrived("second")
    jobs = started(work)
    work.failed(jobs["first"], ValueError(), 0.0, 0.5)
    work.failed(jobs["second"], ValueError(), 0.0, 0.5)
    work.arrived_broken("third", ValueError())
    assert work.next(0.0) == Finish()
    assert work.failed_job.event == "first"
    assert steps(work) == [Finish()]


def test_event_whose_keys_are_unknown_reaches_no_handler():
    """An event whose keys are unknown is quarantined without being handled.

    It is not known which earlier events it would have to wait for.
    """
    work = dispatcher(limit=NO_LIMIT)
    work.arrived_broken("x", DecodeError("bad"))
    (step, wait) = steps(work)
    assert isinstance(step, SetAside)
    assert step.job.event == "x"
    assert wait == WaitUntil(None)


def test_event_whose_keys_are_unknown_fails_after_older_events():
    """An event whose keys are unknown fails only after older events are handled and acked.

    Otherwise, every new run would stop at it without making progress.
    """
    work = dispatcher(workers=1)
    work.arrived("old")
    error = DecodeError("bad")
    work.arrived_broken("x", error)
    work.succeeded(started(work)["old"])
    assert steps(work) == [Ack(["old"]), Finish()]
    assert (work.failed_job.event, work.failed_job.error) == ("x", error)


def test_failed_event_blocks_its_key_until_it_is_quarantined():
    """A failed event is acked once it is quarantined; later events of its key start only then."""
    work = dispatcher(limit=NO_LIMIT)
    work.arrived("x", ["a"])
    work.arrived("y", ["a"])
    work.failed(started(work)["x"], ValueError(), 0.0, 0.5)
    step = work.next(0.0)
    assert isinstance(step, SetAside)
    assert work.next(0.0) == WaitUntil(None)
    work.set_aside(step.job)
    assert work.next(0.0) == Ack(["x"])
    assert started(work).keys() == {"y"}
    assert work.quarantined == 1


def test_a_quarantine_that_cannot_be_written_stops_the_run():
    """If failed events cannot be quarantined, the run ends without acking them.

    The first write error is kept as the reason why the run ended.
    """
    work = dispatcher(limit=NO_LIMIT)
    for event in "xy":
        work.arrived(event)
    for job in started(work).values():
        work.failed(job, ValueError(), 0.0, 0.5)
    one, other, _ = steps(work)
    first = OSError("full")
    work.broke(first, one.job)
    work.broke(OSError("still full"), other.job)
    assert steps(work) == [Finish()]
    assert work.breakage is first


def test_failed_ack_stops_the_run():
    """A failed ack ends the run.

    It frees no worker, because an ack occupies none.
    """
    work = dispatcher()
    work.broke(OSError())
    assert steps(work) == [Finish()]


def test_quarantine_limit_stops_a_broken_handler():
    """The failure that exceeds the limit stops the run, and its event is not quarantined."""
    work = dispatcher(limit=QuarantineLimit(failures=3, last=10))
    kept = 0
    for event in range(5):
        work.arrived(event)
        for job in started(work).values():
            work.failed(job, ValueError(), 0.0, 0.5)
        for step in steps(work):
            if isinstance(step, SetAside):
                work.set_aside(step.job)
                kept += 1
    assert kept == 3
    assert work.over_limit
    assert work.failed_job.event == 3


def test_few_failures_among_many_events_are_within_the_limit():
    """A failure no longer counts towards the limit once enough events have followed it."""
    work = dispatcher(limit=QuarantineLimit(failures=1, last=5))
    for event in range(50):
        work.arrived(event)
        (job,) = started(work).values()
        if event % 5:
            work.succeeded(job)
        else:
            work.failed(job, ValueError(), 0.0, 0.5)
            work.set_aside(next(s.job for s in steps(work) if isinstance(s, SetAside)))
    assert (work.quarantined, work.handled, work.stopped) == (10, 40, False)


def test_room_opens_only_when_half_of_it_is_free():
    """A run that holds the maximum number of events accepts no more until half of them are done.

    Otherwise, it would request events one at a time.
    """
    work = dispatcher(room=4)
    for event in range(4):
        assert work.has_room
        work.arrived(event)
    jobs = started(work)
    assert not work.has_room
    work.succeeded(jobs[0])
    assert not work.has_room
    work.succeeded(jobs[1])
    assert work.has_room
    work.arrived(4)
    assert work.has_room


def test_closed_run_ends_after_its_last_event():
    """When no more events arrive, the run waits for retries and acks before it finishes."""
    work = dispatcher(retry=Retry(seconds=60))
    assert steps(work) == [WaitUntil(None)]
    work.arrived("x")
    job = started(work)["x"]
    work.close()
    work.failed(job, OSError(), 0.0, 1.0)
    assert isinstance(work.next(0.0), WaitUntil)
    assert started(work, 60.0)
    work.succeeded(job)
    assert steps(work, 60.0) == [Ack(["x"]), Finish()]


@pytest.mark.parametrize("name", ["seconds", "initial", "maximum"])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_invalid_retry_time_is_rejected(name: str, value: float):
    """A negative time or NaN raises ValueError with the name of the argument."""
    with pytest.raises(ValueError, match=f"Retry.{name} must be at least 0"):
        Retry(**{name: value})


@pytest.mark.parametrize(("failures", "last"), [(-1, 5), (5, 5), (6, 5)])
def test_invalid_quarantine_limit_is_rejected(failures: int, last: int):
    """A `QuarantineLimit` raises ValueError if *failures* is negative or not less than *last*."""
    with pytest.raises(ValueError, match="less than last"):
        QuarantineLimit(failures, last)
