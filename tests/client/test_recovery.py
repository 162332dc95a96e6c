"""Tests of how a subscription survives failures by itself, and how it reports them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Timings
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    CommitError,
    PermissionDeniedError,
    StreamError,
    SubscriptionStoppedError,
)
from sfpubsub.types import Gap, ReplayId

from ..conftest import PATIENCE, until
from .test_managed import NAME, TOPIC, collect, committed, numbers, orders

# Quick retries; each test sets its own time limits.
SHORT = {"backoff_initial": 0.02, "backoff_max": 0.1, "slot_initial": 0.02, "slot_max": 0.1}


def test_subscription_survives_refused_commits(run_emulator, connect):
    """Twenty refused commits in a row do not end the subscription, and a later one succeeds."""
    plan = FaultPlan([Fault("fail_commit", times=20)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(40))
    with connect(emulator).subscribe_managed(NAME) as subscription:
        assert collect(subscription, 40) == list(range(40))
        until(lambda: committed(emulator) is not None, "a commit")
    plan.assert_consumed()


def test_commits_that_are_refused_for_too_long_end_the_subscription(run_emulator, connect):
    """If no commit is accepted for `commit_budget` seconds, reading raises a retryable CommitError
    that says so.
    """
    plan = FaultPlan([Fault("fail_commit", times=10_000)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(40))
    client = connect(emulator, timings=Timings(**SHORT, commit_budget=0.5))
    subscription = client.subscribe_managed(NAME)
    began = time.monotonic()
    with pytest.raises(CommitError, match="no commit was accepted") as caught:
        list(subscription)
    assert caught.value.retryable
    assert time.monotonic() - began > 0.5


def outage_lines(caplog, name: str) -> list[tuple[str, str]]:
    """Return the level and the message of every log line about an outage of a subscription."""
    words = ("has had no stream", "has a stream again")
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.getMessage().startswith(name) and any(w in record.getMessage() for w in words)
    ]


def test_short_break_is_logged_but_no_warning(run_emulator, connect, caplog):
    """A stream that breaks and is reopened at the first attempt gives one line at level INFO, with
    its length and reason.
    """
    caplog.set_level("INFO", "sfpubsub")
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(1))
    with connect(emulator).subscribe_managed(NAME) as subscription:
        assert collect(subscription, 1) == [0]
        plan.add(Fault("drop_stream"))
        until(lambda: subscription.health().reconnects, "the next stream")
        emulator.publish(TOPIC, orders(1, first=1))
        assert collect(subscription, 1) == [1]
        assert subscription.health().down_for is None
    ((level, text),) = outage_lines(caplog, NAME)
    assert level == "INFO"
    assert "UNAVAILABLE" in text


def test_service_that_cannot_be_reached_is_a_warning(run_emulator, connect, caplog):
    """While no connection is possible, a warning says so, with the reason, and so does `health`;
    its end is logged too. A start from LATEST that never opened lost nothing, so it reports no gap.
    """
    emulator = run_emulator()
    client = connect(emulator)
    port = int(emulator.grpc_target.rpartition(":")[2])
    emulator.stop()
    with client.subscribe(TOPIC) as subscription:
        assert subscription.next_batch(0) is None
        until(lambda: outage_lines(caplog, TOPIC), "the warning")
        ((level, text),) = outage_lines(caplog, TOPIC)
        assert level == "WARNING"
        assert "failed to connect" in text
        health = subscription.health()
        assert health.down_for is not None
        assert "failed to connect" in (health.reason or "")
        again = run_emulator(grpc_port=port)
        until(lambda: again.publish(TOPIC, orders(1)) and subscription.next_batch(0.05), "an event")
        assert subscription.health().gaps == ()
        assert subscription.health().down_for is None
    assert [level for level, _ in outage_lines(caplog, TOPIC)] == ["WARNING", "WARNING"]


def test_held_slot_is_a_warning_at_the_first_refusal(run_emulator, connect, caplog):
    """A managed subscription that another client holds is a warning at once."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    first = connect(emulator).subscribe_managed(NAME)
    assert collect(first, 1) == [0]
    with connect(emulator).subscribe_managed(NAME) as second:
        assert second.next_batch(0) is None
        until(lambda: outage_lines(caplog, NAME), "the warning")
        level, text = outage_lines(caplog, NAME)[0]
        assert level == "WARNING"
        assert "after 1 failed attempt," in text
        assert "already.active" in text
        first.abort()
        emulator.publish(TOPIC, orders(1, first=1))
        assert collect(second, 2) == [0, 1]


def test_stale_token_at_a_start_from_latest_is_no_gap(run_emulator):
    """A start from LATEST with a token that has expired signs in again, and reports no gap."""
    emulator = run_emulator()

    class Renewing:
        def get_session(self, expired):
            token = emulator.access_token if expired is None else emulator.new_token()
            return Session(token, emulator.instance_url, emulator.tenant_id)

    emulator.faults.add(Fault("expire_token"))
    with PubSubClient(Renewing(), endpoint=emulator.grpc_target, insecure="1") as client:
        subscription = client.subscribe(TOPIC)
        assert subscription.next_batch(0) is None
        until(lambda: subscription.health().reconnects, "the second stream")
        until(lambda: emulator.publish(TOPIC, orders(1)) and subscription.next_batch(0.05))
        assert subscription.health().gaps == ()


def test_positions_that_wait_for_a_commit_are_bounded(run_emulator, connect):
    """While commits fail, no more than `max_unacked` events are delivered, although all are acked;
    when commits succeed again, so do deliveries.
    """
    plan = FaultPlan([Fault("fail_commit", times=10_000)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=5))
    emulator.publish(TOPIC, orders(200))
    with connect(emulator).subscribe_managed(NAME, max_unacked=20) as subscription:
        seen: list[int] = []

        def credit_is_used_up() -> bool:
            batch = subscription.next_batch(0)
            seen.extend(numbers([] if batch is None else [batch]))
            return len(seen) > 20 or (batch is None and not subscription.health().outstanding)

        until(credit_is_used_up, "the end of the credit")
        assert seen == list(range(20))
        assert subscription.health().unacked == 0
        plan.switch_off(0)
        assert collect(subscription, 180) == list(range(20, 200))


def test_acked_events_are_committed_during_a_pause(run_emulator, connect):
    """After a reconnect during `pause`, acked events are redelivered and committed at once, and not
    one each 50 s.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(60))
    with connect(emulator).subscribe_managed(NAME, ack="manual") as subscription:
        batches = []
        while sum(map(len, batches)) < 60:
            batches.append(subscription.next_batch(PATIENCE))
        subscription.pause()
        plan.add(Fault("drop_stream"))
        until(lambda: subscription.health().redelivered, "a redelivery")
        for batch in batches:
            batch.ack()
        last = bytes(batches[-1].last_replay_id)
        until(lambda: committed(emulator) == last, "the commit", patience=20.0)
        assert subscription.health().gaps == ()


@pytest.mark.parametrize("status", ["UNIMPLEMENTED", "PERMISSION_DENIED", "NOT_FOUND"])
def test_proxy_status_does_not_end_a_working_subscription(run_emulator, connect, status):
    """A status without the service's own error code comes from an intermediary and is treated as
    temporary.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(2))
    subscription = connect(emulator).subscribe_managed(NAME)
    assert collect(subscription, 2) == [0, 1]
    plan.add(Fault("drop_stream", status=status))
    plan.add(Fault("drop_call", rpc="ManagedSubscribe", status=status, times=3))
    until(lambda: "treated as temporary" in (subscription.health().reason or ""), "the reason")
    emulator.publish(TOPIC, orders(1, first=2))
    assert collect(subscription, 1) == [2]
    plan.assert_consumed()
    subscription.abort()


def test_proxy_status_is_fatal_before_any_success(run_emulator, connect):
    """If the first call fails with UNIMPLEMENTED, the endpoint may not be a Pub/Sub API, and the
    error says to check that.
    """
    emulator = run_emulator(faults=FaultPlan([Fault("drop_call", status="UNIMPLEMENTED")]))
    with pytest.raises(StreamError, match="check that the endpoint is a Pub/Sub API"):
        connect(emulator).subscribe(TOPIC).next_batch(PATIENCE)


def test_a_failed_managed_subscription_delivers_nothing_more(run_emulator, connect):
    """When a managed subscription fails, its waiting events are dropped, because they could no
    longer be committed.
    """
    emulator = run_emulator(settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(40))
    subscription = connect(emulator).subscribe_managed(NAME)
    assert collect(subscription, 1) == [0]
    until(lambda: subscription.pending_count >= 30, "a queue")
    emulator.managed.set_state(NAME, "STOP")
    until(lambda: subscription.health().state == "closed", "the end")
    with pytest.raises(SubscriptionStoppedError):
        subscription.next_batch(PATIENCE)
    assert subscription.pending_count == 0


def test_large_events_are_delivered_once_to_a_slow_handler(run_emulator, connect):
    """Events that `max_bytes` leaves no room for are not requested, so none is delivered twice."""
    emulator = run_emulator()
    emulator.publish(TOPIC, [{"Order_Number__c": f"{n:0200000}"} for n in range(60)])
    most = 0
    with connect(emulator).subscribe_managed(NAME, max_bytes=2_000_000) as subscription:
        seen: list[int] = []
        while len(seen) < 60:
            until(lambda: subscription.pending_count, "an event")
            most = max(most, subscription.health().pending_bytes)
            seen += [int(event.value["Order_Number__c"][-6:]) for event in next(subscription)]
        health = subscription.health()
    assert seen == list(range(60))
    assert health.reconnects == 0
    assert most < 2 * 2_000_000
    record = emulator.managed.get(NAME)
    assert emulator.bus.counters.of_managed(record.subscription_id).delivered == 60


def test_drain_during_a_short_outage_commits_acked_events(run_emulator, connect):
    """drain() opens a new stream to commit the acked events, because they would otherwise be
    redelivered.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(3))
    client = connect(emulator, timings=Timings(backoff_initial=3600.0, backoff_max=3600.0))
    subscription = client.subscribe_managed(NAME, ack="manual")
    batch = subscription.next_batch(PATIENCE)
    plan.add(Fault("drop_stream"))
    until(lambda: subscription.health().state == "waiting", "the outage")
    batch.ack()
    subscription.drain()
    assert committed(emulator) == bytes(batch.last_replay_id)
    plan.assert_consumed()


@contextmanager
def outage(plan: FaultPlan, subscription) -> Iterator[None]:
    """Break the stream, and let no new one open until the block is left.

    The delay before a client's next attempt is random, and may be none at all.
    """
    refusing = plan.add(Fault("drop_call", rpc="ManagedSubscribe", times=10_000))
    plan.add(Fault("drop_stream"))
    until(lambda: subscription.health().state == "waiting", "the outage")
    yield
    plan.switch_off(refusing)


def test_events_lost_before_the_first_commit_are_reported(run_emulator, connect):
    """With defaultReplay LATEST the service stores no position before the first commit.

    Events published during an outage are lost, and a gap with the reason "unanchored" reports it.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=1))
    emulator.managed.create("New", TOPIC, default_replay="LATEST")
    own_id = emulator.managed.get("New").subscription_id
    gaps: list[Gap] = []
    client = connect(emulator, timings=Timings(backoff_initial=1.0, backoff_max=1.0))
    subscription = client.subscribe_managed("New", ack="manual", on_gap=gaps.append)
    until(lambda: emulator.managed.is_active(own_id), "the stream")
    emulator.publish(TOPIC, orders(1))
    assert collect(subscription, 1) == [0]
    with outage(plan, subscription):
        emulator.publish(TOPIC, orders(4, first=1))
    until(lambda: emulator.managed.is_active(own_id), "the next stream")
    emulator.publish(TOPIC, orders(1, first=5))
    assert collect(subscription, 1) == [5], "1 to 4 are lost"
    until(lambda: gaps, "the gap")
    assert [gap.reason for gap in gaps] == ["unanchored"]
    assert subscription.health().gaps == tuple(gaps)
    subscription.abort()


# What is known of a lost position although every received event was committed.


def committed_one(emulator, subscription) -> ReplayId:
    """Publish, read and commit one event, and return its position."""
    (result,) = emulator.publish(TOPIC, orders(1))
    while True:
        batch = subscription.next_batch(PATIENCE)
        batch.ack()
        if bytes(batch.last_replay_id) == result.replay_id:
            return subscription.commit().replay_id


def test_outage_that_outlasts_the_retention_is_reported(run_emulator, connect):
    """If the service's clock shows that an outage was longer than events are kept, the committed
    position has expired, which the service does not say: a gap reports it.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    client = connect(emulator, timings=Timings(backoff_initial=1.0, backoff_max=1.0))
    with client.subscribe_managed(NAME, ack="manual") as subscription:
        last = committed_one(emulator, subscription)
        with outage(plan, subscription):
            emulator.publish(TOPIC, orders(5))  # they expire
            emulator.clock.jump(73 * 3600.0)
        committed_one(emulator, subscription)
        assert subscription.health().gaps == (Gap("expired", NAME, after=last),)


def test_short_outage_with_everything_confirmed_is_no_gap(run_emulator, connect):
    """An outage of a day with everything confirmed reports no gap: nothing has expired."""
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    client = connect(emulator, timings=Timings(backoff_initial=1.0, backoff_max=1.0))
    with client.subscribe_managed(NAME, ack="manual") as subscription:
        committed_one(emulator, subscription)
        with outage(plan, subscription):
            emulator.clock.jump(24 * 3600.0)
        committed_one(emulator, subscription)
        assert subscription.health().gaps == ()


def test_stopped_subscription_that_runs_again_reports_a_gap(run_emulator, connect):
    """A client that was refused because the subscription was stopped reports a gap when it runs
    again, because stopping it has deleted its position.
    """
    emulator = run_emulator()
    client = connect(emulator)
    subscription = client.subscribe_managed(NAME, ack="manual")
    last = committed_one(emulator, subscription)
    emulator.managed.set_state(NAME, "STOP")
    with pytest.raises(SubscriptionStoppedError):
        subscription.next_batch(PATIENCE)
    with pytest.raises(SubscriptionStoppedError):
        client.subscribe_managed(NAME).next_batch(PATIENCE)
    emulator.managed.set_state(NAME, "RUN")
    with client.subscribe_managed(NAME, ack="manual") as again:
        committed_one(emulator, again)
        (gap,) = again.health().gaps
        assert (gap.reason, gap.after) == ("repositioned", last)
    with client.subscribe_managed(NAME, ack="manual") as third:
        committed_one(emulator, third)
        assert third.health().gaps == ()


def test_record_that_changed_during_an_outage_is_reported(run_emulator, connect):
    """A client that can read the subscription's record looks at it once for each stream, and
    reports a gap if it has changed, as by a stop and a start that the client did not see.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    looks = []

    def record_of(name):
        record = emulator.managed.get(name)
        looks.append((record.state, record.modified_at))
        return looks[-1]

    times = Timings(backoff_initial=1.0, backoff_max=1.0)
    client = connect(emulator, timings=times, record_of=record_of)
    with client.subscribe_managed(NAME, ack="manual") as subscription:
        last = committed_one(emulator, subscription)
        until(lambda: looks, "the first look")
        with outage(plan, subscription):
            emulator.managed.set_state(NAME, "STOP")
            emulator.managed.set_state(NAME, "RUN")
        committed_one(emulator, subscription)
        until(lambda: subscription.health().gaps, "the gap")
        (gap,) = subscription.health().gaps
        assert (gap.reason, gap.after) == ("repositioned", last)
    assert len(looks) == 2


def test_record_that_may_not_be_read_is_asked_for_once(run_emulator, connect):
    """If the user may not read the record, it is not asked for again, and nothing else happens."""
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    looks = []

    def record_of(name):
        looks.append(name)
        raise PermissionDeniedError("not allowed")

    with connect(emulator, record_of=record_of).subscribe_managed(NAME, ack="manual") as held:
        committed_one(emulator, held)
        until(lambda: looks, "the look")
        plan.add(Fault("drop_stream"))
        until(lambda: held.health().reconnects, "the next stream")
        committed_one(emulator, held)
        assert held.health().gaps == ()
    assert looks == [NAME]
