"""Tests of the exact requests of a subscription, on grpc's testing channel and clock.

They cover only requests and streams without failures, because a testing channel drops waiting
responses when a call breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.transports.base import Target
from sfpubsub.transports.channel import GrpcTransport
from sfpubsub.transports.driver import StreamDriver
from sfpubsub.types import ReplayId, StartPosition
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..conftest import PATIENCE, until

SERVICE = pb.DESCRIPTOR.services_by_name["PubSub"]
TOPIC = "/event/Order_Event__e"
NAME = "Orders"


class FakeAlarm:
    """Replaces the driver's alarm, so that its callback runs only when a test calls `pass_time`."""

    def __init__(self) -> None:
        self.set_for: tuple[float, Callable[[], None]] | None = None

    def set(self, _owner: object, deadline: float | None, callback: Callable[[], None]) -> None:
        self.set_for = None if deadline is None else (deadline, callback)

    is_current = True

    def start(self) -> None:
        """Start no thread: what is posted runs in the thread that posts it."""

    def post(self, callback: Callable[[], object]) -> None:
        callback()


class PlayedSubscription:
    """A subscription's driver on a testing channel; the test plays the service."""

    def __init__(
        self, target: Target, start: StartPosition | None, limits: Limits | None = None
    ) -> None:
        self.clock = grpc_testing.strict_fake_time(1000.0)
        self.alarm = FakeAlarm()
        channel = grpc_testing.channel([SERVICE], self.clock)
        transport = GrpcTransport(channel, "nowhere:443", lambda: [("accesstoken", "t")])
        self.driver = StreamDriver(
            SubscriptionProtocol(target.name, start=start, limits=limits, timings=Timings()),
            transport,
            target,
            alarm=self.alarm,  # type: ignore[arg-type]
            renew=lambda _headers: None,
            on_gap=lambda _gap: None,
            clock=self.clock.time,
        )
        self._pool = ThreadPoolExecutor(2)
        self.driver.start()
        method = "ManagedSubscribe" if target.managed else "Subscribe"
        taken: Future[Any] = self._pool.submit(
            channel.take_stream_stream, SERVICE.methods_by_name[method]
        )
        self.metadata, self.rpc = taken.result(PATIENCE)
        self.make = pb.ManagedFetchResponse if target.managed else pb.FetchResponse

    def request(self) -> Any:
        """Return the next request."""
        return self._pool.submit(self.rpc.take_request).result(PATIENCE)

    def respond(self, *numbers: int, pending: int, **fields: Any) -> None:
        """Send a response with events of these *numbers*, or a keepalive if there are none.

        `pending` is its pending_num_requested, and `tip` the number of its latest replay id, by
        default the last event's. The driver then accepts the events, as if the application had
        taken them.
        """
        tip = fields.pop("tip", numbers[-1] if numbers else 0)
        events = [
            pb.ConsumerEvent(event=pb.ProducerEvent(id=f"e{n}", payload=b"x"), replay_id=rid(n))
            for n in numbers
        ]
        before = self.driver.health().responses
        self.rpc.send_response(
            self.make(
                events=events, latest_replay_id=rid(tip), pending_num_requested=pending, **fields
            )
        )
        until(lambda: self.driver.health().responses > before, "the response")
        if numbers:
            arrival = self.driver.peek()
            assert arrival is not None
            self.driver.accept(arrival)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock by `seconds`, and run the alarm's callback once if it is due."""
        self.clock.sleep_for(seconds)
        if self.alarm.set_for is not None and self.alarm.set_for[0] <= self.clock.time():
            self.alarm.set_for[1]()

    def answer(self, request: Any) -> None:
        """Confirm the commit in this request."""
        commit = request.commit_replay_id_request
        self.respond(
            pending=0,
            commit_response=pb.CommitReplayResponse(
                commit_request_id=commit.commit_request_id, replay_id=commit.replay_id
            ),
        )

    def close(self) -> None:
        self.driver.abort()
        self.driver.join(PATIENCE)
        self._pool.shutdown(wait=False)


def rid(number: int) -> bytes:
    """Return the replay id of event *number*, ten bytes long."""
    return number.to_bytes(8, "big") + b"\x00\x00"


@pytest.fixture
def play() -> Iterator[Callable[..., PlayedSubscription]]:
    """Return a function that creates a PlayedSubscription, and close it after the test."""
    made: list[PlayedSubscription] = []

    def begin(*arguments: Any, **options: Any) -> PlayedSubscription:
        made.append(PlayedSubscription(*arguments, **options))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def test_the_requests_of_a_plain_subscription(play: Callable[..., PlayedSubscription]) -> None:
    """A plain subscription requests 10 events, fills its window of 100, and then requests at least
    50 at a time, within the limit of unacked events. After 50 s, it requests one event to keep the
    stream open.
    """
    start = StartPosition.after(ReplayId(rid(7)))
    played = play(Target(TOPIC, managed=False), start, limits=Limits(max_unacked=250))
    assert ("accesstoken", "t") in played.metadata
    assert played.request() == pb.FetchRequest(
        topic_name=TOPIC, replay_preset=pb.CUSTOM, replay_id=rid(7), num_requested=10
    )
    played.respond(8, pending=9)
    assert played.request() == pb.FetchRequest(topic_name=TOPIC, num_requested=91)
    played.respond(*range(9, 58), pending=51)
    played.respond(58, pending=50)
    assert played.request() == pb.FetchRequest(topic_name=TOPIC, num_requested=50)
    played.respond(*range(59, 159), pending=0)
    assert played.request().num_requested == 99, "151 of 250 are unacked"
    played.respond(*range(159, 258), pending=0)
    played.pass_time(50.0)
    assert played.request() == pb.FetchRequest(topic_name=TOPIC, num_requested=1)


def test_the_requests_of_a_managed_subscription(play: Callable[..., PlayedSubscription]) -> None:
    """A managed subscription sends its name once, and its commits one at a time, with pauses
    between.

    An unchanged position is committed again after a while.
    """
    played = play(Target(NAME, managed=True), None, limits=Limits(max_unacked=4))
    assert played.request() == pb.ManagedFetchRequest(developer_name=NAME, num_requested=4)
    played.respond(1, 2, 3, 4, pending=0)
    played.driver.ack(1, 3)
    first = played.request()
    assert first.num_requested == 0
    assert first.commit_replay_id_request.replay_id == rid(3)
    assert first.developer_name == ""
    played.driver.ack(4, 4)
    played.answer(first)
    assert played.request() == pb.ManagedFetchRequest(num_requested=3)
    played.pass_time(Timings().commit_pause)  # the pause between two commits
    second = played.request()
    assert second.commit_replay_id_request.replay_id == rid(4)
    assert second.commit_replay_id_request.commit_request_id not in (
        "",
        first.commit_replay_id_request.commit_request_id,
    )
    played.answer(second)
    played.respond(5, pending=2)  # held by the application from here on
    assert played.request() == pb.ManagedFetchRequest(num_requested=1)
    for _ in range(5):
        played.pass_time(240.0)
        played.respond(pending=3, tip=9)
    repeated = played.request()
    assert repeated.num_requested == 0
    assert repeated.commit_replay_id_request.replay_id == rid(4)


def test_a_drain_waits_for_its_commit_before_the_half_close(
    play: Callable[..., PlayedSubscription],
) -> None:
    """A drain waits for the response to the last commit, then ends the stream without an error."""
    played = play(Target(NAME, managed=True), None)
    played.request()
    played.respond(1, pending=9)
    assert played.request().num_requested == 91
    played.driver.ack(1, 1)
    commit = played.request()
    played.driver.begin_drain()
    assert played.driver.health().state == "draining"
    played.answer(commit)
    played._pool.submit(played.rpc.requests_closed).result(PATIENCE)
    played.rpc.terminate((), grpc.StatusCode.OK, "")
    until(lambda: played.driver.over, "the end")
    played.driver.raise_failure()
