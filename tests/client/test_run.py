"""`run` of both faces on the emulator: order, retries, failures, and every way that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
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

# Retries at once, and for as long as any test takes.
SOON = Retry(seconds=PATIENCE, initial=0.01, maximum=0.05)

Start = Callable[..., tuple[Service, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Make an emulator, and a client of either face."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Service, Face]:
            service = Service(tmp_path / "data", **settings)
            stack.callback(service.close)
            face = request.param(**service.arguments())
            stack.callback(face.close)
            return service, face

        yield make


def number(event: Event) -> int:
    return int(event.value["Order_Number__c"])


class Handler:
    """Notes what it is given, and stops the run with the last of so many events.

    Args:
        count: How many different events there are; None if something else ends the run.
        work: Called for each event with its number; may raise.
    """

    def __init__(self, count: int | None = None, work: Callable[[int], object] = int) -> None:
        self.held: Held | None = None
        self.seen: list[int] = []  # in order of their ends
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
        self.held = held
        return held.run(self, **options)

    def begin(self, held: Held, **options: Any) -> Future[RunSummary]:
        self.held = held
        return held.begin_run(self, **options)


def by_tens(event: Event) -> str:
    return f"key {number(event) % 10}"


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_each_key_keeps_its_order_and_everything_is_committed(start: Start, ack: str):
    """Under random delays, with many workers: once each, in order for a key, and no more at a time
    than was asked for. Afterwards nothing is left to commit."""
    service, face = start()
    service.publish(300)
    rng = random.Random(1)
    handler = Handler(300, lambda _: time.sleep(rng.random() * 0.01))
    summary = handler.run(face.managed(NAME, ack=ack), workers=6, key=by_tens)
    assert summary == RunSummary(handled=300, retried=0, quarantined=0)
    assert Counter(handler.seen) == Counter(range(300))
    for key in range(10):
        mine = [which for which in handler.seen if which % 10 == key]
        assert mine == sorted(mine)
    assert handler.seen != sorted(handler.seen), "keys do not wait for each other"
    assert handler.at_a_time == 6
    assert service.committed() == 299


def test_without_a_key_nothing_waits_for_anything(start: Start):
    """key=None: one event that takes long holds up no other."""
    service, face = start()
    service.publish(50)
    others = threading.Event()
    handler = Handler(50, lambda which: which or others.wait(PATIENCE))
    run = handler.begin(face.managed(NAME), workers=2, key=None)
    until(lambda: len(handler.seen) == 49, "the others")
    others.set()
    assert run.result(PATIENCE).handled == 50
    assert handler.seen[-1] == 0


def test_all_that_waited_for_an_event_starts_with_its_end(start: Start):
    """Workers with nothing to do hear of it, not only the one that is free now."""
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
def test_a_position_never_passes_an_event_that_is_still_handled(start: Start, ack: str):
    """Batches that are asked for behind it ack nothing, whatever the subscription's mode."""
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


def test_a_plain_subscription_stores_what_is_done(start: Start):
    """In the thread that called run, which a shelve needs; the next run begins behind it."""
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
    if face.name == "sync":  # asyncio has threads of the client's for stores
        assert threads == {threading.get_ident()}
    service.publish(3)
    second = Handler(3)
    second.run(face.plain(TOPIC, replay="earliest", replay_store=store))
    assert sorted(second.seen) == [40, 41, 42]


def test_a_handler_that_fails_for_a_time_recovers(start: Start):
    """Events are tried again in their order, other keys go on, and nothing is lost."""
    service, face = start()
    service.publish(30)
    tries: Counter[int] = Counter()

    def work(which: int) -> None:
        tries[which] += 1
        if which % 10 == 3 and tries[which] <= 3:
            raise ConnectionError("the database is down")

    handler = Handler(30, work)
    summary = handler.run(face.managed(NAME), workers=3, key=by_tens, retry=SOON)
    assert summary == RunSummary(handled=30, retried=9, quarantined=0)
    assert [which for which in handler.seen if which % 10 == 3] == [3, 13, 23]
    assert handler.failed == [3] * 3 + [13] * 3 + [23] * 3
    assert service.committed() == 29


def test_an_event_that_waits_for_its_retry_takes_no_worker(start: Start):
    """One worker, one event that fails for long: all others are handled meanwhile."""
    service, face = start()
    service.publish(20)
    mended = threading.Event()

    def work(which: int) -> None:
        if which == 0 and not mended.is_set():
            raise ConnectionError("down")

    handler = Handler(20, work)
    run = handler.begin(face.managed(NAME), workers=1, retry=SOON)
    until(lambda: len(handler.seen) == 19, "the others")
    mended.set()
    assert run.result(PATIENCE).handled == 20


def test_stop_ends_the_run_with_the_error_and_what_is_done_is_committed(start: Start):
    """The default: running handlers finish, the failed event and all behind it come again."""
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


def test_a_handler_error_names_the_event(start: Start):
    """Who reads the error finds the event, and the reason behind it."""
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
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_told_is_a_failure_like_any_other(start: Start):
    """A broken __str__ of the application's does not hang the run."""
    service, face = start()
    service.publish(1)

    def work(_which: int) -> None:
        raise UnspeakableError

    with pytest.raises(HandlerError, match=r"will be redelivered: UnspeakableError$"):
        Handler(work=work).run(face.managed(NAME), retry=None)


def test_what_a_handler_cannot_do_is_kept_and_passed_over(start: Start, tmp_path: Path):
    """Durable before its ack, with its reason; and it is not merged with other kinds."""
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
    assert entry.raw.replay_id == service.replay_id(4)
    assert service.committed() == 9


def test_a_quarantine_is_never_written_in_the_loop(start: Start):
    """The other handlers run there, and a flush may take long."""
    service, face = start()
    service.publish(1)
    threads: set[int] = set()

    class Noted(Quarantine):
        def put(self, events):
            threads.add(threading.get_ident())

    def work(_which: int) -> None:
        raise ValueError

    held = face.managed(NAME)
    options = {"retry": None, "on_failure": "quarantine", "quarantine": Noted()}
    run = Handler(work=work).begin(held, **options)
    until(lambda: held.health().quarantined == 1, "the event")
    held.stop()
    run.result(PATIENCE)
    assert len(threads) == 1
    if face.name == "asyncio":
        assert face.loop_thread not in threads


class Broken(Quarantine):
    def put(self, events):
        raise WriteError("the disk is full")


def test_a_quarantine_that_cannot_be_written_stops_the_run(start: Start):
    """Nothing that is not durable is passed."""
    service, face = start()
    service.publish(10)

    def work(which: int) -> None:
        if which == 4:
            raise ValueError

    with pytest.raises(WriteError, match="the disk is full"):
        Handler(work=work).run(
            face.managed(NAME), workers=1, retry=None, on_failure="quarantine", quarantine=Broken()
        )
    assert service.committed() == 3


def test_a_broken_handler_does_not_empty_the_topic_into_the_quarantine(
    start: Start, tmp_path: Path
):
    """So many failures, and the run stops; what it did not set aside comes again."""
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
def test_an_event_that_cannot_be_decoded_fails_without_a_retry(
    start: Start, tmp_path: Path, key: Any
):
    """Read in the handler or for the key: it is kept as what it is, and the run goes on."""
    service, face = start()
    service.good(3)
    service.bad()
    service.good(3)
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


def test_an_undecodable_event_stops_by_default(start: Start):
    """The cause is the decoder's error, and the event is not passed."""
    service, face = start()
    service.good(2)
    service.bad()
    with pytest.raises(HandlerError, match="no key could be determined for event") as caught:
        Handler().run(face.managed(NAME), key=number, workers=1)
    assert isinstance(caught.value.__cause__, DecodeError)
    assert service.committed() == 1


def test_what_is_held_is_bounded(start: Start):
    """Batches are not read ahead of handlers that are busy."""
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


def test_a_drain_from_elsewhere_waits_for_the_handlers(start: Start):
    """Nothing more is started; what runs is finished, acked, and committed."""
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


def test_stop_from_elsewhere_does_not_wait_and_ends_the_run(start: Start):
    """Also while the run has nothing to do, and while all it holds waits for a retry."""
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


def test_a_handler_cannot_drain_what_waits_for_it(start: Start):
    """It is told so, where it would have waited for itself for ever."""
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


def test_an_abort_lets_running_handlers_finish_and_commits_nothing(start: Start):
    """The events come again."""
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


def test_a_subscription_that_fails_ends_the_run_with_its_error(start: Start):
    """What ended it is raised, once the handlers are done."""
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


def test_a_batch_in_hand_is_done_when_the_run_begins(start: Start):
    """As with the next batch: in auto mode asking for more acks it."""
    service, face = start(events_per_response=5)
    service.publish(15)
    held = face.managed(NAME)
    first = held.batch()
    handler = Handler(15 - len(first))
    handler.run(held)
    assert service.committed() == 14


def test_one_run_at_a_time(start: Start):
    """Two would share the events in a way that nobody asked for."""
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


def test_stop_ends_iterating_and_acks_are_still_taken(start: Start):
    """A program that iterates by itself ends in order, too."""
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
    """The thread that it interrupts may hold any lock of the subscription."""
    _, face = start()
    held = face.managed(NAME)
    delivery = held._subscription._delivery
    with delivery._lock, delivery.driver._lock, delivery.driver._mailbox._mutex:
        held.stop()
    with pytest.raises(SubscriptionClosedError):
        held.next()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"on_failure": "skip"}, "on_failure must be 'stop' or 'quarantine', not 'skip'"),
        ({"on_failure": "quarantine"}, "must be used together"),
        ({"quarantine": Broken()}, "must be used together"),
    ],
)
def test_options_are_checked_first(start: Start, options: dict[str, Any], message: str):
    """A mistake costs no event."""
    _, face = start()
    with pytest.raises(ConfigurationError, match=message):
        face.managed(NAME).run(Handler(), **options)


def test_a_handler_of_the_other_face_is_refused(start: Start):
    """Nobody would await it, or it would hold up the loop."""
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
def test_the_default_key_of_a_change_event(start: Start, record_ids: list[str], key: Any):
    """Its records; one of all records of an object waits for all of them, and they for it."""
    service, face = start()
    header = {**ACCOUNT["ChangeEventHeader"], "recordIds": record_ids}
    service.emulator.publish("/data/AccountChangeEvent", [{"ChangeEventHeader": header}])
    held = face.plain("/data/AccountChangeEvent", replay="earliest")
    (event,) = held.batch()
    assert by_record(event) == key


def test_changes_of_a_record_are_handled_in_order(start: Start):
    """With the default key, wildcards included."""
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
    """Run three handlers, and say what became of them and of the run when it was cancelled."""
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
        assert not run.done(), "it waits for its handlers"
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


def test_a_cancelled_run_finishes_its_handlers(tmp_path: Path):
    """Their acks are committed; then the task is cancelled as it was asked to be."""
    service = Service(tmp_path)
    try:
        service.publish(10)
        assert cancelled_run(service, int_) == ["handled"] * 3 + ["cancelled"]
        assert service.committed() == 2
    finally:
        service.close()


def test_a_second_cancellation_aborts(tmp_path: Path):
    """Handlers are cancelled, and nothing of theirs is acked."""
    service = Service(tmp_path)
    try:
        service.publish(10)
        told = cancelled_run(service, asyncio.Task.cancel)
        assert told == ["handler cancelled"] * 3 + ["cancelled"]
        assert service.committed() is None
    finally:
        service.close()


def int_(_task: Any) -> None:
    """Leave it alone."""
