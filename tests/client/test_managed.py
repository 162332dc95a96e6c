"""Managed subscriptions over gRPC: each event arrives once, in order, and is then committed."""

from __future__ import annotations

import threading

import pytest

from sfpubsub.config import Timings
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    CommitError,
    LocalProtocolError,
    SubscriptionBusyError,
    SubscriptionClosedError,
    SubscriptionNotFoundError,
)

from ..conftest import PATIENCE, until

TOPIC = "/event/Order_Event__e"
NAME = "My_Managed_Subscription"


def orders(count: int, first: int = 0) -> list[dict]:
    """Return *count* orders, numbered from *first*."""
    return [{"Order_Number__c": str(first + index)} for index in range(count)]


def numbers(batches) -> list[int]:
    """Return the order numbers of all events in *batches*."""
    return [int(event.value["Order_Number__c"]) for batch in batches for event in batch]


def collect(subscription, count: int) -> list[int]:
    """Take batches until there are at least *count* events, and return their numbers."""
    seen: list[int] = []
    while len(seen) < count:
        batch = subscription.next_batch(PATIENCE)
        assert batch is not None, f"{len(seen)} of {count}: {subscription.health()}"
        seen += numbers([batch])
    return seen


def committed(emulator) -> bytes | None:
    """Return the replay id that the service has stored, or None before the first commit."""
    position = emulator.managed.get(NAME).committed
    return None if position is None else emulator.bus.ids.mint(position)


ANSWERS = [
    Settings(commit_answer_tip=tip, commit_answer_pending=pending)
    for tip in ("none", "sent", "org")
    for pending in (True, False)
]


@pytest.mark.parametrize(
    "settings", ANSWERS, ids=lambda s: f"{s.commit_answer_tip}-{s.commit_answer_pending}"
)
def test_a_thousand_events_on_one_stream(run_emulator, connect, settings):
    """1,000 events arrive without a reconnect, whichever fields commit responses contain."""
    emulator = run_emulator(settings=settings)
    emulator.publish(TOPIC, orders(1000))
    subscription = connect(emulator).subscribe_managed(NAME)
    with subscription:
        assert collect(subscription, 1000) == list(range(1000))
        subscription.next_batch(0)  # acks the last batch
        subscription.commit()
        health = subscription.health()
    assert health.reconnects == 0
    assert health.gaps == ()
    assert health.committed == health.last_position


def test_second_run_resumes_after_the_acked_events(run_emulator, connect):
    """Leaving the `with` block commits only the acked events; the next run starts after them."""
    emulator = run_emulator(settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(30))
    client = connect(emulator)
    with client.subscribe_managed(NAME) as subscription:
        assert collect(subscription, 20) == list(range(20))  # asking for batch 2 acked batch 1
    with client.subscribe_managed(NAME) as subscription:
        assert collect(subscription, 20) == list(range(10, 30))


def test_only_the_contiguous_acked_prefix_is_committed(run_emulator, connect):
    """Whatever the order of acks, the position stays before the oldest event that is not acked."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(10))
    client = connect(emulator)
    with client.subscribe_managed(NAME, ack="manual") as subscription:
        events = list(subscription.next_batch(PATIENCE))
        for index in (9, 2, 0, 1, 5):
            events[index].ack()
        receipt = subscription.commit()
    assert receipt.replay_id == events[2].replay_id
    assert bytes(receipt.replay_id) == results[2].replay_id
    with client.subscribe_managed(NAME) as subscription:
        assert collect(subscription, 7) == list(range(3, 10))


def test_drop_between_commit_and_answer_repeats_nothing(run_emulator, connect):
    """If a stream drops before the response to a commit, the next stream confirms the commit.

    No event is delivered twice, and no gap is reported.
    """
    plan = FaultPlan([Fault("drop_before_commit_answer")])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=20))
    emulator.publish(TOPIC, orders(200))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        batches = []
        while sum(map(len, batches)) < 200:
            batches.append(subscription.next_batch(PATIENCE))
        for batch in batches[:-1]:
            batch.ack()
        subscription.commit()
        batches[-1].ack()
        subscription.commit()
        assert not subscription.next_batch(0)
        health = subscription.health()
    plan.assert_consumed()
    assert numbers(batches) == list(range(200))
    assert health.reconnects == 1
    assert health.gaps == ()
    assert health.committed == health.last_position


def test_redelivered_events_reach_the_application_only_once(run_emulator, connect):
    """After a drop, the service redelivers uncommitted events, but the application receives each
    only once.
    """
    plan = FaultPlan([Fault("drop_stream", after_responses=3, times=2)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(100))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        batches = []
        while sum(map(len, batches)) < 100:
            batches.append(subscription.next_batch(PATIENCE))
        assert numbers(batches) == list(range(100))
        for batch in reversed(batches):
            batch.ack()
        receipt = subscription.commit()
        health = subscription.health()
    plan.assert_consumed()
    assert health.redelivered >= 30
    assert receipt.replay_id == batches[-1].last_replay_id


def test_coalesced_commit_answer_settles_every_caller(run_emulator, connect):
    """The service may answer two commits with one response; both callers get a receipt."""
    plan = FaultPlan([Fault("coalesce_commits", count=2, within_s=0.05)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(20))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        first, second = subscription.next_batch(PATIENCE), subscription.next_batch(PATIENCE)
        first.ack()
        receipts = []
        thread = threading.Thread(target=lambda: receipts.append(subscription.commit()))
        thread.start()
        second.ack()
        receipts.append(subscription.commit())
        thread.join(PATIENCE)
    plan.assert_consumed()
    assert len(receipts) == 2


def test_refused_commit_raises_and_the_next_one_succeeds(run_emulator, connect):
    """A refused `commit` raises an error, stores no position, and leaves the stream open.

    The next commit succeeds.
    """
    plan = FaultPlan()
    settings = Settings(commit_answer_delay_s=0.2)  # so that the commit below waits for its answer
    emulator = run_emulator(faults=plan, settings=settings)
    emulator.publish(TOPIC, orders(5))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        batch = subscription.next_batch(PATIENCE)
        plan.add(Fault("fail_commit", message="not now"))
        next(iter(batch)).ack()
        with pytest.raises(CommitError, match="not now"):
            subscription.commit()
        assert committed(emulator) is None
        batch.ack()
        assert subscription.commit().replay_id == batch.last_replay_id
        assert subscription.health().reconnects == 0
    plan.assert_consumed()


def test_commit_before_any_ack_is_an_error(run_emulator, connect):
    """A commit before any ack fails immediately: there is nothing to commit."""
    emulator = run_emulator()
    with (
        connect(emulator).subscribe_managed(NAME) as subscription,
        pytest.raises(LocalProtocolError, match="nothing to commit"),
    ):
        subscription.commit()


def test_subscription_waits_for_a_held_slot(run_emulator, connect):
    """ALREADY_EXISTS is retried, so the subscription opens once the slot is free."""
    plan = FaultPlan([Fault("hold_slot", seconds=0.3)])
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(2))
    client = connect(emulator)
    with client.subscribe_managed(NAME) as subscription:
        collect(subscription, 2)
    with client.subscribe_managed(NAME) as subscription:
        assert collect(subscription, 2) == [0, 1]
    plan.assert_consumed()


def test_slot_that_stays_held_is_an_error_after_the_timeout(run_emulator, connect):
    """If another client holds the slot for longer than `slot_timeout`, an error is raised."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    with connect(emulator).subscribe_managed(NAME) as holder:
        collect(holder, 1)
        timings = Timings(slot_initial=0.02, slot_max=0.05, slot_timeout=0.2)
        with (
            pytest.raises(SubscriptionBusyError, match="held by another client"),
            connect(emulator, timings=timings).subscribe_managed(NAME) as second,
        ):
            second.next_batch(PATIENCE)


def test_unknown_name_is_an_error_and_not_retried(run_emulator, connect):
    """A name that the service does not know raises an error that contains the name, after one
    call.
    """
    plan = FaultPlan([Fault("delay_call", rpc="ManagedSubscribe", seconds=0.0, times=2)])
    emulator = run_emulator(faults=plan)
    with (
        pytest.raises(SubscriptionNotFoundError, match="Nobody"),
        connect(emulator).subscribe_managed("Nobody") as subscription,
    ):
        subscription.next_batch(PATIENCE)
    assert [fault["happened"] for fault in plan.report()] == [1]


def test_subscription_can_be_opened_by_its_record_id(run_emulator, connect):
    """The id of the Tooling API record can be used instead of the developer name."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    record_id = emulator.managed.get(NAME).subscription_id
    with connect(emulator).subscribe_managed(record_id) as subscription:
        assert collect(subscription, 1) == [0]


def test_client_resumes_when_the_service_restarts(run_emulator, connect, tmp_path):
    """If the service restarts at the same address, each event is still delivered once, in order."""
    first = run_emulator(data_dir=tmp_path / "data", settings=Settings(events_per_response=10))
    first.publish(TOPIC, orders(50))
    port = int(first.grpc_target.rpartition(":")[2])
    with connect(first).subscribe_managed(NAME) as subscription:
        seen = collect(subscription, 20)
        first.stop()
        second = run_emulator(data_dir=tmp_path / "data", grpc_port=port)
        second.publish(TOPIC, orders(10, first=50))
        seen += collect(subscription, 60 - len(seen))
    assert seen == list(range(60))


def test_keepalives_move_the_committed_position_of_an_idle_topic(run_emulator, connect):
    """Even without events, a topic's committed position advances, because keepalives carry the
    org's newest position.
    """
    emulator = run_emulator(settings=Settings(keepalive_s=0.05, tip_refresh_s=0.0))
    emulator.publish(TOPIC, orders(1))
    with connect(emulator).subscribe_managed(NAME) as subscription:
        collect(subscription, 1)
        subscription.next_batch(0)
        subscription.commit()
        before = committed(emulator)
        emulator.publish("/data/AccountChangeEvent", [ACCOUNT])  # the org's tip moves on
        until(lambda: committed(emulator) != before, "a commit of a keepalive's position")


ACCOUNT = {
    "ChangeEventHeader": {
        "entityName": "Account",
        "recordIds": ["001000000000001AAA"],
        "changeType": "DELETE",
        "changeOrigin": "",
        "transactionKey": "0001",
        "sequenceNumber": 1,
        "commitTimestamp": 1_700_000_000_000,
        "commitNumber": 1,
        "commitUser": "005000000000001AAA",
        "nulledFields": [],
        "diffFields": [],
        "changedFields": [],
    }
}


def test_drain_waits_for_the_last_commit_answer(run_emulator, connect):
    """Leaving the `with` block waits until every acked event has been committed."""
    emulator = run_emulator(settings=Settings(commit_answer_delay_s=0.2))
    results = emulator.publish(TOPIC, orders(7))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        subscription.next_batch(PATIENCE).ack()
    assert committed(emulator) == results[-1].replay_id


def test_drain_without_a_commit_answer_raises(run_emulator, connect):
    """The error gives the number of acked events whose commit was never confirmed."""
    plan = FaultPlan([Fault("leave_commit_unanswered")])
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(7))
    timings = Timings(drain_timeout=0.2)
    with (
        pytest.raises(CommitError, match="7 acked events"),
        connect(emulator, timings=timings).subscribe_managed(NAME, ack="manual") as subscription,
    ):
        subscription.next_batch(PATIENCE).ack()
    plan.assert_consumed()


def test_abort_closes_the_subscription_at_once(run_emulator, connect):
    """`abort` closes the subscription at once, without waiting for the response to a commit."""
    emulator = run_emulator(settings=Settings(commit_answer_delay_s=60.0))
    emulator.publish(TOPIC, orders(1))
    subscription = connect(emulator).subscribe_managed(NAME)
    collect(subscription, 1)
    subscription.abort()
    with pytest.raises(SubscriptionClosedError):
        subscription.next_batch()
    assert subscription.health().state == "closed"
