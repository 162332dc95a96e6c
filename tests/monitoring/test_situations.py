"""/health fails in each of its situations, says why, and recovers."""

from __future__ import annotations

import dataclasses

import pytest

from sfpubsub.config import Timings
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.situations import SITUATIONS, Bounds
from sfpubsub.types import RawEvent, ReplayId

from ..avro.schemas import ORDER
from .support import HOUR, NOW, Clock, Subscription

NAME = "My_Sub"


class World:
    """A monitor, its clock, and a subscription that is well."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.monitor = Monitor("test", clock=self.clock)
        self.subscription = Subscription(responses=1)
        self.observed = self.monitor.follow("managed", NAME, self.subscription)
        self.well()

    def well(self) -> None:
        assert self.monitor.problems() == []

    def fails(self, situation: str, *words: str) -> None:
        (problem,) = self.monitor.problems()
        assert problem.situation == situation
        for word in words:
            assert word in problem.reason

    def passes(self, seconds: float, *, heard: bool = True) -> None:
        """Let time pass, in which the loop turns and the service is heard."""
        self.clock.now += seconds
        if heard:
            self.subscription.becomes(responses=self.subscription.said.responses + 1)
        self.observed.turn()

    def acks(self, event_at: float) -> None:
        self.observed.acked(batch_of(event_at))
        self.observed.turn()


@pytest.fixture
def world():
    return World()


def batch_of(created: float):
    from sfpubsub.avro.codec import Codec
    from sfpubsub.client.batch import EventBatch

    codec = Codec("schema", ORDER)
    payload = codec.encode({"CreatedDate": round(created * 1000), "CreatedById": "005"})
    return EventBatch(
        subscription=NAME,
        topic=None,
        events=(RawEvent("1", "schema", payload, ReplayId(b"\x01")),),
        codecs={"schema": codec},
        first_seq=0,
        received_at=NOW,
        ack=lambda first, last: None,
    )


def test_a_silent_stream(world):
    """Nothing for longer than the service and a new stream may take; the reason is the stream's.
    A message of the service ends it, and so do keepalives alone."""
    world.passes(330, heard=False)
    world.well()
    world.subscription.becomes(state="waiting", reason="no route to host")
    world.passes(1, heard=False)
    world.fails("silent", NAME, "0:05:31", "waiting", "no route to host")
    world.passes(1)
    world.well()


def test_a_stream_that_was_never_heard_is_silent_since_it_was_followed():
    """And one that its own application has paused is not, nor one that asks for nothing; from when
    it asks again it has its time."""
    clock = Clock()
    monitor = Monitor("test", clock=clock)
    subscription = Subscription()
    monitor.follow("topic", NAME, subscription)
    clock.now += 331
    assert [problem.situation for problem in monitor.problems()] == ["silent"]
    for asks_nothing in ({"state": "paused"}, {"state": "streaming", "outstanding": 0}):
        subscription.becomes(**asks_nothing)
        assert monitor.problems() == []
        subscription.becomes(state="streaming", outstanding=1)
        clock.now += 330
        assert monitor.problems() == []
        clock.now += 1
        assert [problem.situation for problem in monitor.problems()] == ["silent"]
    subscription.becomes(state="closed")
    assert monitor.problems() == []


def test_a_quiet_channel_of_the_streaming_api_is_well():
    """Its keepalives nobody sees: what counts is its connection, and what was acked while it was
    open."""
    clock = Clock()
    monitor = Monitor("test", clock=clock)
    subscription = Subscription(responses=1)
    subscription.becomes(outstanding=0)
    observed = monitor.follow("channel", "/topic/X", subscription)
    observed.acked(batch_of(NOW - 60 * HOUR))
    observed.turn()
    for _ in range(3):
        clock.now += 3600
        observed.turn()
        assert monitor.problems() == []
    assert observed.facts().last_message_at == NOW
    subscription.becomes(state="waiting", reason="no route")
    clock.now += 330
    observed.turn()
    assert monitor.problems() == []
    clock.now += 1
    assert [problem.situation for problem in monitor.problems()] == ["silent"]
    subscription.becomes(state="streaming")
    assert monitor.problems() == []


def test_a_write_that_is_stuck(world):
    """Under way for longer than the bound; its end ends it. The loop that waits for it is not
    told of beside it."""
    under_way: list[float | None] = [600.0]
    world.monitor.follow_step("write", lambda: under_way[0], of="orders")
    world.passes(1)
    world.clock.now += 601
    world.subscription.becomes(responses=9)
    world.well()
    under_way[0] = 601.0
    world.fails("stuck", "write of orders", "0:10:01")
    under_way[0] = None
    world.passes(1)
    world.well()


def test_a_loop_that_makes_no_progress(world):
    """A handler, or a reader of stdout, that never returns; no step says so."""
    world.passes(1)
    world.clock.now += 601
    world.subscription.becomes(responses=9)
    world.fails("stuck", NAME, "0:10:01")
    world.passes(1)
    world.well()


def test_a_position_near_the_retention(world):
    """Two thirds of the 72 h, while events wait; catching up ends it."""
    world.subscription.becomes(unacked=7)
    world.acks(NOW - 48 * HOUR)
    world.well()
    world.passes(1)
    world.fails("retention", NAME, "2 days, 0:00:01", "3 days")
    world.acks(NOW - 40 * HOUR)
    world.well()


def test_an_old_event_on_a_quiet_topic_is_no_problem(world):
    """A keepalive says that there is nothing beyond it; a day without a stream then counts from
    there."""
    world.acks(NOW - 60 * HOUR)
    world.fails("retention")
    world.subscription.becomes(caught_up=True)
    world.well()
    world.subscription.becomes(caught_up=False, state="waiting")
    world.passes(47 * HOUR)
    world.well()
    world.passes(1 * HOUR + 1)
    world.fails("retention")


def test_events_that_wait_for_a_schema(world):
    """For more than a minute; the reason is the service's. The schema ends it."""
    reason = "a schema cannot be fetched: no permission"
    world.subscription.becomes(state="waiting_for_schema", reason=reason)
    world.passes(1)
    world.passes(60)
    world.well()
    world.passes(1)
    world.fails("schema", NAME, reason)
    world.subscription.becomes(state="streaming", reason=None)
    world.well()


def test_a_source_that_failed_while_others_go_on(world):
    """It stays; a new start is a new observation."""
    world.observed.failed(RuntimeError("it broke\n  in two lines"))
    world.passes(1)
    world.fails("failed", NAME, "it broke in two lines")
    assert World().monitor.problems() == []


def test_every_situation_has_a_test_and_a_row():
    """Those above are all there are, and docs/operations.md has a row for each."""
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text()
    tested = Path(__file__).read_text()
    for situation in SITUATIONS:
        assert f'fails("{situation}"' in tested
        assert f"| `{situation}` |" in page


def test_bounds_follow_the_times_of_the_client():
    """A client that waits longer for a keepalive is not called silent before."""
    timings = dataclasses.replace(Timings(), keepalive=100.0, keepalive_margin=10.0)
    assert Bounds.of(timings).silence == 120.0
    assert Bounds.of(Timings()) == Bounds()


def test_the_lag(world):
    """While events wait it grows; when all is acked it is the delay, for a minute, and then 0."""

    def lag():
        return world.observed.facts().lag(world.clock.now)

    assert lag() == 0.0
    world.subscription.becomes(unacked=3)
    assert lag() is None, "nothing was acked yet, so nobody knows"
    world.acks(NOW - 20)
    assert lag() == 20.0
    world.passes(5)
    assert lag() == 25.0
    world.subscription.becomes(unacked=0)
    assert lag() == 20.0
    world.passes(60)
    assert lag() == 0.0
