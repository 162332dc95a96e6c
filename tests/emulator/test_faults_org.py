"""Tests of faults of the org: tokens, replay ids, the event log and managed subscriptions.

Such a fault is counted when a client is affected by it, not when it is added.
"""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import MANAGED, ORDERS, Client, commit, until

TOPIC = pb.TopicRequest(topic_name=ORDERS)
CORRUPTED = "subscription.fetch.replayid.corrupted"
P = "managed.subscription."


def orders(count):
    """Return the values of *count* numbered orders."""
    return [{"Order_Number__c": str(i)} for i in range(count)]


def ids(items):
    """Return the replay ids of events or publish results."""
    return [item.replay_id for item in items]


def happened(emulator):
    """Return how often each fault has happened."""
    return [row["happened"] for row in emulator.faults.report()]


def resume(client, replay_id):
    """Open a Subscribe stream that starts after *replay_id*."""
    return client.subscribe(replay_preset=pb.CUSTOM, replay_id=replay_id)


def commit_once(client, replay_id, events):
    """Commit *replay_id* on a new stream after receiving *events* events, and end the stream."""
    stream = client.managed()
    stream.events(events)
    stream.send(commit(replay_id))
    assert not stream.answer().HasField("error")
    stream.half_close()
    stream.end()


def renew(emulator, client):
    """Create a new token, and use it for the client's next calls."""
    emulator.new_token()
    client.metadata = emulator.metadata


# Tokens.


def test_an_expired_token_ends_open_streams(emulator, client):
    """When the token expires, open subscribe, managed and publish streams end at once.

    With a new token, a new stream can resume from a replay id.
    """
    published = emulator.publish(ORDERS, orders(2))
    streams = [client.subscribe(), client.managed()]
    for stream in streams:
        stream.events(2)
    streams.append(client.stream("PublishStream"))
    until(lambda: emulator.bus.bells.count("PublishStream"))
    emulator.faults.add(Fault("expire_token", times=4))
    for stream in streams:
        assert stream.refusal() == "service.auth.error"
        assert stream.call.code().name == "UNAUTHENTICATED"
    with pytest.raises(AssertionError, match="expire_token"):
        emulator.faults.assert_consumed()
    assert client.refusal("GetTopic", TOPIC) == ("UNAUTHENTICATED", "service.auth.error")
    emulator.faults.assert_consumed()
    renew(emulator, client)
    assert ids(resume(client, published[0].replay_id).events(1)) == ids(published[1:])
    assert happened(emulator) == [4]


def test_a_revoked_token_leaves_streams_open(emulator, client):
    """After a token is revoked, open streams still deliver events and can still commit.

    The next call is rejected until a new token is created.
    """
    stream, plain = client.managed(), client.subscribe()
    until(lambda: emulator.bus.bells.count(ORDERS) == 2)
    emulator.faults.add(Fault("revoke_token"))
    (event,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.events(1)) == ids(plain.events(1)) == [event.replay_id]
    stream.send(commit(event.replay_id))
    assert not stream.answer().HasField("error")
    assert happened(emulator) == [0]
    assert client.subscribe().refusal() == "service.auth.error"
    emulator.faults.assert_consumed()
    renew(emulator, client)
    client.subscribe().events(1)


def test_a_revoked_token_has_no_expiry_left_to_wait_for(start):
    """The streams of a revoked token go on, also past the end of its lifetime. They do not wait for
    that time, which ends nothing: they would look for something to send without a pause.
    """
    emulator, _ = start(settings=Settings(token_lifetime_s=100.0), clock=ManualClock())
    assert emulator._sessions.expires_at(emulator.access_token) is not None
    emulator.faults.add(Fault("revoke_token"))
    assert not emulator._sessions.has_expired(emulator.access_token)
    assert emulator._sessions.expires_at(emulator.access_token) is None


def test_a_revoked_token_stays_invalid(emulator, client):
    """All tokens from before the fault stay invalid, even after new tokens were created.

    New tokens are valid.
    """
    old = emulator.access_token
    also_good = emulator.new_token()
    client.call("GetTopic", TOPIC)
    emulator.faults.add(Fault("revoke_token", times=2))
    new = emulator.new_token()
    assert len({old, also_good, new}) == 3
    for token in (old, also_good):
        client.metadata = (("accesstoken", token), *emulator.metadata[1:])
        assert client.refusal("GetTopic", TOPIC)[1] == "service.auth.error"
    client.metadata = emulator.metadata
    client.call("GetTopic", TOPIC)
    emulator.faults.assert_consumed()


def test_tokens_survive_a_restart(tmp_path):
    """After a restart, valid tokens are still accepted and revoked ones are still rejected.

    A restarted emulator has a new token in place of a revoked one.
    """
    with EmulatorServer(tmp_path) as emulator:
        first = emulator.access_token
        emulator.faults.add(Fault("revoke_token"))
    with EmulatorServer(tmp_path) as emulator:
        second = emulator.access_token
        assert second != first
        client = Client(emulator.grpc_target, emulator.metadata)
        client.call("GetTopic", TOPIC)
        client.metadata = (("accesstoken", first), *emulator.metadata[1:])
        assert client.refusal("GetTopic", TOPIC)[1] == "service.auth.error"
        client.close()
    with EmulatorServer(tmp_path) as emulator:
        assert emulator.access_token == second


# Ids.


def test_corrupt_id_rejects_one_replay_id(emulator, client):
    """The fault `corrupt_id` rejects one replay id, in its full and its short form.

    Ids next to it are valid.
    """
    published = emulator.publish(ORDERS, orders(4))
    emulator.faults.add(Fault("corrupt_id", replay_id=published[1].replay_id.hex(), times=2))
    assert ids(resume(client, published[0].replay_id).events(3)) == ids(published[1:])
    assert happened(emulator) == [0]
    assert resume(client, published[1].replay_id).refusal() == CORRUPTED
    assert resume(client, published[1].replay_id[:8]).refusal() == CORRUPTED
    emulator.faults.assert_consumed()
    assert ids(resume(client, published[2].replay_id).events(1)) == ids(published[3:])
    assert ids(client.subscribe().events(4)) == ids(published)


@pytest.mark.parametrize(("recovery", "missed"), [("EARLIEST", 4), ("LATEST", 0)])
def test_a_corrupt_committed_id_starts_at_error_recovery_replay(emulator, client, recovery, missed):
    """A managed stream whose committed id is corrupt starts at `errorRecoveryReplay`."""
    emulator.managed.delete(MANAGED)
    emulator.managed.create(
        MANAGED, ORDERS, default_replay="EARLIEST", error_recovery_replay=recovery
    )
    published = emulator.publish(ORDERS, orders(4))
    commit_once(client, published[2].replay_id, 4)
    emulator.faults.add(Fault("corrupt_id", replay_id=published[2].replay_id.hex()))
    stream = client.managed()
    until(lambda: emulator.bus.bells.count(ORDERS) == 1)
    assert happened(emulator) == [1]
    new = emulator.publish(ORDERS, orders(1))
    expected = ids(published)[4 - missed :] + ids(new)
    assert ids(stream.events(missed + 1)) == expected
    stream.send(commit(new[0].replay_id))
    assert not stream.answer().HasField("error")


def test_age_out_up_to_an_id(emulator, client):
    """The fault `age_out` removes all events up to the given replay id.

    The replay ids of removed events are rejected, and later ones are valid.
    """
    published = emulator.publish(ORDERS, orders(5))
    emulator.faults.add(Fault("age_out", replay_id=published[2].replay_id.hex()))
    assert ids(resume(client, published[3].replay_id).events(1)) == ids(published[4:])
    assert ids(client.subscribe().events(2)) == ids(published[3:])
    assert happened(emulator) == [0]
    assert resume(client, published[0].replay_id).refusal() == CORRUPTED
    emulator.faults.assert_consumed()


def test_age_out_everything(emulator, client):
    """Without a replay id, `age_out` removes all events.

    Open streams stay open and deliver new events.
    """
    published = emulator.publish(ORDERS, orders(3))
    commit_once(client, published[0].replay_id, 3)
    stream = client.subscribe()
    stream.events(3)
    emulator.faults.add(Fault("age_out", times=2))
    assert resume(client, published[2].replay_id).refusal() == CORRUPTED
    (new,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.events(1)) == [new.replay_id]
    assert ids(client.subscribe().events(1)) == [new.replay_id]
    assert ids(client.managed().events(1)) == [new.replay_id]
    emulator.faults.assert_consumed()


@pytest.mark.parametrize("kind", ["age_out", "reset_stream", "move_org"])
def test_a_keepalive_after_losing_all_events_has_a_valid_id(start, kind):
    """After all events are lost, a keepalive has a replay id from which a stream can start."""
    emulator, client = start(settings=Settings(keepalive_s=0.05))
    emulator.publish(ORDERS, orders(3))
    emulator.bus.skip_positions(2)
    emulator.faults.add(Fault(kind))
    keepalive = client.subscribe(replay_preset=pb.LATEST).next()
    assert not keepalive.events
    assert not resume(client, keepalive.latest_replay_id).next().events


def test_each_fault_counts_its_own_ids(emulator, client):
    """If several faults invalidate replay ids, each one counts only the ids that it invalidated."""
    published = emulator.publish(ORDERS, orders(3))
    for event in published[:2]:
        emulator.faults.add(Fault("age_out", replay_id=event.replay_id.hex()))
    assert resume(client, published[1].replay_id).refusal() == CORRUPTED
    assert happened(emulator) == [0, 1]
    assert resume(client, b"garbage!").refusal() == CORRUPTED
    assert happened(emulator) == [0, 1]
    assert resume(client, published[0].replay_id).refusal() == CORRUPTED
    emulator.faults.assert_consumed()


@pytest.mark.parametrize("kind", ["corrupt_id", "age_out"])
@pytest.mark.parametrize("replay_id", ["00", "00" * 10, "ff" * 10])
def test_a_replay_id_that_was_never_issued_is_rejected(emulator, kind, replay_id):
    """A fault with a replay id that was never issued is rejected when it is added.

    The plan stays empty.
    """
    emulator.publish(ORDERS, orders(1))
    with pytest.raises(ValueError, match="never issued"):
        emulator.faults.add(Fault(kind, replay_id=replay_id))
    assert emulator.faults.report() == []


# The log.


def test_reset_stream_removes_events_and_drops_streams(emulator, client):
    """The fault `reset_stream` removes all events and ids, and drops open streams.

    Later events are delivered.
    """
    published = emulator.publish(ORDERS, orders(3))
    commit_once(client, published[1].replay_id, 3)
    stream = client.subscribe()
    stream.events(3)
    emulator.faults.add(Fault("reset_stream", times=3))
    status, _, trailers = stream.end()
    assert (status, "error-code" in trailers) == ("UNAVAILABLE", False)
    assert resume(client, published[2].replay_id).refusal() == CORRUPTED
    (new,) = emulator.publish(ORDERS, orders(1))
    assert new.replay_id not in ids(published)
    assert ids(client.subscribe().events(1)) == [new.replay_id]
    assert ids(client.managed().events(1)) == [new.replay_id]
    emulator.faults.assert_consumed()


@pytest.mark.parametrize("length", [8, 10, 12, 24])
def test_move_org_keeps_events_under_new_replay_ids(start, length):
    """After `move_org`, the same events have new replay ids, but the same event ids and order.

    Old replay ids are rejected, and open streams are dropped.
    """
    emulator, client = start(settings=Settings(replay_id_bytes=length))
    published = emulator.publish(ORDERS, orders(4))
    commit_once(client, published[1].replay_id, 4)
    stream = client.subscribe()
    before = stream.events(4)
    emulator.faults.add(Fault("move_org", times=3))
    assert stream.end()[0] == "UNAVAILABLE"
    assert resume(client, published[3].replay_id).refusal() == CORRUPTED
    after = client.subscribe().events(4)
    assert [e.event.id for e in after] == [e.event.id for e in before]
    assert [e.event.payload for e in after] == [e.event.payload for e in before]
    assert not set(ids(after)) & set(ids(before))
    assert ids(resume(client, after[1].replay_id).events(2)) == ids(after[2:])
    assert ids(client.managed().events(4)) == ids(after)  # errorRecoveryReplay EARLIEST
    emulator.faults.assert_consumed()
    (new,) = emulator.publish(ORDERS, orders(1))
    assert ids(resume(client, after[3].replay_id).events(1)) == [new.replay_id]


def test_a_move_just_before_a_read_ends_the_stream(emulator, client, monkeypatch):
    """If the org moves just before a stream reads, the stream ends without delivering an event."""
    emulator.publish(ORDERS, orders(3))
    bus, read = emulator.bus, emulator.bus.read
    until_moved = iter([True])

    def move_and_read(*arguments):
        if next(until_moved, False):
            emulator.faults.add(Fault("move_org"))
        return read(*arguments)

    monkeypatch.setattr(bus, "read", move_and_read)  # the only way to hit that moment each time
    assert client.subscribe().end()[0] == "UNAVAILABLE"
    assert bus.counters.of_topic(ORDERS).delivered == 0
    emulator.faults.assert_consumed()
    client.subscribe().events(3)


def test_move_org_keeps_the_age_of_events(start):
    """Moving the org does not change when events expire."""
    emulator, client = start(clock=ManualClock())
    emulator.publish(ORDERS, orders(1))
    emulator.clock.jump(48 * 3600)
    (young,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("move_org"))
    emulator.clock.jump(25 * 3600)
    (event,) = client.subscribe().events(1)
    assert event.event.id == young.event_id
    emulator.clock.jump(48 * 3600)
    assert emulator.bus.read(emulator.bus.topic(ORDERS), 0, 10)[0] == []


def test_a_hundred_moves_keep_all_events(tmp_path):
    """After a hundred moves and a restart, all events are still there.

    No position is used twice, and positions do not grow without bound.
    """
    seen = set()
    with EmulatorServer(tmp_path) as emulator:
        published = emulator.publish(ORDERS, orders(3))
        topic = emulator.bus.topic(ORDERS)
        for _ in range(100):
            emulator.faults.add(Fault("move_org"))
            events = emulator.bus.read(topic, 0, 10)[0]
            assert [e.event_id for e in events] == [p.event_id for p in published]
            positions = {e.position for e in events}
            assert not positions & seen
            seen |= positions
    with EmulatorServer(tmp_path) as emulator:
        assert max(seen) < emulator.bus.tip() < 1000
        assert not any(emulator.bus.is_alive(p) for p in seen - positions)
        assert all(emulator.bus.is_alive(p) for p in positions)


# Managed subscriptions.

_SLOW_STOP = Settings(state_delay_s=3, commit_answer_delay_s=0)


def test_stop_reaches_the_stream_after_a_delay(start):
    """After STOP, the stream stays open for the delay, but its commits are rejected.

    Then the stream ends; after RUN, a new stream starts at `defaultReplay`.
    """
    emulator, client = start(clock=ManualClock(), settings=_SLOW_STOP)
    published = emulator.publish(ORDERS, orders(3))
    commit_once(client, published[1].replay_id, 3)
    stream = client.managed()
    stream.events(1)
    emulator.faults.add(Fault("stop_managed", target=MANAGED, times=2))
    assert emulator.managed.get(MANAGED).committed is None
    stream.send(commit(published[2].replay_id, "late"))
    answer = stream.answer()
    assert (answer.commit_request_id, answer.error.code) == ("late", pb.COMMIT)
    (new,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.events(1)) == [new.replay_id]
    assert happened(emulator) == [0]
    emulator.clock.jump(3)
    assert stream.refusal() == P + "config.stopped"
    assert client.managed().refusal() == P + "config.stopped"
    emulator.faults.assert_consumed()
    emulator.managed.set_state(MANAGED, "RUN")
    assert ids(client.managed().events(4)) == [*ids(published), new.replay_id]


def test_a_stopped_stream_ends_despite_an_immediate_restart(start):
    """A stream opened before a STOP ends even if the subscription is restarted at once.

    Its commits are rejected, because STOP deleted the position.
    """
    emulator, client = start(clock=ManualClock(), settings=_SLOW_STOP)
    published = emulator.publish(ORDERS, orders(2))
    stream = client.managed()
    stream.events(2)
    emulator.faults.add(Fault("stop_managed", target=MANAGED))
    emulator.managed.set_state(MANAGED, "RUN")
    stream.send(commit(published[1].replay_id))
    assert stream.answer().error.code == pb.COMMIT
    emulator.clock.jump(3)
    assert stream.refusal() == P + "config.stopped"
    emulator.faults.assert_consumed()
    assert ids(client.managed().events(2)) == ids(published)


def test_delete_managed_ends_the_stream(emulator, client):
    """The fault `delete_managed` ends the stream of a managed subscription.

    Its name and id are then unknown, but a new subscription may be created under the same name.
    """
    emulator.publish(ORDERS, orders(1))
    own = _managed_id(emulator)
    stream = client.managed()
    stream.events(1)
    emulator.faults.add(Fault("delete_managed", target=MANAGED, times=3))
    assert stream.refusal() == P + "config.deleted"
    assert client.managed().refusal() == P + "developer.name.not.found"
    assert client.managed(subscription_id=own).refusal() == P + "subscription.id.not.found"
    emulator.faults.assert_consumed()
    assert client.managed(developer_name="Other").refusal() == P + "developer.name.not.found"
    assert happened(emulator) == [3]
    emulator.managed.create(MANAGED, ORDERS, default_replay="EARLIEST")
    assert len(client.managed().events(1)) == 1


def test_a_fault_for_an_unknown_subscription_is_rejected(emulator):
    """A fault for an unknown managed subscription is rejected when it is added."""
    for kind in ("stop_managed", "delete_managed"):
        with pytest.raises(ValueError, match="Nobody"):
            emulator.faults.add(Fault(kind, target="Nobody"))
    assert emulator.faults.report() == []


def test_faults_in_a_plan_apply_from_the_start(start):
    """A plan that is passed to an emulator takes effect when the emulator is created."""
    plan = FaultPlan([Fault("stop_managed", target=MANAGED), Fault("revoke_token")])
    emulator, client = start(faults=plan)
    assert client.managed().refusal() == "service.auth.error"
    renew(emulator, client)
    assert client.managed().refusal() == P + "config.stopped"
    plan.assert_consumed()


def _managed_id(emulator):
    """Return the id of the default managed subscription."""
    return emulator.managed.get(MANAGED).subscription_id
