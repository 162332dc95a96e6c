"""Plain subscriptions over gRPC: start positions, failures and replay stores."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    PermissionDeniedError,
    ReplayIdRejectedError,
    SessionExpiredError,
    StreamUnavailableError,
    SubscriptionClosedError,
    TopicNotFoundError,
)
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import ReplayId, StartPosition

from ..conftest import PATIENCE, until
from .test_managed import ACCOUNT, NAME, TOPIC, collect, orders


class MemoryStore(ReplayStore):
    """A replay store in a dict, which records every position that it is given."""

    def __init__(self, start: StartPosition | None = None) -> None:
        self.start = start
        self.positions: dict[str, ReplayId] = {}
        self.calls: list[ReplayId] = []

    def get(self, topic):
        if topic in self.positions:
            return StartPosition.after(self.positions[topic])
        return self.start

    def set(self, topic, replay_id):
        self.positions[topic] = replay_id
        self.calls.append(replay_id)


def test_start_positions(run_emulator, connect):
    """A start at "earliest" delivers all events, and one at a replay ID only later ones.

    Without `replay`, only events published after the subscription starts are delivered.
    """
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(5))
    client = connect(emulator)
    with client.subscribe(TOPIC, replay="earliest") as subscription:
        assert collect(subscription, 5) == [0, 1, 2, 3, 4]
    with client.subscribe(TOPIC, replay=ReplayId(results[2].replay_id)) as subscription:
        assert collect(subscription, 2) == [3, 4]
    with client.subscribe(TOPIC, replay=results[3].replay_id.hex()) as subscription:
        assert collect(subscription, 1) == [4]
    with client.subscribe(TOPIC) as subscription:
        until(lambda: emulator.bus.topic(TOPIC) and subscription.health().state != "new")
        assert subscription.next_batch(0.05) is None


@pytest.mark.parametrize("length", [8, 10, 12, 24])
def test_replay_ids_of_any_length_resume(run_emulator, connect, length):
    """Replay ids are opaque bytes: a subscription resumes after drops whatever their length is."""
    plan = FaultPlan([Fault("drop_stream", after_responses=2, times=3)])
    emulator = run_emulator(
        faults=plan, settings=Settings(replay_id_bytes=length, events_per_response=7)
    )
    emulator.publish(TOPIC, orders(100))
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        assert collect(subscription, 100) == list(range(100))
        assert subscription.health().reconnects == 3
        assert len(bytes(subscription.health().last_position)) == length
    plan.assert_consumed()


def test_a_dropped_stream_resumes_after_the_last_received_event(run_emulator, connect):
    """It never resumes at LATEST, so events published in the meantime are delivered."""
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(3))
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        assert collect(subscription, 3) == [0, 1, 2]
        plan.add(Fault("drop_stream", after_responses=1))
        plan.add(Fault("drop_call", rpc="Subscribe", times=4))
        emulator.publish(TOPIC, orders(3, first=3))
        assert collect(subscription, 3) == [3, 4, 5]
        assert subscription.health().gaps == ()
    plan.assert_consumed()


@pytest.mark.parametrize("status", ["OK", "RESET", "UNAVAILABLE", "INTERNAL", "UNKNOWN"])
def test_stream_end_without_an_error_code_is_retried(run_emulator, connect, status):
    """A clean close by the service is treated like a network failure."""
    plan = FaultPlan([Fault("drop_stream", after_responses=1, status=status)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=5))
    emulator.publish(TOPIC, orders(20))
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        assert collect(subscription, 20) == list(range(20))
    plan.assert_consumed()


def test_drop_at_latest_before_any_position_is_reported(run_emulator, connect):
    """If a stream from LATEST drops before its first response, a gap is reported, because events
    may be missed.
    """
    plan = FaultPlan([Fault("drop_stream", after_responses=0)])
    emulator = run_emulator(faults=plan)
    gaps = []
    with connect(emulator).subscribe(TOPIC, on_gap=gaps.append) as subscription:
        until(lambda: gaps, "a gap")
        assert [gap.reason for gap in subscription.health().gaps] == ["unanchored"]
    plan.assert_consumed()


def test_rejected_position_raises_by_default(run_emulator, connect):
    """The subscription does not silently restart from another position.

    The error contains the gap, the error code and the rpc id.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    with (
        pytest.raises(ReplayIdRejectedError, match="Replay ID validation failed") as caught,
        connect(emulator).subscribe(TOPIC, replay="00ff") as subscription,
    ):
        subscription.next_batch(PATIENCE)
    assert caught.value.gap.after == ReplayId(b"\x00\xff")
    assert caught.value.error_code.endswith("fetch.replayid.corrupted")
    assert caught.value.rpc_id


def test_rejected_position_uses_the_chosen_fallback(run_emulator, connect):
    """The subscription restarts at `replay_fallback` and reports the gap."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    gaps = []
    with connect(emulator).subscribe(
        TOPIC, replay="00ff", replay_fallback="earliest", on_gap=gaps.append
    ) as subscription:
        assert collect(subscription, 3) == [0, 1, 2]
    assert [gap.reason for gap in gaps] == ["rejected"]


def test_connection_timeout_bounds_the_retries(run_emulator, connect):
    """If no connection succeeds within `connection_timeout`, reading raises an error.

    The error includes the reason for the last failure.
    """
    emulator = run_emulator()
    client = connect(emulator)
    emulator.stop()
    says = r"no connection to .* for 0\.2 s; the last failure: .+ \(UNAVAILABLE\)$"
    with (
        pytest.raises(StreamUnavailableError, match=says),
        client.subscribe(TOPIC, replay="earliest", connection_timeout=0.2) as subscription,
    ):
        subscription.next_batch(PATIENCE)


def test_store_holds_the_acked_position_where_the_next_run_resumes(run_emulator, connect):
    """The stored position moves after a batch is acked, never before."""
    emulator = run_emulator(settings=Settings(events_per_response=5))
    results = emulator.publish(TOPIC, orders(15))
    store = MemoryStore(StartPosition.earliest())
    client = connect(emulator)
    with client.subscribe(TOPIC, replay=store) as subscription:
        subscription.next_batch(PATIENCE)
        assert store.positions == {}
        subscription.next_batch(PATIENCE)
        assert bytes(store.positions[TOPIC]) == results[4].replay_id
    assert bytes(store.positions[TOPIC]) == results[4].replay_id
    with client.subscribe(TOPIC, replay=store) as subscription:
        assert collect(subscription, 10) == list(range(5, 15))


def test_keepalive_position_is_stored_after_earlier_acks(run_emulator, connect):
    """Keepalives advance an idle topic's position, but never past an unacked event."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.05, tip_refresh_s=0.0))
    emulator.publish(TOPIC, orders(2))
    store = MemoryStore(StartPosition.earliest())
    with connect(emulator).subscribe(TOPIC, replay=store, ack="manual") as subscription:
        events = list(subscription.next_batch(PATIENCE))
        emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
        tip = events[-1].replay_id
        until(lambda: subscription.health().last_position != tip, "a keepalive ahead")
        assert subscription.next_batch(0) is None
        assert store.calls == []
        events[0].ack()
        assert store.calls == [events[0].replay_id]
        events[1].ack()
        assert subscription.next_batch(0) is None  # stored before it waits
        assert store.calls[-1] not in (events[0].replay_id, events[1].replay_id)
    with connect(emulator).subscribe(TOPIC, replay=store) as subscription:
        assert subscription.next_batch(0.1) is None


def test_unknown_topic_raises_topic_not_found(run_emulator, connect):
    """Calls and subscriptions raise the same type of error.

    A call's error contains the service's error code and the rpc id.
    """
    emulator = run_emulator()
    client = connect(emulator)
    with pytest.raises(TopicNotFoundError, match="Nothing__e") as caught:
        client.get_topic("/event/Nothing__e")
    assert caught.value.error_code == "sfdc.platform.eventbus.grpc.topic.not.found"
    assert caught.value.rpc_id
    with (
        pytest.raises(TopicNotFoundError),
        client.subscribe("/event/Nothing__e") as subscription,
    ):
        subscription.next_batch(PATIENCE)


def test_session_expired_error_does_not_contain_the_token(run_emulator):
    """The service rejects the token, and the error's repr does not reveal it."""
    from sfpubsub import PubSubClient
    from sfpubsub.auth.session import Session

    emulator = run_emulator()
    secret = "00D000000000001!very-secret"
    session = Session(secret, emulator.instance_url, emulator.tenant_id)
    with PubSubClient(session, endpoint=emulator.grpc_target, insecure="1") as client:
        with pytest.raises(SessionExpiredError) as caught:
            client.get_topic(TOPIC)
        assert secret not in repr(caught.value)
        with (
            pytest.raises(SessionExpiredError),
            client.subscribe(TOPIC) as subscription,
        ):
            subscription.next_batch(PATIENCE)


def test_change_event_topic_cannot_be_published_to(run_emulator, connect):
    """The topic's `can_publish` is false, and publishing to it raises PermissionDeniedError."""
    emulator = run_emulator()
    client = connect(emulator)
    assert not client.get_topic("/data/AccountChangeEvent").can_publish
    with pytest.raises(PermissionDeniedError):
        client.publish("/data/AccountChangeEvent", [ACCOUNT])


def test_event_of_a_channel_has_the_subscribed_topic(run_emulator, connect):
    """The event's `topic` is the channel through which it came; `event_name` is its own type."""
    emulator = run_emulator()
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
    with connect(emulator).subscribe("/data/ChangeEvents", replay="earliest") as subscription:
        (event,) = subscription.next_batch(PATIENCE)
    assert event.topic == "/data/ChangeEvents"
    assert event.event_name == "AccountChangeEvent"
    assert event.event_time == 1_700_000_000_000


def test_closed_client_rejects_calls(run_emulator, connect):
    """Each call raises an error that says that the client is closed."""
    client = connect(run_emulator())
    client.close()
    for call in (client.connect, lambda: client.get_topic(TOPIC), lambda: client.subscribe(TOPIC)):
        with pytest.raises(LocalProtocolError, match="closed"):
            call()


def test_nothing_is_handed_out_after_a_drain(run_emulator, connect):
    """Draining also drops a batch that is still waiting for its schema."""
    plan = FaultPlan([Fault("refuse", rpc="GetSchema", error_code="schema.api.unavailable")])
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(1))
    subscription = connect(emulator).subscribe(TOPIC, replay="earliest")
    until(lambda: subscription.health().pending_count)
    assert subscription.next_batch(0) is None
    subscription.drain()
    with pytest.raises(SubscriptionClosedError):
        subscription.next_batch(1)


def test_invalid_ack_mode_opens_no_stream(run_emulator, connect):
    """An invalid value of `ack` raises a configuration error before a stream is opened."""
    client = connect(run_emulator())
    with pytest.raises(ConfigurationError, match="manual"):
        client.subscribe(TOPIC, ack="sometimes")
    assert not client._connection._drivers


def test_subscription_decodes_only_the_requested_fields(run_emulator, connect, tmp_path):
    """With `fields`, events contain only the requested fields and the event time.

    This applies to plain and managed subscriptions and to every `on_undecodable` policy. The raw
    payload stays complete. An invalid list of fields raises a configuration error.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    client = connect(emulator)
    kept = FileQuarantine(tmp_path)
    fields = ["Order_Number__c"]
    for open_it in (
        lambda: client.subscribe(TOPIC, replay="earliest", fields=fields),
        lambda: client.subscribe(
            TOPIC, replay="earliest", fields=iter(fields), on_undecodable="skip"
        ),
        lambda: client.subscribe_managed(
            NAME, fields=set(fields), on_undecodable="quarantine", quarantine=kept
        ),
    ):
        with open_it() as subscription:
            for event in subscription.next_batch(PATIENCE):
                assert set(event.value) == {"CreatedDate", "Order_Number__c"}
                assert event.event_time == event.value["CreatedDate"]
                whole = event.codec.whole.decode(event.payload)
                assert set(whole) > set(event.value)
    with pytest.raises(ConfigurationError, match="list of names"):
        client.subscribe(TOPIC, fields="Order_Number__c")
    with pytest.raises(ConfigurationError, match="top-level fields"):
        client.subscribe_managed(NAME, fields=["Address.City"])
