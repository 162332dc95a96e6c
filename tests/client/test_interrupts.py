"""Tests of interruptions (Ctrl-C, signal handlers) at every line of the application's thread."""

from __future__ import annotations

import gc
import linecache
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import sfpubsub
from sfpubsub import PubSubClient
from sfpubsub.auth.session import Session
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.publisher import Publisher
from sfpubsub.client.subscription import ManagedSubscription
from sfpubsub.config import Timings
from sfpubsub.errors import LocalProtocolError, PublishError
from sfpubsub.protocol.commands import SendRequest
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.transports.memory import MemoryCall, MemoryTransport
from sfpubsub.types import RawEvent, ReplayId

from ..conftest import PATIENCE, told_during_a_wait, until
from .scripted_publishing import TOPIC, Bus
from .scripted_publishing import client_of as publishing_client_of

SCHEMA = '{"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]}'
NAME = "Managed"

# The code that an application's thread runs in the client.
_OURS = tuple(str(Path(sfpubsub.__file__).parent / name) for name in ("client", "transports"))


class Service:
    """A scripted service that confirms commits, and remembers them."""

    def __init__(self) -> None:
        self.transport = MemoryTransport({"tick": SCHEMA})
        self.committed: list[ReplayId] = []
        self._call: queue.SimpleQueue[MemoryCall] = queue.SimpleQueue()
        self._opened: MemoryCall | None = None

    def play(self) -> None:
        """Answer the commits of one stream until it is half-closed."""
        call = self.transport.next_call(PATIENCE)
        self._call.put(call)
        while (request := self._request(call)) is not None:
            if request.commit is not None:
                self.committed.append(request.commit.replay_id)
                answer = CommitAnswer(request.commit.request_id, request.commit.replay_id, None, 1)
                call.respond(Response((), request.commit.replay_id, 50, "rpc", commit=answer))
        call.end()

    @staticmethod
    def _request(call: MemoryCall) -> SendRequest | None:
        """Return the next request; None after the last one, or if the call was cancelled."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call.next_request(0.2)
            except queue.Empty:
                if call.cancelled:
                    return None
                assert time.monotonic() < deadline, "no request"

    def send(self, first: int, count: int) -> None:
        """Send a response with events numbered from *first*."""
        events = tuple(
            RawEvent(f"e{n}", "tick", bytes([2 * n]), ReplayId(b"r%d" % n))
            for n in range(first, first + count)
        )
        self._opened = self._opened or self._call.get(timeout=PATIENCE)
        self._opened.respond(Response(events, events[-1].replay_id, 50, "rpc"))


def client_of(service: Service) -> PubSubClient:
    """Return a client of the scripted service, which commits without pauses."""
    session = Session("00D000000000001!token", "https://example.my.salesforce.com")
    return PubSubClient(session, transport=service.transport, timings=Timings(commit_pause=0.0))


class Placed:
    """Raises KeyboardInterrupt in this thread at the line number *at*, counted from the start.

    Args:
        at: Number of the line, from 1.
        visits: How many of the times that a line is reached are counted, from the first on.
    """

    def __init__(self, at: int, visits: int = 1) -> None:
        self.left = at
        self.where = ""
        self._visits: Counter[tuple[str, int]] = Counter()
        self._most = visits
        self._entered: set[tuple[int, int]] = set()

    @property
    def has_fired(self) -> bool:
        """Whether the interrupt was raised."""
        return bool(self.where)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) or name.endswith("memory.py") or self.has_fired:
            return None
        if event == "line" and self._can_be_interrupted(frame):
            place = (name, frame.f_lineno)
            self._visits[place] += 1
            self.left -= self._visits[place] <= self._most
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def _can_be_interrupted(self, frame: FrameType) -> bool:
        """Return whether the interpreter looks for signals before this line.

        It does not between two lines without a call or a jump: before the return of what was just
        noted as handed out, and at the end of a ``with`` block, where the trace names its first
        line again.
        """
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        before = linecache.getline(frame.f_code.co_filename, frame.f_lineno - 1)
        if "see `Hand`" in before:
            return False
        if line.startswith("with "):
            place = (id(frame), frame.f_lineno)
            if place in self._entered:
                self._entered.discard(place)
                return False
            self._entered.add(place)
        return True


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Collect no garbage: the interrupt could hit a finalizer of what an earlier test has left."""
    gc.disable()
    yield
    gc.enable()


@contextmanager
def interrupted_at(line: int, visits: int = 1) -> Iterator[Placed]:
    """Raise KeyboardInterrupt once in the block, at a line of the client; see `Placed`."""
    placed = Placed(line, visits)
    before = sys.gettrace()
    sys.settrace(placed)
    try:
        yield placed
    finally:
        sys.settrace(before)


@contextmanager
def handled_at(line: int, handler: Callable[[], object]) -> Iterator[Placed]:
    """Call *handler* once in the block, at a line of the client, as a signal handler is."""
    placed = Placed(line)
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        try:
            return trace if placed(frame, event, argument) else None
        except KeyboardInterrupt:
            handler()  # in the interrupted thread
            return None

    sys.settrace(trace)
    try:
        yield placed
    finally:
        sys.settrace(before)


T = TypeVar("T")


def again(call: Callable[[], T]) -> T:
    """Return the result of *call*, repeated if it is interrupted, as in a notebook."""
    while True:
        try:
            return call()
        except KeyboardInterrupt:
            continue


def numbers_of(batch: EventBatch | None) -> list[int]:
    """Return the numbers of the events in a batch."""
    assert batch is not None
    return [event.value["n"] for event in batch]


def batches(subscription: ManagedSubscription) -> Iterator[list[int]]:
    """Yield the numbers of the events of each batch."""
    while True:
        batch = again(lambda: subscription.next_batch(PATIENCE))
        yield again(lambda: numbers_of(batch))  # noqa: B023  # called at once


def acked_batches(subscription: ManagedSubscription) -> Iterator[list[int]]:
    """Like `batches`, but each batch is acked, and committed at once."""
    while True:
        batch = again(lambda: subscription.next_batch(PATIENCE))
        yield again(lambda: numbers_of(batch))  # noqa: B023  # called at once
        assert batch is not None
        again(batch.ack)
        again(lambda: subscription.commit(PATIENCE))


def single_events(subscription: ManagedSubscription) -> Iterator[list[int]]:
    """Like `batches`, but event by event."""
    events = again(subscription.events)

    def next_event() -> Event:
        nonlocal events
        try:
            return next(events)
        except KeyboardInterrupt:
            events = again(subscription.events)
            raise

    while True:
        event = again(next_event)
        yield [again(lambda: event.value["n"])]  # noqa: B023  # called at once


@pytest.mark.parametrize("way", [batches, acked_batches, single_events])
# A line is interrupted the first two times: before a batch was handed out, and after.
@pytest.mark.parametrize("visits", [2, pytest.param(sys.maxsize, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_loses_nothing_and_commits_nothing_unseen(
    way: Callable[[ManagedSubscription], Iterator[list[int]]], visits: int
):
    """Wherever Ctrl-C hits a call, the events come in order, each once, and no position is
    committed before its event was handed out. Nothing hangs, and the client can be closed.
    """
    line = 0
    while True:
        line += 1
        service = Service()
        playing = threading.Thread(target=service.play, daemon=True)
        playing.start()
        ack = "manual" if way is acked_batches else "auto"
        with client_of(service) as client:
            subscription = client.subscribe_managed(NAME, ack=ack)
            service.send(1, 2)  # two responses are there at once, and the third is waited for
            service.send(3, 1)
            until(lambda: subscription.pending_count == 3, "the events")  # noqa: B023
            seen: list[int] = []
            with interrupted_at(line, visits) as placed:
                for numbers in way(subscription):
                    seen += numbers
                    if len(seen) == 3:
                        service.send(4, 1)
                    if len(seen) == 4:
                        break
            assert seen == [1, 2, 3, 4], placed.where
            known = [ReplayId(b"r%d" % n) for n in seen]
            subscription.drain()
        playing.join(PATIENCE)
        assert not playing.is_alive(), placed.where
        assert known[3] not in service.committed, placed.where
        assert service.committed[-1] == known[2], placed.where
        if not placed.has_fired:
            break
    assert line > 30, "the lines of the path"


# What a handler does: each in turn, one line after another; the slow tests do each at every line.
IN_TURN = "each in turn"


def slowly(*names: str) -> list[Any]:
    """Return the parameters of a test of signal handlers."""
    return [IN_TURN, *(pytest.param(name, marks=pytest.mark.slow) for name in names)]


def handler(calls: dict[str, Callable[[], object]], what: str, line: int) -> Callable[[], object]:
    """Return the call that *what* names, or that it is the turn of."""
    return list(calls.values())[line % len(calls)] if what == IN_TURN else calls[what]


@pytest.mark.parametrize("what", slowly("client.close", "abort", "health", "stop"))
def test_a_signal_handler_may_call_any_method_at_any_line(what: str):
    """A handler that closes the client, aborts, stops or looks at the health returns, whatever line
    of the client it interrupts, and the iteration goes on or ends.
    """
    line = 0
    while True:
        line += 1
        service = Service()
        threading.Thread(target=service.play, daemon=True).start()
        with client_of(service) as client:
            subscription = client.subscribe_managed(NAME)
            calls: dict[str, Callable[[], object]] = {
                "client.close": client.close,
                "abort": subscription.abort,
                "health": subscription.health,
                "stop": subscription.stop,
            }
            service.send(1, 2)
            service.send(3, 1)
            with handled_at(line, handler(calls, what, line)) as placed:
                for batch in subscription:
                    if batch.first_seq == 3:
                        break
            subscription.drain()
        if not placed.has_fired:
            break
    assert line > 30, "the lines of the path"


def test_sigterm_closes_the_client_while_it_waits():
    """``signal.signal(SIGTERM, lambda *_: client.close())`` ends a loop that waits for events."""
    service = Service()
    threading.Thread(target=service.play, daemon=True).start()
    with client_of(service) as client:
        before = signal.signal(signal.SIGTERM, lambda *_: client.close())
        try:
            subscription = client.subscribe_managed(NAME)
            service.send(1, 1)
            main = threading.main_thread().ident
            assert main is not None
            for _ in subscription:
                threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGTERM]).start()
        finally:
            signal.signal(signal.SIGTERM, before)
        assert subscription.closed


def test_a_signal_whose_arrival_ends_no_wait_is_handled_soon():
    """A signal is handled after a second at most while `wait_open`, `next_batch` or `flush`
    waits, although Python sees it only after the wait if another thread received it.
    """
    service = Service()
    with client_of(service) as client:
        subscription = client.subscribe_managed(NAME)
        with told_during_a_wait():
            subscription.wait_open(PATIENCE)
        with told_during_a_wait():
            subscription.next_batch(PATIENCE)
        subscription.abort()
    bus = Bus()
    bus.answers.clear()
    with publishing_client_of(bus) as client, client.open_publisher(TOPIC) as publisher:
        publisher.send({"n": 1})
        with told_during_a_wait():
            publisher.flush(PATIENCE)
        bus.answers.set()


def publish_two(publisher: Publisher, done: list[str]) -> None:
    """Send two events, one of which is refused, and ask for everything; repeat what is
    interrupted, as in a notebook.
    """
    for event_id in ("good", "bad"):
        receipt = again(lambda: publisher.send({"n": 1}, event_id=event_id))  # noqa: B023
        again(lambda: receipt.add_done_callback(lambda each: done.append(each.event_id)))  # noqa: B023
    again(receipt.done)
    assert again(lambda: publisher.counts).accepted <= 2
    assert not again(lambda: publisher.send({"n": 2}, event_id="more").result(PATIENCE)).error
    with pytest.raises(PublishError, match="bad"):
        again(lambda: publisher.flush(PATIENCE))
    again(publisher.close)


def test_an_interrupt_at_any_line_of_a_publisher_loses_nothing():
    """Wherever Ctrl-C hits `send`, `result`, `flush` or `close`, the call can be repeated: every
    event is published, its failure is raised, its callback is called, and nothing hangs.
    """
    line = 0
    while True:
        line += 1
        bus = Bus(refuses=lambda event_id: event_id == "bad")
        done: list[str] = []
        with publishing_client_of(bus) as client:
            publisher = client.open_publisher(TOPIC)
            with interrupted_at(line) as placed:
                publish_two(publisher, done)
            until(lambda: {"good", "bad"} <= set(done), f"callbacks after {placed.where}")  # noqa: B023
            assert set(bus.ids) == {"good", "bad", "more"}, placed.where
            with client.open_publisher(TOPIC) as other:  # its threads go on
                assert other.send({"n": 3}).result(PATIENCE).ok, placed.where
        if not placed.has_fired:
            break
    assert line > 60, "the lines of the path"


@pytest.mark.parametrize("what", slowly("client.close", "close", "flush", "send", "counts"))
def test_a_signal_handler_may_use_a_publisher_at_any_line(what: str):
    """A handler that sends, waits for results, or closes returns, whatever line of the client it
    interrupts, and so does the interrupted call.
    """
    line = 0
    while True:
        line += 1
        bus = Bus()
        with publishing_client_of(bus) as client:
            publisher = client.open_publisher(TOPIC)
            calls: dict[str, Callable[[], object]] = {
                "client.close": client.close,
                "close": publisher.close,
                "flush": lambda: publisher.flush(PATIENCE),  # noqa: B023
                "send": lambda: publisher.send({"n": 9}).result(PATIENCE),  # noqa: B023
                "counts": lambda: publisher.counts,  # noqa: B023
            }
            call = handler(calls, what, line)
            with handled_at(line, call) as placed, suppress(LocalProtocolError):
                receipt = publisher.send({"n": 1})
                with suppress(PublishError):  # the client was closed
                    receipt.result(PATIENCE)
                    publisher.flush(PATIENCE)
                    publisher.close()
        if not placed.has_fired:
            break
    assert line > 40, "the lines of the path"
