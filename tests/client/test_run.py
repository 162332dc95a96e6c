"""Tests of a subscription's `run` with the sync and asyncio clients: order, retries, failures and
ways to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from sfpubsub import (
    Event,
    FileQuarantine,
    Quarantine,
    QuarantineLimit,
    Retry,
    RunSummary,
    Shared,
    by_record,
)
from sfpubsub.client.dispatch import ROOM_PER_WORKER
from sfpubsub.errors import (
    ConfigurationError,
    DecodeError,
    HandlerError,
    LocalProtocolError,
    SubscriptionClosedError,
    SubscriptionStoppedError,
    WriteError,
)

from ..conformance.faces import AsyncFace, Face, Held
from ..conformance.targets import NAME, TOPIC
from ..conftest import PATIENCE, until
from .test_managed import ACCOUNT
from .test_plain import MemoryStore
from .test_quarantine import Service

# Retries almost at once, for as long as a test may take.
SOON = Retry(seconds=PATIENCE, initial=0.01, maximum=0.05)

Start = Callable[..., tuple[Service, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an emulator and a client for it.

    Each test runs with the sync client and with the asyncio client.
    """
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Service, Face]:
            service = Service(tmp_path / "data", **settings)
            stack.callback(service.close)
            face = request.param(**service.arguments())
            stack.callback(face.close)
            return service, face

        yield make


def number(event: Event) -> int:
    """Return the order number of *event*."""
    return int(event.value["Order_Number__c"])


class Handler:
    """A handler that records its events, and stops the run once it has handled *count* of them.

    Args:
        count: Number of different events after which the run is stopped; None if something else
            ends it.
        work: Called for each event with its number; may raise.
    """

    def __init__(self, count: int | None = None, work: Callable[[int], object] = int) -> None:
        self.held: Held | None = None
        self.seen: list[int] = []  # in the order in which they finished
        self.failed: list[int] = []
        self.at_a_time = 0
        self._running: set[int] = set()
        self._count = count
        self._work = work
        self._lock = threading.Lock()

    @property
    def running(self) -> set[int]:
        return set(self._running)

    def __call__(self, event: Event) -> None:
        which = number(event)
        with self._lock:
            self._running.add(which)
            self.at_a_time = max(self.at_a_time, len(self._running))
        try:
            self._work(which)
        except BaseException:
            with self._lock:
                self.failed.append(which)
            raise
        else:
            with self._lock:
                self.seen.append(which)
                if len(set(self.seen)) == self._count:
                    assert self.held is not None
                    self.held.stop()
        finally:
            with self._lock:
                self._running.discard(which)

    def run(self, held: Held, **options: Any) -> RunSummary:
        """Run the subscription *held* with this handler, and return the summary."""
        self.held = held
        return held.run(self, **options)

    def begin(self, held: Held, **options: Any) -> Future[RunSummary]:
        """Start a run of *held* with this handler in the background; return its future."""
        self.held = held
        return held.begin_run(self, **options)


def by_last_digit(event: Event) -> str:
    """Return the key of *event*: the last digit of its order number."""
    return f"key {number(event) % 10}"


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_each_key_keeps_its_order_and_all_events_are_committed(start: Start, ack: str):
    """With six workers and random delays, each event is handled once and committed, and the events
    of each key are handled in order.

    Six events are handled at a time; events with different keys do not wait for each other.
    """
    service, face = start()
    service.publish(300)
    rng = random.Random(1)
    handler = Handler(300, lambda _: time.sleep(rng.random() * 0.01))
    summary = handler.run(face.managed(NAME, ack=ack), workers=6, key=by_last_digit)
    assert summary == RunSummary(handled=300, retried=0, quarantined=0)
    assert Counter(handler.seen) == Counter(range(300))
    for key in range(10):
        mine = [which for which in handler.seen if which % 10 == key]
        assert mine == sorted(mine)
    assert handler.seen != sorted(handler.seen), "keys do not wait for each other"
    assert handler.at_a_time == 6
    assert service.committed() == 299


def test_without_a_key_events_do_not_wait_for_each_other(start: Start):
    """With `key=None`, a slow event does not delay any other event."""
    service, face = start()
    service.publish(50)
    others = threading.Event()
    handler = Handler(50, lambda which: which or others.wait(PATIENCE))
    run = handler.begin(face.managed(NAME), workers=2, key=None)
    until(lambda: len(handler.seen) == 49, "the others")
    others.set()
    assert run.result(PATIENCE).handled == 50
    assert handler.seen[-1] == 0


def test_finishing_an_event_starts_all_events_waiting_for_it(start: Start):
    """As soon as an event has been handled, all events that were waiting for it are handled at the
    same time.
    """
    service, face = start()
    service.publish(4)
    all_here = threading.Barrier(3)
    go = threading.Event()

    def work(which: int) -> None:
        if which:
            all_here.wait(PATIENCE / 4)
        else:
            go.wait(PATIENCE)

    handler = Handler(4, work)
    keys = []

    def key(event: Event) -> list[Any]:
        keys.append(number(event))
        return [Shared("o")] if number(event) else ["o"]

    run = handler.begin(face.managed(NAME), workers=4, key=key, retry=None)
    until(lambda: len(keys) == 4 and handler.running == {0}, "three that wait")
    go.set()
    assert run.result(PATIENCE).handled == 4


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_position_never_passes_an_event_that_is_still_handled(start: Start, ack: str):
    """While a handler runs, the committed position stays before its event, in any ack mode."""
    service, face = start(events_per_response=5)
    service.publish(60)
    go = threading.Event()
    handler = Handler(60, lambda which: which == 7 and go.wait(PATIENCE))
    run = handler.begin(face.managed(NAME, ack=ack), workers=4, key=None)
    until(lambda: len(handler.seen) == 59, "all others")
    until(lambda: service.committed() == 6, "what is before it")
    assert service.committed() == 6
    go.set()
    assert run.result(PATIENCE).handled == 60
    assert service.committed() == 59


def test_plain_run_stores_the_position_of_finished_events(start: Start):
    """A run stores the position of the finished events, and the next run resumes after it.

    The sync client calls the store in the thread that called `run`, because a store may be bound to
    its thread.
    """
    service, face = start()
    service.publish(40)
    threads: set[int] = set()

    class Store(MemoryStore):
        def set(self, topic, replay_id):
            threads.add(threading.get_ident())
            super().set(topic, replay_id)

    store = Store()
    first = Handler(40)
    first.run(face.plain(TOPIC, replay="earliest", replay_store=store))
    assert sorted(first.seen) == list(range(40))
    assert store.positions[TOPIC] == service.replay_id(39)
    if face.name == "sync":  # the asyncio client stores in its own threads
        assert threads == {threading.get_ident()}
    service.publish(3)
    second = Handler(3)
    second.run(face.plain(TOPIC, replay="earliest", replay_store=store))
    assert sorted(second.seen) == [40, 41, 42]


def test_failed_events_are_retried_until_the_handler_recovers(start: Start):
    """Retries preserve the order within each key, and every event is eventually handled and
    committed.
    """
    service, face = start()
    service.publish(30)
    tries: Counter[int] = Counter()

    def work(which: int) -> None:
        tries[which] += 1
        if which % 10 == 3 and tries[which] <= 3:
            raise ConnectionError("the database is down")

    handler = Handler(30, work)
    summary = handler.run(face.managed(NAME), workers=3, key=by_last_digit, retry=SOON)
    assert summary == RunSummary(handled=30, retried=9, quarantined=0)
    assert [which for which in handler.seen if which % 10 == 3] == [3, 13, 23]
    assert handler.failed == [3] * 3 + [13] * 3 + [23] * 3
    assert service.committed() == 29


def test_event_waiting_for_a_retry_occupies_no_worker(start: Start):
    """With one worker and no order, all other events are handled while a failed one waits for its
    retry.
    """
    service, face = start()
    service.publish(20)
    mended = threading.Event()

    def work(which: int) -> None:
        if which == 0 and not mended.is_set():
            raise ConnectionError("down")

    handler = Handler(20, work)
    run = handler.begin(face.managed(NAME), workers=1, key=None, retry=SOON)
    until(lambda: len(handler.seen) == 19, "the others")
    mended.set()
    assert run.result(PATIENCE).handled == 20


def test_failed_event_stops_the_run_and_finished_events_are_committed(start: Start):
    """By default `run` raises the error, and the next run begins with the failed event."""
    service, face = start()
    service.publish(30)

    def work(which: int) -> None:
        if which == 12:
            raise ValueError("no such account")

    handler = Handler(work=work)
    held = face.managed(NAME)
    with pytest.raises(HandlerError, match=r"the handler failed on event .* ValueError: no such"):
        handler.run(held, workers=1, retry=None)
    assert handler.seen == list(range(12))
    assert service.committed() == 11
    with pytest.raises(LocalProtocolError, match="is closed"):
        held.run(Handler())
    again = Handler(18)
    again.run(face.managed(NAME), workers=1)
    assert again.seen == list(range(12, 30))


def test_by_default_events_are_handled_in_order(start: Start):
    """Without any option, handlers run one at a time and in order of arrival, even while an event
    waits for its retry.
    """
    service, face = start()
    service.publish(20)
    failures = [3, 3, 11]

    def work(which: int) -> None:
        if which in failures:
            failures.remove(which)
            raise ConnectionError

    handler = Handler(20, work=work)
    summary = handler.run(face.managed(NAME), retry=SOON)
    assert handler.seen == list(range(20))
    assert handler.at_a_time == 1
    assert summary.retried == 3


def test_an_event_that_is_not_redelivered_is_not_said_to_be(start: Start):
    """A plain subscription without a store says that the failed event does not come again."""
    service, face = start()
    service.publish(1)

    def work(_which: int) -> None:
        raise ValueError("no such account")

    with pytest.raises(HandlerError, match="will not be redelivered, because no position is"):
        Handler(work=work).run(face.plain(TOPIC, replay="earliest"), retry=None)


def test_a_handlers_exception_is_logged_with_its_traceback(start: Start, caplog):
    """Even if a retry succeeds, the log shows the event and where its handler failed."""
    service, face = start()
    service.publish(1)
    failures = [0]

    def the_culprit(which: int) -> None:
        if which in failures:
            failures.remove(which)
            raise ConnectionError("no database")

    Handler(1, work=the_culprit).run(face.managed(NAME), retry=SOON)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.levelname == "WARNING"
    assert service.replay_id(0).hex() in record.getMessage()
    assert "the_culprit" in "".join(traceback.format_exception(record.exc_info[1]))


def test_handler_error_names_the_event_and_its_cause(start: Start):
    """The error carries the event's id, its replay id, the subscription and the handler's
    exception.
    """
    service, face = start()
    service.publish(1)
    reason = ValueError("no")

    def work(_which: int) -> None:
        raise reason

    with pytest.raises(HandlerError) as caught:
        Handler(work=work).run(face.managed(NAME), retry=Retry(0.1, 0.05))
    error = caught.value
    assert error.__cause__ is reason
    assert error.replay_id == service.replay_id(0)
    assert error.subscription == NAME
    assert error.event_id
    assert error.event_id in str(error)
    assert error.replay_id.hex() in str(error)
    assert "tried" in str(error)


class UnspeakableError(Exception):
    """An exception that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_exception_without_text_fails_the_run_like_any_other(start: Start):
    """If a handler raises an exception that cannot be converted to text, the run fails with a
    HandlerError that names the exception's class.
    """
    service, face = start()
    service.publish(1)

    def work(_which: int) -> None:
        raise UnspeakableError

    with pytest.raises(HandlerError, match=r"will be redelivered: UnspeakableError$"):
        Handler(work=work).run(face.managed(NAME), retry=None)


def test_failed_event_is_quarantined_and_the_run_goes_on(start: Start, tmp_path: Path):
    """The event is stored with the handler's error as its reason, and its position is committed."""
    service, face = start()
    service.publish(10)
    kept = FileQuarantine(tmp_path / "kept")

    def work(which: int) -> None:
        if which == 4:
            raise ValueError("no such account")

    handler = Handler(work=work)
    held = face.managed(NAME)
    options = {"retry": None, "on_failure": "quarantine", "quarantine": kept}
    run = handler.begin(held, workers=2, **options)
    until(lambda: len(handler.seen) + held.health().quarantined == 10, "all events")
    held.stop()
    summary = run.result(PATIENCE)
    assert summary == RunSummary(handled=9, retried=0, quarantined=1)
    assert held.health().quarantined == 1
    (entry,) = kept.entries()
    assert (entry.failed_in, entry.reason) == ("handler", "ValueError: no such account")
    assert 'raise ValueError("no such account")' in entry.traceback
    assert entry.raw.replay_id == service.replay_id(4)
    assert service.committed() == 9


def test_quarantine_is_never_written_in_the_event_loops_thread(start: Start):
    """In the asyncio client, the quarantine is written in another thread, since a slow write would
    block the event loop.
    """
    service, face = start()
    service.publish(1)
    threads: set[int] = set()

    class DurableState(Quarantine):
        def put(self, events):
            threads.add(threading.get_ident())

    def work(_which: int) -> None:
        raise ValueError

    held = face.managed(NAME)
    options = {"retry": None, "on_failure": "quarantine", "quarantine": DurableState()}
    run = Handler(work=work).begin(held, **options)
    until(lambda: held.health().quarantined == 1, "the event")
    held.stop()
    run.result(PATIENCE)
    assert len(threads) == 1
    if face.name == "asyncio":
        assert face.loop_thread not in threads


class FullDiskQuarantine(Quarantine):
    """A quarantine whose writes fail because the disk is full."""

    def put(self, events):
        raise WriteError("the disk is full")


def test_a_quarantine_that_cannot_be_written_stops_the_run(start: Start):
    """The write error is raised, and the position stays before the failed event."""
    service, face = start()
    service.publish(10)

    def work(which: int) -> None:
        if which == 4:
            raise ValueError("no such account")

    with pytest.raises(WriteError, match="the disk is full") as caught:
        Handler(work=work).run(
            face.managed(NAME),
            workers=1,
            retry=None,
            on_failure="quarantine",
            quarantine=FullDiskQuarantine(),
        )
    assert service.committed() == 3
    (note,) = caught.value.__notes__
    assert service.replay_id(4).hex() in note
    assert "ValueError: no such account" in note


def test_quarantine_limit_stops_a_broken_handler(start: Start, tmp_path: Path):
    """The failure that exceeds the limit stops the run, and its event is not quarantined."""
    service, face = start()
    service.publish(100)
    kept = FileQuarantine(tmp_path / "kept")

    def work(_which: int) -> None:
        raise ValueError("a bug")

    with pytest.raises(HandlerError, match="more than 5 of the last 20 events failed"):
        Handler(work=work).run(
            face.managed(NAME),
            workers=1,
            retry=None,
            on_failure="quarantine",
            quarantine=kept,
            quarantine_limit=QuarantineLimit(failures=5, last=20),
        )
    assert len(kept) == 5
    assert service.committed() == 4


@pytest.mark.parametrize("key", [None, number, by_record], ids=["none", "value", "record"])
def test_undecodable_event_is_quarantined_without_a_retry(start: Start, tmp_path: Path, key: Any):
    """An undecodable event is quarantined as a decoding failure and never retried, with or without
    a key function.
    """
    service, face = start()
    service.publish_valid(3)
    service.publish_undecodable()
    service.publish_valid(3)
    kept = FileQuarantine(tmp_path / "kept")
    handler = Handler()
    held = face.managed(NAME)
    run = handler.begin(held, key=key, retry=SOON, on_failure="quarantine", quarantine=kept)
    until(lambda: len(handler.seen) + held.health().quarantined == 7, "all events")
    held.stop()
    summary = run.result(PATIENCE)
    assert summary == RunSummary(handled=6, retried=0, quarantined=1)
    (entry,) = kept.entries()
    assert entry.failed_in == "decoding"
    assert "does not fit" in entry.reason
    assert service.committed() == 6


def test_undecodable_event_stops_the_run_by_default(start: Start):
    """The run raises an error caused by the DecodeError, and the event is not committed."""
    service, face = start()
    service.publish_valid(2)
    service.publish_undecodable()
    with pytest.raises(HandlerError, match="no key could be determined for event") as caught:
        Handler().run(face.managed(NAME), key=number, workers=1)
    assert isinstance(caught.value.__cause__, DecodeError)
    assert service.committed() == 1


def test_number_of_held_events_is_bounded(start: Start):
    """A run does not read batches far ahead of handlers that are busy."""
    service, face = start(events_per_response=10)
    service.publish(500)
    go = threading.Event()
    asked: list[int] = []

    def key(event: Event) -> None:
        asked.append(number(event))

    handler = Handler(500, lambda _: go.wait(PATIENCE))
    held = face.managed(NAME)
    run = handler.begin(held, workers=2, key=key)
    until(lambda: len(handler.running) == 2, "two handlers")
    bound = 2 * ROOM_PER_WORKER + 10
    until(lambda: len(asked) >= 2 * ROOM_PER_WORKER, "a full run")
    until(lambda: held.health().pending_count >= 100, "events that wait")
    assert len(asked) <= bound
    go.set()
    assert run.result(2 * PATIENCE).handled == 500


def test_drain_from_another_thread_waits_for_running_handlers(start: Start):
    """After a call of `drain`, no further handler starts; running handlers finish, and their events
    are committed.
    """
    service, face = start()
    service.publish(50)
    go = threading.Event()
    handler = Handler(None, lambda _: go.wait(PATIENCE))
    held = face.managed(NAME)
    run = handler.begin(held, workers=3, key=None)
    until(lambda: len(handler.running) == 3, "three handlers")
    drain = threading.Thread(target=held.drain)
    drain.start()
    until(lambda: held._subscription._delivery.discards, "the drain")
    assert not run.done()
    go.set()
    assert run.result(PATIENCE).handled == 3
    drain.join(PATIENCE)
    assert not drain.is_alive()
    assert sorted(handler.seen) == [0, 1, 2]
    assert service.committed() == 2


def test_stop_ends_a_run_waiting_for_a_retry(start: Start):
    """The run ends at once, even though its only event is not due for a retry for an hour."""
    service, face = start()
    service.publish(1)

    def work(_which: int) -> None:
        raise ConnectionError

    handler = Handler(None, work)
    held = face.managed(NAME)
    run = handler.begin(held, retry=Retry(seconds=3600, initial=3600, maximum=3600))
    until(lambda: handler.failed, "a failure")
    held.stop()
    assert run.result(PATIENCE) == RunSummary(0, 0, 0)
    assert service.committed() is None


def test_stop_ends_a_run_that_waits_for_events(start: Start):
    """The run ends without waiting for a further event."""
    service, face = start()
    service.publish(1)
    handler = Handler()
    held = face.managed(NAME)
    run = handler.begin(held)
    until(lambda: service.committed() == 0, "the commit of the only event")
    held.stop()  # the next keepalive would come after 120 s
    assert run.result(PATIENCE) == RunSummary(1, 0, 0)
    assert handler.seen == [0]


def test_handler_cannot_drain_its_own_subscription(start: Start):
    """A handler that drains its own subscription, which would wait forever, gets an error."""
    service, face = start()
    service.publish(1)
    held = face.managed(NAME)

    def drain(_event: Event) -> None:
        held._subscription.drain()

    async def adrain(_event: Event) -> None:
        await held._subscription.drain()

    handler = drain if face.name == "sync" else adrain
    with pytest.raises(HandlerError, match="from within its own run"):
        face.call(held._subscription.run, handler)


def test_abort_lets_running_handlers_finish_and_commits_nothing(start: Start):
    """After `abort`, running handlers finish and count as handled, but the next run gets all events
    again.
    """
    service, face = start()
    service.publish(20)
    go = threading.Event()
    handler = Handler(None, lambda _: go.wait(PATIENCE))
    held = face.managed(NAME)
    run = handler.begin(held, workers=2, key=None)
    until(lambda: len(handler.running) == 2, "two handlers")
    held.abort()
    go.set()
    assert run.result(PATIENCE).handled == 2
    assert service.committed() is None
    again = Handler(20)
    again.begin(face.managed(NAME)).result(PATIENCE)
    assert sorted(again.seen) == list(range(20))


def test_failed_subscription_ends_the_run_with_its_error(start: Start):
    """`run` raises the error that ended the subscription, and so does every later call."""
    service, face = start()
    service.publish(5)
    handler = Handler()
    held = face.managed(NAME)
    run = handler.begin(held)
    until(lambda: len(handler.seen) == 5, "the events")
    service.stop_subscription()
    with pytest.raises(SubscriptionStoppedError):
        run.result(PATIENCE)
    with pytest.raises(SubscriptionStoppedError):
        held.run(handler)


def test_starting_a_run_acks_the_previous_batch(start: Start):
    """In auto mode, starting a run acks the previous batch, as calling `next_batch` would."""
    service, face = start(events_per_response=5)
    service.publish(15)
    held = face.managed(NAME)
    first = held.batch()
    handler = Handler(15 - len(first))
    handler.run(held)
    assert service.committed() == 14


def test_second_run_at_the_same_time_is_rejected(start: Start):
    """Two concurrent runs of one subscription would compete for its events."""
    service, face = start()
    service.publish(1)
    handler = Handler()
    held = face.managed(NAME)
    run = handler.begin(held)
    until(lambda: handler.seen, "an event")
    with pytest.raises(LocalProtocolError, match="is already running a handler"):
        held.run(Handler())
    held.stop()
    run.result(PATIENCE)


def test_stop_ends_iteration_and_still_accepts_acks(start: Start):
    """After `stop`, no other batch is read, but the last one can still be acked and committed."""
    service, face = start(events_per_response=5)
    service.publish(10)
    held = face.managed(NAME, ack="manual")
    batch = held.batch()
    held.stop()
    with pytest.raises(SubscriptionClosedError):
        held.next()
    batch.ack()
    held.drain()
    assert service.committed() == len(batch) - 1


def test_stop_can_be_called_by_a_signal_handler_at_any_moment(start: Start):
    """`stop` needs no lock of the driver, and no other that the interrupted thread cannot take
    again.
    """
    _, face = start()
    held = face.managed(NAME)
    delivery = held._subscription._delivery
    with delivery._lock, delivery.driver._lock:
        held.stop()
    with pytest.raises(SubscriptionClosedError):
        held.next()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"on_failure": "skip"}, "on_failure must be 'stop' or 'quarantine', not 'skip'"),
        ({"on_failure": "quarantine"}, "must be used together"),
        ({"quarantine": FullDiskQuarantine()}, "must be used together"),
    ],
)
def test_invalid_run_options_are_rejected(start: Start, options: dict[str, Any], message: str):
    """An invalid option of `run` raises ConfigurationError."""
    _, face = start()
    with pytest.raises(ConfigurationError, match=message):
        face.managed(NAME).run(Handler(), **options)


def test_handler_of_the_wrong_kind_is_rejected(start: Start):
    """The sync client rejects coroutine handlers, and the asyncio client rejects plain ones."""
    _, face = start()
    held = face.managed(NAME)

    async def coroutine(_event: Event) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine function"):
        face.call(held._subscription.run, coroutine if face.name == "sync" else number)


@pytest.mark.parametrize(
    ("record_ids", "key"),
    [
        (["001A", "001B"], [Shared(("object", "Account")), "001A", "001B"]),
        (["001*"], [("object", "Account")]),
        (["001A", "001*"], [("object", "Account")]),
        ([], [("object", "Account")]),
    ],
)
def test_default_key_of_a_change_event(start: Start, record_ids: list[str], key: Any):
    """A change event's default keys are its records and, as a shared key, their object.

    An event for all records has the object as its only key.
    """
    service, face = start()
    header = {**ACCOUNT["ChangeEventHeader"], "recordIds": record_ids}
    service.emulator.publish("/data/AccountChangeEvent", [{"ChangeEventHeader": header}])
    held = face.plain("/data/AccountChangeEvent", replay="earliest")
    (event,) = held.batch()
    assert by_record(event) == key


def test_changes_to_a_record_are_handled_in_order(start: Start):
    """By default, the events of each record are handled in order, even if events about all records
    of the object come between them.
    """
    service, face = start()
    topic = "/data/AccountChangeEvent"
    rng = random.Random(2)
    rows = []
    for index in range(120):
        ids = (
            ["001*"] if index % 40 == 20 else rng.sample(["001A", "001B", "001C"], k=index % 2 + 1)
        )
        header = {**ACCOUNT["ChangeEventHeader"], "recordIds": ids, "sequenceNumber": index}
        rows.append({"ChangeEventHeader": header})
    service.emulator.publish(topic, rows)
    seen: dict[str, list[int]] = defaultdict(list)
    held = face.plain(topic, replay="earliest")

    def handle(event: Event) -> None:
        time.sleep(random.random() * 0.005)
        change = event.change_event
        ids = change.record_ids
        for record in ["001A", "001B", "001C"] if ids == ("001*",) else ids:
            seen[record].append(change.sequence_number)
        if sum(map(len, seen.values())) == expected:
            held.stop()

    expected = sum(
        3
        if row["ChangeEventHeader"]["recordIds"] == ["001*"]
        else len(row["ChangeEventHeader"]["recordIds"])
        for row in rows
    )
    assert held.run(handle, workers=8).handled == 120
    for numbers in seen.values():
        assert numbers == sorted(numbers)


def cancelled_run(service: Service, cancel: Callable[[asyncio.Task[Any]], Any]) -> list[str]:
    """Cancel a run of three handlers; return the outcomes of the handlers and of the run, in order.

    *cancel* is called with the run's task while the run waits for its handlers.
    """
    told: list[str] = []
    face = AsyncFace(**service.arguments())

    async def main() -> None:
        go, running = asyncio.Event(), asyncio.Semaphore(0)

        async def handle(_event: Event) -> None:
            running.release()
            try:
                await go.wait()
                told.append("handled")
            except asyncio.CancelledError:
                told.append("handler cancelled")
                raise

        subscription = face.client.subscribe_managed(NAME)
        run = asyncio.create_task(subscription.run(handle, workers=3, key=None))
        for _ in range(3):
            await running.acquire()
        run.cancel()
        await asyncio.sleep(0.05)
        assert not run.done(), "the run must wait for its handlers"
        cancel(run)
        go.set()
        try:
            await run
        except asyncio.CancelledError:
            told.append("cancelled")
        assert subscription.closed

    try:
        face.call(main)
    finally:
        face.close()
    return told


def test_cancelled_run_finishes_its_handlers(tmp_path: Path):
    """A cancelled run ends after its running handlers have finished and it has committed."""
    service = Service(tmp_path)
    try:
        service.publish(10)
        assert cancelled_run(service, do_nothing) == ["handled"] * 3 + ["cancelled"]
        assert service.committed() == 2
    finally:
        service.close()


def test_second_cancellation_cancels_the_handlers(tmp_path: Path):
    """When a run is cancelled twice, its handlers are cancelled and nothing is committed."""
    service = Service(tmp_path)
    try:
        service.publish(10)
        told = cancelled_run(service, asyncio.Task.cancel)
        assert told == ["handler cancelled"] * 3 + ["cancelled"]
        assert service.committed() is None
    finally:
        service.close()


def do_nothing(_task: Any) -> None:
    """A callback for `cancelled_run` that does nothing to the run's task."""
