"""Faults of delivery and of calls: what arrives, in which responses, when, and with which tip."""

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
    return [{"Order_Number__c": str(i)} for i in range(count)]


def ids(items):
    return [item.replay_id for item in items]


def listening(emulator, count=1):
    until(lambda: emulator.bus.bells.count(ORDERS) == count)


# Calls.


def test_schema_fails_and_then_works(emulator, client):
    """GetSchema fails as often as planned, for the schema that was named, and then answers."""
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


def test_schema_is_slow(start):
    """A delayed call is answered when the emulator's clock says so; others are not held up."""
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


def test_a_delayed_call_can_be_given_up(start):
    """A call that is cancelled while it is delayed leaves nothing behind."""
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", seconds=1e9))
    stream = client.subscribe()
    until(lambda: emulator.bus.bells.count("delay_call"))
    stream.call.cancel()
    until(lambda: emulator.bus.bells.count("delay_call") == 0)
    client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS))


# Events per response.


def test_responses_are_split_as_scripted(emulator, client):
    """Each split applies to one response, in the order of their addition; nothing is lost."""
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
    """Events published one by one leave in one response once enough of them wait."""
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("merge_responses", events=3, within_s=60))
    stream = client.managed()
    listening(emulator)
    published = emulator.publish(ORDERS, orders(1)) + emulator.publish(ORDERS, orders(1))
    assert stream.silent(0.05)
    published += emulator.publish(ORDERS, orders(1))
    assert ids(stream.next().events) == ids(published)
    (last,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.next().events) == [last.replay_id]
    emulator.faults.assert_consumed()


def test_merging_gives_up(start):
    """With too few events they leave after within_s; with little credit, when it is used up."""
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
    """Counts how often anyone thinks of waiting."""

    waits = 0

    def timeout(self, deadline):
        self.waits += 1
        return super().timeout(deadline)


def test_merged_events_that_are_forgotten(start):
    """Events that are aged out while they are held do not come; the stream goes on, and waits."""
    emulator, client = start(clock=CountingClock())
    emulator.faults.add(Fault("merge_responses", events=2, within_s=60))
    stream = client.subscribe()
    emulator.publish(ORDERS, orders(1))
    until(lambda: emulator.faults.report()[0]["happened"])
    emulator.bus.age_out()
    emulator.clock.jump(60)
    assert stream.silent(0.1)
    assert emulator.clock.waits < 100  # no loop that turns without news
    emulator.clock.jump(60)
    keepalive = stream.next()
    assert not keepalive.events
    assert emulator.bus.position(keepalive.latest_replay_id) is not None
    (new,) = emulator.publish(ORDERS, orders(1))
    assert ids(stream.events(1)) == [new.replay_id]


# Late activation of LATEST.


@pytest.mark.parametrize("rpc", ["subscribe", "managed"])
def test_late_activation(start, rpc):
    """What is published in the first seconds of a LATEST stream never comes; all later does."""
    emulator, client = start(clock=ManualClock())
    emulator.managed.create("Late", ORDERS)
    emulator.faults.add(Fault("activate_late", seconds=5))
    first = {"replay_preset": pb.LATEST} if rpc == "subscribe" else {"developer_name": "Late"}
    stream = getattr(client, rpc)(**first)
    listening(emulator)
    emulator.publish(ORDERS, orders(2))
    emulator.clock.jump(4)
    emulator.publish(ORDERS, orders(1))
    assert stream.silent(0.05)
    emulator.clock.jump(1)
    published = emulator.publish(ORDERS, orders(2))
    assert ids(stream.events(2)) == ids(published)
    emulator.faults.assert_consumed()


def test_late_activation_spares_other_presets(emulator, client):
    """EARLIEST and a stored position are active at once, and do not use the fault up."""
    published = emulator.publish(ORDERS, orders(3))
    emulator.faults.add(Fault("activate_late", seconds=3600))
    assert len(client.subscribe().events(3)) == 3
    custom = {"replay_preset": pb.CUSTOM, "replay_id": published[0].replay_id}
    assert len(client.subscribe(**custom).events(2)) == 2
    with pytest.raises(AssertionError, match="activate_late"):
        emulator.faults.assert_consumed()


# Keepalives.


def test_keepalive_repeats_the_position(start):
    """The tip of a keepalive is the last event's although the org has moved on; the next is new."""
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


def test_keepalive_runs_ahead(start):
    """The tip is ahead by so many positions, can be started from and committed, and skips none."""
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


def test_three_days_in_an_instant(start):
    """A jump of 73 h does what 73 h would: retention, keepalives and every deadline follow."""
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
def test_shape_of_the_next_answers(emulator, client, tip, pending):
    """The next n answers have the asked shape, later ones that of the settings."""
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


def test_answer_with_events(emulator, client):
    """One message has events and the answer to a commit; the credit is that of the events."""
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


def test_an_answer_with_events_is_a_response(start):
    """Of the 60 s rule: a message with events counts as one although it has an answer."""
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


def test_answer_with_events_gives_up(start):
    """Without events the answer comes alone after within_s, or when the client half-closes."""
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


def test_an_error_within_held_answers_does_not_delay_the_rest(start):
    """Answers that were held together are all due together, though an error splits them."""
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


def test_many_faults_from_many_threads(emulator, client):
    """Faults added by several threads at once all happen, each exactly once."""
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
