"""Tests of each situation in which `/health` fails: its beginning, reported reason and end."""

from __future__ import annotations

import dataclasses

import pytest

from sfpubsub.config import Timings
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.situations import SITUATIONS, Bounds
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.types import RawEvent, ReplayId

from ..avro.schemas import ORDER
from .support import HOUR, NOW, Clock, Subscription

NAME = "My_Sub"


class World:
    """A monitor with a clock and one healthy subscription; times are in seconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.monitor = Monitor("test", clock=self.clock)
        self.subscription = Subscription(responses=1)
        self.observed = self.monitor.follow("managed", NAME, self.subscription)
        self.assert_healthy()

    def assert_healthy(self) -> None:
        """Check that no problem is reported."""
        assert self.monitor.problems() == []

    def fails(self, situation: str, *words: str) -> None:
        """Check that *situation* is the only problem, and that its reason contains all *words*."""
        (problem,) = self.monitor.problems()
        assert problem.situation == situation
        for word in words:
            assert word in problem.reason

    def advance(self, seconds: float, *, heard: bool = True) -> None:
        """Let *seconds* pass and run one loop iteration.

        Unless *heard* is False, the service has sent a message in the meantime.
        """
        self.clock.now += seconds
        if heard:
            self.subscription.becomes(responses=self.subscription.said.responses + 1)
        self.observed.turn()

    def acks(self, event_at: float) -> None:
        """Ack an event that was created at *event_at*, in seconds since 1970 UTC."""
        self.observed.acked(batch_of(event_at))
        self.observed.turn()


@pytest.fixture
def world():
    """Return a monitor with one healthy subscription."""
    return World()


def batch_of(created: float):
    """Return a batch with one event created at *created*, in seconds since 1970 UTC."""
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


def test_stream_without_messages_is_silent_until_the_next_one(world):
    """A stream without a message for more than 330 s is silent, until the next one arrives.

    The reported reason includes the stream's state and error. Even a keepalive counts as a message.
    """
    world.advance(330, heard=False)
    world.assert_healthy()
    world.subscription.becomes(state="waiting", reason="no route to host")
    world.advance(1, heard=False)
    world.fails("silent", NAME, "0:05:31", "waiting", "no route to host")
    world.advance(1)
    world.assert_healthy()


def test_silence_counts_only_while_messages_are_expected():
    """Silence counts from the start of monitoring or from the end of the last pause.

    A stream that is paused, closed or requests no events is never silent.
    """
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


def test_quiet_channel_of_the_streaming_api_is_healthy():
    """A channel's keepalives are not visible, so only 330 s without a connection count as silence.

    While the channel is connected, an old position is healthy too.
    """
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


def test_long_write_is_stuck_until_it_ends(world):
    """A write that takes longer than 600 s is reported as stuck until it ends.

    The loop that waits for it is not reported.
    """
    under_way: list[float | None] = [600.0]
    world.monitor.follow_step("write", lambda: under_way[0], of="orders")
    world.advance(1)
    world.clock.now += 601
    world.subscription.becomes(responses=9)
    world.assert_healthy()
    under_way[0] = 601.0
    world.fails("stuck", "write of orders", "0:10:01")
    under_way[0] = None
    world.advance(1)
    world.assert_healthy()


def test_loop_without_iterations_is_stuck(world):
    """A loop is stuck after 600 s without an iteration, even if no write is running.

    A handler that never returns can cause this.
    """
    world.advance(1)
    world.clock.now += 601
    world.subscription.becomes(responses=9)
    world.fails("stuck", NAME, "0:10:01")
    world.advance(1)
    world.assert_healthy()


def test_old_position_is_reported_before_its_events_expire(world):
    """While events wait, a position older than 48 h is a problem until newer events are acked.

    48 h is two thirds of the retention time.
    """
    world.subscription.becomes(unacked=7)
    world.acks(NOW - 48 * HOUR)
    world.assert_healthy()
    world.advance(1)
    world.fails("retention", NAME, "2 days, 0:00:01", "3 days")
    world.acks(NOW - 40 * HOUR)
    world.assert_healthy()


def test_an_old_position_on_a_quiet_topic_is_healthy(world):
    """An old position is healthy once the service has reported that there are no newer events.

    Its age then counts from that report.
    """
    world.acks(NOW - 60 * HOUR)
    world.fails("retention")
    world.subscription.becomes(caught_up=True)
    world.assert_healthy()
    world.subscription.becomes(caught_up=False, state="waiting")
    world.advance(47 * HOUR)
    world.assert_healthy()
    world.advance(1 * HOUR + 1)
    world.fails("retention")


def test_events_waiting_for_a_schema_are_reported(world):
    """A subscription that waits more than a minute for a schema is a problem until it is streaming.

    The subscription's own reason is reported.
    """
    reason = "a schema cannot be fetched: no permission"
    world.subscription.becomes(state="waiting_for_schema", reason=reason)
    world.advance(1)
    world.advance(60)
    world.assert_healthy()
    world.advance(1)
    world.fails("schema", NAME, reason)
    world.subscription.becomes(state="streaming", reason=None)
    world.assert_healthy()


def test_failed_source_stays_reported(world):
    """The error of a failed source is reported on one line, and stays reported.

    A new monitor starts out healthy.
    """
    world.observed.failed(RuntimeError("it broke\n  in two lines"))
    world.advance(1)
    world.fails("failed", NAME, "it broke in two lines")
    assert World().monitor.problems() == []


def test_tables_behind_the_stream(world):
    """Received events that wait for more than 10 minutes fail /health until they are applied."""
    behind = [601.0]
    world.monitor.follow_objects(lambda: [ObjectStatus("Account", "current", behind=behind[0])])
    world.fails("behind", "Account", "0:10:01 ago")
    behind[0] = 1.0
    world.assert_healthy()


def test_an_object_that_waits_for_somebody(world):
    """An object without the rights to see every record fails /health, with what to do."""
    waits = {"rights": "View All is missing: grant it"}
    world.monitor.follow_objects(lambda: [ObjectStatus("Account", "waiting", waits)])
    world.fails("waiting", "Account: View All is missing: grant it")
    waits.clear()
    world.assert_healthy()


def test_every_situation_is_tested_and_documented():
    """Every situation is checked in this module and has a row in docs/how-to/operations.md."""
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text()
    tested = Path(__file__).read_text()
    for situation in SITUATIONS:
        assert f'fails("{situation}"' in tested
        assert f"| `{situation}` |" in page


def test_silence_limit_follows_the_client_timings():
    """The silence limit is the client's keepalive timeout plus twice its margin.

    The default timings result in the default limit.
    """
    timings = dataclasses.replace(Timings(), keepalive=100.0, keepalive_margin=10.0)
    assert Bounds.of(timings).silence == 120.0
    assert Bounds.of(Timings()) == Bounds()


def test_lag_while_events_wait_and_after_they_are_acked(world):
    """The lag is unknown before the first ack, and grows while events wait.

    Once all events are acked, it is the delay of the last one; a minute later it is 0.
    """

    def lag():
        return world.observed.facts().lag(world.clock.now)

    assert lag() == 0.0
    world.subscription.becomes(unacked=3)
    assert lag() is None, "the lag is unknown before the first ack"
    world.acks(NOW - 20)
    assert lag() == 20.0
    world.advance(5)
    assert lag() == 25.0
    world.subscription.becomes(unacked=0)
    assert lag() == 20.0
    world.advance(60)
    assert lag() == 0.0
