"""Tests of faults that affect deliveries and calls: events, responses, timing and positions."""

from __future__ import annotations

import threading

import grpc
import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import MANAGED, ORDERS, WAIT_S, commit, until


def orders(count):
    """Return the values of *count* numbered orders."""
    return [{"Order_Number__c": str(i)} for i in range(count)]


def ids(items):
    """Return the replay ids of events or publish results."""
    return [item.replay_id for item in items]


def wait_for_listeners(emulator, count=1):
    """Wait until *count* streams are waiting for events."""
    until(lambda: emulator.bus.bells.count(ORDERS) == count)


# Calls.


def test_get_schema_fails_as_often_as_planned(emulator, client):
    """GetSchema fails as often as planned for the given schema, and then succeeds."""
    schema_id = emulator.bus.topic(ORDERS).schema_id
    request = pb.SchemaRequest(schema_id=schema_id)
    emulator.faults.add(
        Fault(
            "refuse",
            rpc="GetSchema",
            target=schema_id,
            times=2,
            error_code="schema.api.unavailable",
        )
    )
    for _ in range(2):
        refusal = client.refusal("GetSchema", request)
        assert refusal == ("UNAVAILABLE", "schema.api.unavailable")
    assert client.call("GetSchema", request).schema_id == schema_id
    emulator.faults.assert_consumed()


def test_delay_call_delays_only_its_own_call(start):
    """The fault `delay_call` delays one call until the emulator's clock reaches the set time.

    Another call of the same method completes in the meantime.
    """
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", rpc="GetSchema", seconds=30))
    request = pb.SchemaRequest(schema_id=emulator.bus.topic(ORDERS).schema_id)
    slow = client.stub.GetSchema.future(request, metadata=client.metadata, timeout=WAIT_S)
    until(lambda: emulator.bus.bells.count("delay_call"))
    assert client.call("GetSchema", request).schema_json
    emulator.clock.jump(29)
    assert not slow.done()
    emulator.clock.jump(1)
    assert slow.result(WAIT_S).schema_json
    assert emulator.bus.bells.count("delay_call") == 0
    emulator.faults.assert_consumed()


def test_a_delayed_call_can_be_cancelled(start):
    """A call that is cancelled while it is delayed leaves nothing behind."""
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", seconds=1e9))
    stream = client.subscribe()
    until(lambda: emulator.bus.bells.count("delay_call"))
    stream.call.cancel()
    until(lambda: emulator.bus.bells.count("delay_call") == 0)
    client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS))


# Events per response.


def test_responses_are_split_as_planned(emulator, client):
    """Each `split_response` fault applies to one response, in the order in which faults were added.

    No event is lost.
    """
    published = emulator.publish(ORDERS, orders(10))
    for size in (3, 1, 2):
        emulator.faults.add(Fault("split_response", events=size))
    stream = client.subscribe()
    responses = [stream.next() for _ in range(4)]
    assert [len(r.events) for r in responses] == [3, 1, 2, 4]
    assert ids(e for r in responses for e in r.events) == ids(published)
    assert [r.latest_replay_id for r in responses] == [r.events[-1].replay_id for r in responses]
    assert [r.pending_num_requested for r in responses] == [97, 96, 94, 90]
    emulator.faults.assert_consumed()


def test_responses_are_merged(start):
    """The fault `merge_responses` holds events until enough of them can be sent in one response."""
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("merge_responses", events=3, within_s=60))
    stream = client.managed()
    wait_for_listeners(emulator)
    published = emulator.publish(ORDERS, orders(1)) + emulator.publish(ORDERS, orders(1))
    assert stream.silent(0.05)
    published += emulator.publish(ORDERS, orders(1))
    assert ids(stream.next().events) == ids(published)
    (last,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.next().events) == [last.replay_id]
    emulator.faults.assert_consumed()


def test_merging_ends_after_within_s_or_without_credit(start):
    """If too few events arrive to be merged, those held are sent after `within_s` seconds.

    They are sent earlier if the client has no credit left.
    """
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("merge_responses", events=3, within_s=60, times=2))
    stream = client.subscribe(num_requested=3)
    emulator.publish(ORDERS, orders(1))
    until(lambda: emulator.faults.report()[0]["happened"])
    assert stream.silent(0.05)
    emulator.clock.jump(60)
    assert len(stream.next().events) == 1
    emulator.publish(ORDERS, orders(2))
    assert len(stream.events(2)) == 2
    emulator.faults.assert_consumed()


class CountingClock(ManualClock):
    """A manual clock that counts calls to `timeout`, to detect busy loops."""

    waits = 0

    def timeout(self, deadline):
        self.waits += 1
        return super().timeout(deadline)


def test_events_that_expire_while_held_are_not_sent(start):
    """Events that expire while `merge_responses` holds them are not sent.

    The stream stays open and does not run in a busy loop.
    """
    emulator, client = start(clock=CountingClock())
    emulator.faults.add(Fault("merge_responses", events=2, within_s=60))
    stream = client.subscribe()
    emulator.publish(ORDERS, orders(1))
    until(lambda: emulator.faults.report()[0]["happened"])
    emulator.bus.age_out()
    emulator.clock.jump(60)
    assert stream.silent(0.1)
    assert emulator.clock.waits < 100  # no busy loop
    emulator.clock.jump(60)
    keepalive = stream.next()
    assert not keepalive.events
    assert emulator.bus.position(keepalive.latest_replay_id) is not None
    (new,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.events(1)) == [new.replay_id]


# LATEST streams that become active late.


@pytest.mark.parametrize("rpc", ["subscribe", "managed"])
def test_a_late_latest_stream_misses_the_first_events(start, rpc):
    """With `activate_late`, a LATEST stream misses what is published in its first seconds.

    It delivers all later events.
    """
    emulator, client = start(clock=ManualClock())
    emulator.managed.create("Late", ORDERS)
    emulator.faults.add(Fault("activate_late", seconds=5))
    first = {"replay_preset": pb.LATEST} if rpc == "subscribe" else {"developer_name": "Late"}
    stream = getattr(client, rpc)(**first)
    wait_for_listeners(emulator)
    emulator.publish(ORDERS, orders(2))
    emulator.clock.jump(4)
    emulator.publish(ORDERS, orders(1))
    assert stream.silent(0.05)
    emulator.clock.jump(1)
    published = emulator.publish(ORDERS, orders(2))
    assert ids(stream.events(2)) == ids(published)
    emulator.faults.assert_consumed()


def test_late_activation_does_not_affect_other_presets(emulator, client):
    """The fault `activate_late` does not affect EARLIEST or CUSTOM streams.

    It stays pending until a LATEST stream opens.
    """
    published = emulator.publish(ORDERS, orders(3))
    emulator.faults.add(Fault("activate_late", seconds=3600))
    assert len(client.subscribe().events(3)) == 3
    custom = {"replay_preset": pb.CUSTOM, "replay_id": published[0].replay_id}
    assert len(client.subscribe(**custom).events(2)) == 2
    with pytest.raises(AssertionError, match="activate_late"):
        emulator.faults.assert_consumed()


# Keepalives.


def test_a_keepalive_repeats_the_last_position(start):
    """The fault `move_keepalive_tip` makes one keepalive repeat the last event's position.

    The next keepalive has the current position.
    """
    emulator, client = start(clock=ManualClock())
    (event,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("move_keepalive_tip"))
    stream = client.subscribe()
    stream.events(1)
    emulator.bus.skip_positions(5)
    emulator.clock.jump(120)
    assert stream.next().latest_replay_id == event.replay_id
    emulator.faults.assert_consumed()
    emulator.clock.jump(120)
    assert emulator.bus.position(stream.next().latest_replay_id) == emulator.bus.tip()


def test_a_keepalive_position_ahead_of_the_log_loses_no_event(start):
    """A keepalive's position may be ahead of the newest event.

    If it is committed, or a stream resumes from it, no event is lost.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(commit_answer_delay_s=0))
    emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("move_keepalive_tip", advance=40, rpc="ManagedSubscribe"))
    stream = client.managed()
    stream.events(1)
    emulator.clock.jump(120)
    keepalive = stream.next()
    assert emulator.bus.position(keepalive.latest_replay_id) == emulator.bus.tip() >= 41
    stream.send(commit(keepalive.latest_replay_id))
    assert not stream.answer().HasField("error")
    published = emulator.publish(ORDERS, orders(2))
    assert ids(stream.events(2)) == ids(published)
    custom = {"replay_preset": pb.CUSTOM, "replay_id": keepalive.latest_replay_id}
    assert ids(client.subscribe(**custom).events(2)) == ids(published)
    emulator.faults.assert_consumed()


# The clock.


def test_a_clock_jump_applies_to_all_deadlines(start):
    """A clock jump of 73 hours triggers every deadline within that time.

    Events expire, a keepalive is sent, and streams time out.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(commit_answer_delay_s=0))
    (old,) = emulator.publish(ORDERS, orders(1))
    plain, idle, managed = client.subscribe(), client.subscribe(num_requested=1), client.managed()
    publishing = client.stream("PublishStream")
    for stream in (plain, idle, managed):
        stream.events(1)
    until(lambda: emulator.bus.bells.count("PublishStream"))
    emulator.clock.jump(73 * 3600)
    keepalive = plain.next()
    assert not keepalive.events
    assert idle.end()[0] == "OK"
    assert managed.refusal() == "managed.subscription.commit.deadline.exceeded"
    assert publishing.refusal() == "publish.stream.sweeper.timeout"
    custom = {"replay_preset": pb.CUSTOM, "replay_id": old.replay_id}
    assert client.subscribe(**custom).refusal() == "subscription.fetch.replayid.corrupted"
    emulator.publish(ORDERS, orders(1))
    custom["replay_id"] = keepalive.latest_replay_id
    assert len(client.subscribe(**custom).events(1)) == len(plain.events(1)) == 1


# Commits.


@pytest.mark.parametrize("tip", ["none", "sent", "org"])
@pytest.mark.parametrize("pending", [True, False])
def test_the_next_commit_responses_follow_the_fault(emulator, client, tip, pending):
    """The next two commit responses have the position and pending count set by the fault.

    Later responses follow the settings.
    """
    published = emulator.publish(ORDERS, orders(4))
    emulator.faults.add(Fault("shape_commit_answer", times=2, tip=tip, pending=pending))
    stream = client.managed()
    stream.events(4)
    emulator.bus.skip_positions(5)
    shapes = []
    for event in published[:3]:
        stream.send(commit(event.replay_id))
        response = stream.next()
        assert response.commit_response.replay_id == event.replay_id
        shapes.append((response.latest_replay_id, response.pending_num_requested))
    sent = published[3].replay_id
    tips = {"none": b"", "sent": sent, "org": emulator.bus.ids.mint(emulator.bus.tip())}
    assert shapes == [(tips[tip], 96 if pending else 0)] * 2 + [(sent, 96)]
    emulator.faults.assert_consumed()


def test_a_commit_response_can_arrive_with_events(emulator, client):
    """The fault `answer_with_events` sends a commit response together with events.

    The message's pending count and replay id are those of the events.
    """
    (first,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("answer_with_events", within_s=3600))
    stream = client.managed()
    stream.events(1)
    stream.send(commit(first.replay_id, "c"))
    until(lambda: emulator.managed.get(MANAGED).committed)
    assert stream.silent(0.05)
    (second,) = emulator.publish(ORDERS, orders(1))
    response = stream.next()
    assert ids(response.events) == [second.replay_id]
    assert response.latest_replay_id == second.replay_id
    assert response.pending_num_requested == 98
    assert response.commit_response.commit_request_id == "c"
    stream.send(commit(second.replay_id, "d"))
    assert stream.answer().commit_request_id == "d"
    emulator.faults.assert_consumed()


def test_a_commit_response_with_events_resets_the_idle_timeout(start):
    """A message with both events and a commit response resets the idle timeout of 60 s."""
    emulator, client = start(clock=ManualClock())
    (first,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("answer_with_events", within_s=3600))
    stream = client.managed(num_requested=2)
    stream.events(1)
    stream.send(commit(first.replay_id))
    until(lambda: emulator.faults.report()[0]["happened"])
    emulator.clock.jump(50)
    emulator.publish(ORDERS, orders(1))
    response = stream.next()
    assert response.events
    assert response.HasField("commit_response")
    emulator.clock.jump(59)
    assert stream.silent(0.05)
    emulator.clock.jump(1)
    assert stream.end()[0] == "OK"


def test_a_held_commit_response_is_sent_without_events(start):
    """If no events arrive, a held commit response is sent after `within_s` seconds.

    It is sent earlier if the client half-closes the stream.
    """
    emulator, client = start(clock=ManualClock())
    (first,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("answer_with_events", within_s=60, times=2))
    stream = client.managed()
    stream.events(1)
    stream.send(commit(first.replay_id, "c"))
    until(lambda: emulator.faults.report()[0]["happened"])
    emulator.clock.jump(60)
    assert stream.answer().commit_request_id == "c"
    stream.send(commit(first.replay_id, "d"))
    stream.half_close()
    assert stream.answer().commit_request_id == "d"


def test_held_commit_responses_are_sent_despite_an_error(start):
    """The fault `coalesce_commits` sends the held responses together, even if one is an error."""
    emulator, client = start(clock=ManualClock())
    published = emulator.publish(ORDERS, orders(2))
    emulator.faults.add(Fault("coalesce_commits", count=3, within_s=3600))
    stream = client.managed()
    stream.events(2)
    for request in (
        commit(published[0].replay_id, "0"),
        commit(b"", "bad"),
        commit(published[1].replay_id, "1"),
    ):
        stream.send(request)
    assert [stream.answer().commit_request_id for _ in range(3)] == ["0", "bad", "1"]


def test_faults_added_by_many_threads_happen_once_each(emulator, client):
    """Faults that several threads add at the same time each happen exactly once."""
    request = pb.TopicRequest(topic_name=ORDERS)

    def add():
        for _ in range(25):
            emulator.faults.add(Fault("refuse", rpc="GetTopic"))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    refused = 0
    while True:
        try:
            client.call("GetTopic", request)
        except grpc.RpcError:
            refused += 1
        else:
            break
    assert refused == 100
    emulator.faults.assert_consumed()
