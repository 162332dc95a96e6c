"""What a subscriber must survive, with both clients, on the emulator and an in-memory service.

Labels T1 to T17 in names of tests number the traps that other clients fall into; a letter marks a
variant. T10 and T11 are limits of the service, and T8 is about a Spark source, so they have no test
here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfpubsub.client.batch import EventBatch
from sfpubsub.config import Timings
from sfpubsub.errors import (
    CommitError,
    ReplayIdRejectedError,
    SubscriptionStoppedError,
)
from sfpubsub.types import ReplayId

from ..conftest import QUICK, until
from .faces import AsyncFace, Face, numbers
from .targets import NAME, TOPIC, EmulatorTarget, MemoryTarget, Target

Open = Callable[..., tuple[Target, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def face_kind(request: pytest.FixtureRequest) -> type[Face]:
    """Return the class that drives the client under test, synchronous or asyncio."""
    return request.param


@pytest.fixture(params=[MemoryTarget, EmulatorTarget], ids=lambda target: target.name)
def start(request: pytest.FixtureRequest, face_kind: type[Face], tmp_path: Any) -> Iterator[Open]:
    """Return a function that starts a service with the given settings and creates a
    client for it.
    """
    with contextlib.ExitStack() as stack:

        def make(timings: Timings = QUICK, **settings: Any) -> tuple[Target, Face]:
            target = request.param(tmp_path / "data", **settings)
            stack.callback(target.close)
            face = face_kind(timings=timings, **target.arguments())
            stack.callback(face.close)
            return target, face

        yield make


@pytest.mark.parametrize("length", [8, 10, 12, 24])
def test_t1_replay_ids_are_bytes(start: Open, length: int):
    """A stream resumes at exactly the right event, whatever the length of its replay ids."""
    target, face = start(replay_id_bytes=length, events_per_response=7)
    target.plan("drop_stream", times=3, after_responses=2)
    target.publish(100)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(100) == list(range(100))
    assert held.health().last_position == target.replay_id(99)
    until(target.is_consumed, "every fault")


def test_t2_events_published_during_an_outage_are_delivered(start: Open):
    """After a failure the stream resumes at its position, not at LATEST, and reports no gap."""
    target, face = start()
    target.publish(3)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(3) == [0, 1, 2]
    target.plan("drop_stream", after_responses=1)
    target.plan("drop_call", times=3)
    target.publish(4)
    assert held.collect(4) == [3, 4, 5, 6]
    assert held.health().gaps == ()
    until(target.is_consumed, "every fault")


def test_t3_a_managed_stream_does_not_end(start: Open):
    """A managed stream delivers 500 events without a reconnect, since the client keeps
    requesting more.
    """
    target, face = start()
    target.publish(250)
    held = face.managed(NAME)
    assert held.collect(250) == list(range(250))
    target.publish(250)
    assert held.collect(250) == list(range(250, 500))
    assert held.health().reconnects == 0


@pytest.mark.parametrize("fault", ["drop_before_commit_answer", "leave_commit_unanswered"])
def test_t4_a_commit_without_a_response(start: Open, fault: str):
    """A commit that gets no response causes no gap and no second delivery.

    The final commit succeeds.
    """
    target, face = start(
        Timings(backoff_initial=0.02, backoff_max=0.1, slot_initial=0.02, commit_timeout=0.2),
        events_per_response=10,
    )
    target.plan(fault)
    target.publish(60)
    held = face.managed(NAME, ack="manual")
    batches = [held.batch() for _ in range(6)]
    assert [number for batch in batches for number in numbers(batch)] == list(range(60))
    # The first commit leaves out a batch: if it covered all received events and got no response,
    # only the next keepalive could tell whether it succeeded.
    for batch in batches[:-1]:
        batch.ack()
    held.commit()
    batches[-1].ack()
    held.commit()
    assert not held.next(0)
    assert target.committed() == 59
    assert held.health().gaps == ()
    until(target.is_consumed, "every fault")


@pytest.mark.parametrize("tip", ["none", "sent", "org"])
@pytest.mark.parametrize("pending", [True, False])
def test_t4b_commit_responses_change_neither_credit_nor_position(
    start: Open, tip: str, pending: bool
):
    """Pending counts and latest positions in commit responses do not affect the event flow.

    A thousand events arrive on one stream, whatever the responses contain.
    """
    target, face = start(commit_answer_tip=tip, commit_answer_pending=pending)
    target.publish(1000)
    held = face.managed(NAME)
    assert held.collect(1000) == list(range(1000))
    held.next(0)
    held.commit()
    assert target.committed() == 999
    assert held.health().reconnects == 0


def test_t5_a_rejected_position_raises_an_error_with_the_gap(start: Open):
    """A rejected position raises an error with the gap.

    The client neither retries it nor restarts silently at another position.
    """
    target, face = start()
    target.publish(3)
    held = face.plain(TOPIC, replay=ReplayId(b"not known"))
    with pytest.raises(ReplayIdRejectedError) as caught:
        held.next()
    assert caught.value.gap is not None
    assert caught.value.gap.after == ReplayId(b"not known")
    assert held.health().reconnects == 0
    held.drain()  # the error was raised already


@pytest.mark.parametrize("fallback", ["earliest", "latest"])
def test_t5_a_fallback_is_used_and_reported(start: Open, fallback: str):
    """After a rejected position, the subscription starts at `replay_fallback` and reports a gap."""
    target, face = start()
    target.publish(3)
    gaps: list[Any] = []
    held = face.plain(
        TOPIC, replay=ReplayId(b"not known"), replay_fallback=fallback, on_gap=gaps.append
    )
    if fallback == "earliest":
        assert held.collect(3) == [0, 1, 2]
    until(lambda: gaps)
    assert [gap.reason for gap in gaps] == ["rejected"]
    assert held.health().gaps == tuple(gaps)


def test_t6_a_failure_within_a_batch_resumes_at_the_failed_event(start: Open):
    """If a sink raises at the fourth of ten events, the next subscription starts with it.

    The three acked events are not delivered again.
    """
    target, face = start()
    target.publish(10)

    def store(batch: EventBatch) -> None:
        for event in batch:
            if event.value["Order_Number__c"] == "3":
                raise OSError("the sink is down")
            event.ack()

    held = face.managed(NAME, ack="manual")
    with pytest.raises(OSError, match="the sink is down"):
        store(held.batch())
    held.drain()
    again = face.managed(NAME, ack="manual")
    assert numbers(again.batch()) == list(range(3, 10))


def test_t7_events_of_failed_work_are_redelivered(start: Open):
    """If a sink raises in the `with` block of a subscription, the batch that it did not store is
    delivered to the next subscription.
    """
    target, face = start(events_per_response=5)
    target.publish(15)
    written: list[int] = []
    held = face.managed(NAME)
    written += numbers(held.batch())
    failed = numbers(held.batch())
    with pytest.raises(OSError, match="the sink is down"):
        held.fail_inside(OSError("the sink is down"))
    again = face.managed(NAME)
    written += again.collect(10)
    assert failed == [5, 6, 7, 8, 9]
    assert written == list(range(15))


def test_t9_skipping_an_event_does_not_lose_others(start: Open):
    """A handler that skips an event, such as its own change, still receives the
    rest of the batch.
    """
    target, face = start(events_per_response=5)
    target.publish(10)
    held = face.managed(NAME)
    kept = [number for _ in range(2) for number in numbers(held.batch()) if number % 5 != 1]
    assert kept == [0, 2, 3, 4, 5, 7, 8, 9]
    held.next(0)
    held.commit()
    assert target.committed() == 9


def test_t14_every_event_of_every_response_is_delivered(start: Open):
    """A thousand events, sent three per response, are all delivered in order."""
    target, face = start(events_per_response=3)
    target.publish(1000)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(1000) == list(range(1000))


def test_redelivered_events_reach_the_application_only_once(start: Open):
    """If a stream reconnects before the first ack, the service sends events again.

    The application still receives each event only once.
    """
    target, face = start(events_per_response=10)
    target.plan("drop_stream", times=4, after_responses=3)
    target.publish(100)
    held = face.managed(NAME, ack="manual")
    batches = []
    while sum(map(len, batches)) < 100:
        batches.append(held.batch())
    assert [number for batch in batches for number in numbers(batch)] == list(range(100))
    for batch in reversed(batches):
        batch.ack()
    held.commit()
    assert target.committed() == 99
    assert held.health().redelivered > 0
    until(target.is_consumed, "every fault")


def test_acks_out_of_order_commit_the_prefix_only(start: Open):
    """A commit never goes beyond the oldest event that is not acked, whatever was acked later."""
    target, face = start()
    target.publish(6)
    held = face.managed(NAME, ack="manual")
    events = list(held.batch())
    for index in (5, 3, 1, 0):
        events[index].ack()
    held.commit()
    assert target.committed() == 1
    events[2].ack()
    held.commit()
    assert target.committed() == 3


def test_a_failed_commit_raises_and_stores_nothing(start: Open):
    """`commit` raises an error if its commit fails, and the committed position stays unchanged.

    If `commit` returns, the acked position is committed, even after earlier failures.
    """
    target, face = start(commit_answer_delay_s=0.1)
    target.publish(4)
    held = face.managed(NAME, ack="manual")
    events = list(held.batch())
    target.plan("fail_commit", times=2)  # an ack can start a commit as well, which may also fail
    failures = 0
    for index, event in enumerate(events[:3]):
        before = target.committed()
        event.ack()
        try:
            held.commit()
        except CommitError:
            failures += 1
            assert target.committed() == before
        else:
            assert target.committed() == index
    assert failures in (1, 2)
    assert target.committed() == 2


def test_a_held_slot_is_retried_until_it_is_free(start: Open):
    """While the managed subscription's slot is held, the stream is retried until it is free."""
    target, face = start()
    target.publish(2)
    if target.name == "memory":
        target.plan("hold_slot", times=3)
    else:
        target.plan("refuse", times=3, rpc="ManagedSubscribe",
                    error_code="managed.subscription.already.active")  # fmt: skip
    held = face.managed(NAME)
    assert held.collect(2) == [0, 1]
    assert held.health().reconnects == 3
    until(target.is_consumed, "every fault")


def test_stop_ends_the_subscription_with_its_reason(start: Open):
    """STOP ends the subscription with `SubscriptionStoppedError` instead of a retry."""
    target, face = start()
    target.publish(1)
    held = face.managed(NAME)
    held.collect(1)
    target.stop_subscription()
    with pytest.raises(SubscriptionStoppedError):
        held.next()
    late = face.managed(NAME)
    with pytest.raises(SubscriptionStoppedError):
        late.next()


def test_a_slow_application_keeps_its_stream(start: Open):
    """A stream with a full queue stays open beyond the service's idle limit, and no
    event is lost.
    """
    target, face = start(
        Timings(backoff_initial=0.02, backoff_max=0.1, reserve=0.25),
        idle_close_s=2.0,  # below the pause of 2.5 s, with a margin for a busy machine
        events_per_response=10,
    )
    target.publish(300)
    held = face.plain(TOPIC, replay="earliest", max_pending_count=20)
    seen = numbers(held.batch())
    until(lambda: held.health().pending_count >= 20)
    pause = time.monotonic() + 2.5
    until(lambda: time.monotonic() > pause)  # the handler is busy beyond the idle limit
    assert held.health().pending_count <= 20 + 20
    seen += held.collect(300 - len(seen))
    assert seen == list(range(300))
    assert held.health().reconnects == 0


def test_max_bytes_limits_the_queue_without_a_reconnect(start: Open):
    """With `max_bytes`, the client requests only what fits into its queue.

    It therefore never has to drop queued events and receive them again on a new stream.
    """
    target, face = start(events_per_response=10)
    target.publish(500)
    held = face.plain(TOPIC, replay="earliest", max_bytes=150)
    until(lambda: held.health().pending_bytes > 100, "a full queue")
    seen: list[int] = []
    while len(seen) < 500:
        assert held.health().pending_bytes < 2 * 150
        seen += numbers(held.batch())
    assert seen == list(range(500))
    assert held.health().reconnects == 0


def test_drain_commits_acked_events_only(start: Open):
    """`drain` commits the acked events and no others."""
    target, face = start(events_per_response=10)
    target.publish(30)
    held = face.managed(NAME, ack="manual")
    first = held.batch()
    held.batch()
    first.ack()
    held.drain()
    assert target.committed() == 9
