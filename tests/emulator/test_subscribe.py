"""Subscribe: the start position, credit, order, keepalives, and the end of a stream."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.grpc.pages import Pages
from sfpubsub.emulator.grpc.stream import Fetch, PlainStream
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.mailbox import Mailbox
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS, until


def orders(count, start=0):
    return [{"Order_Number__c": str(start + i)} for i in range(count)]


def test_earliest_delivers_everything_in_order(emulator, client):
    """EARLIEST starts at the oldest event and delivers all events in the order of publication."""
    published = emulator.publish(ORDERS, orders(250))
    stream = client.subscribe()
    got = stream.events(100)
    stream.send(pb.FetchRequest(num_requested=100))
    got += stream.events(100)
    stream.send(pb.FetchRequest(num_requested=50))
    got += stream.events(50)
    assert [(e.event.id, e.replay_id) for e in got] == [
        (p.event_id, p.replay_id) for p in published
    ]


def test_latest_delivers_only_new_events(emulator, client):
    """LATEST skips the existing events, and delivers each new one right away."""
    emulator.publish(ORDERS, orders(3))
    stream = client.subscribe(replay_preset=pb.LATEST)
    until(lambda: emulator.bus.bells.count(ORDERS))
    (new,) = emulator.publish(ORDERS, orders(1, 3))
    assert [e.replay_id for e in stream.next().events] == [new.replay_id]


@pytest.mark.parametrize("length", [8, 10])
def test_custom_starts_after_the_replay_id(emulator, client, length):
    """CUSTOM starts after the event with the given replay ID.

    Its first eight bytes are enough.
    """
    published = emulator.publish(ORDERS, orders(5))
    stream = client.subscribe(replay_preset=pb.CUSTOM, replay_id=published[2].replay_id[:length])
    assert [e.replay_id for e in stream.events(2)] == [p.replay_id for p in published[3:]]


@pytest.mark.parametrize(
    ("first", "suffix"),
    [
        ({"topic_name": ""}, "topic.validation.empty"),
        ({"topic_name": "/event/None__e"}, "topic.not.found"),
        ({"num_requested": 0}, "subscription.fetch.requested.events.invalid"),
        ({"num_requested": -1}, "subscription.fetch.requested.events.invalid"),
        ({"replay_preset": pb.CUSTOM}, "subscription.fetch.replayid.validation.failed"),
        (
            {"replay_preset": pb.CUSTOM, "replay_id": b"12345678"},
            "subscription.fetch.replayid.corrupted",
        ),
        (
            {"replay_preset": pb.CUSTOM, "replay_id": b"\x00" * 10},
            "subscription.fetch.replayid.corrupted",
        ),
        ({"replay_preset": 7}, "subscription.fetch.request.invalid"),
    ],
)
def test_first_request_is_refused(client, first, suffix):
    """A first request that violates a rule ends the stream with that rule's error code."""
    assert client.subscribe(**first).refusal() == suffix


def test_unknown_topic_names_org_and_topic(emulator, client):
    """The error for an unknown topic names the topic and the org; its trailers name the RPC."""
    status, details, trailers = client.subscribe(topic_name="/event/None__e").end()
    assert status == "NOT_FOUND"
    assert "/event/None__e" in details
    assert f"CORE/prod/{emulator.tenant_id}" in details
    assert trailers["type"] == "Subscribe"


def test_later_requests(emulator, client):
    """A later request's preset and replay ID are ignored; a different topic ends the stream."""
    emulator.publish(ORDERS, orders(3))
    stream = client.subscribe(num_requested=1)
    stream.events(1)
    stream.send(
        pb.FetchRequest(
            topic_name=ORDERS, num_requested=1, replay_preset=pb.CUSTOM, replay_id=b"nonsense"
        )
    )
    stream.events(1)
    stream.send(pb.FetchRequest(topic_name=ACCOUNTS, num_requested=1))
    assert stream.refusal() == "subscription.fetch.topic.mismatch"


def test_later_request_for_no_events(emulator, client):
    """A later request for 0 events ends the stream with an error."""
    stream = client.subscribe()
    stream.send(pb.FetchRequest(num_requested=0))
    assert stream.refusal() == "subscription.fetch.requested.events.invalid"


@pytest.mark.parametrize(("requests", "pending"), [((10, 15), 25), ((60, 1000, 30), 100)])
def test_credit_adds_up_and_is_clamped_at_100(start, requests, pending):
    """The credit of several requests adds up to at most 100; requesting more is not an error."""
    _, client = start(settings=Settings(keepalive_s=0.02))
    stream = client.subscribe(num_requested=requests[0])
    for number in requests[1:]:
        stream.send(pb.FetchRequest(num_requested=number))
    seen = 0
    while seen < pending:
        seen = stream.next().pending_num_requested
        assert seen <= pending
    assert stream.next().pending_num_requested == pending


def test_at_most_100_events_per_request(emulator, client):
    """A request for 5,000 events delivers only 100 of the 300 available events."""
    emulator.publish(ORDERS, orders(300))
    stream = client.subscribe(num_requested=5000)
    response = stream.next()
    assert (len(response.events), response.pending_num_requested) == (100, 0)
    assert stream.silent()


def test_pending_counts_down(emulator, client):
    """Each response reports how many requested events are outstanding.

    Its latest replay ID is that of its last event.
    """
    stream = client.subscribe(num_requested=25)
    until(lambda: emulator.bus.bells.count(ORDERS))
    for size, pending in ((1, 24), (2, 22)):
        emulator.publish(ORDERS, orders(size))
        response = stream.next()
        assert len(response.events) == size
        assert response.pending_num_requested == pending
        assert response.latest_replay_id == response.events[-1].replay_id


def test_responses_are_split(start):
    """`events_per_response` and `response_bytes` limit the size of a response.

    An event that exceeds the limit is sent alone.
    """
    emulator, client = start(settings=Settings(events_per_response=4, response_bytes=1000))
    emulator.publish(ORDERS, orders(6))
    emulator.publish(ORDERS, [{"Notes__c": "x" * 2000}, {"Notes__c": "y"}])
    stream = client.subscribe()
    assert [len(stream.next().events) for _ in range(4)] == [4, 2, 1, 1]


def test_keepalive_carries_the_latest_position(start):
    """After 120 s without events, a stream with outstanding credit receives a keepalive.

    It contains the org's latest position, from which a CUSTOM subscription can start.
    """
    emulator, client = start(clock=ManualClock())
    (last,) = emulator.publish(ORDERS, orders(1))
    stream = client.subscribe()
    stream.events(1)
    emulator.bus.skip_positions(22)
    emulator.clock.jump(119)
    assert stream.silent()
    emulator.clock.jump(1)
    response = stream.next()
    assert not response.events
    assert response.pending_num_requested == 99
    assert response.latest_replay_id != last.replay_id
    (new,) = emulator.publish(ORDERS, orders(1))
    again = client.subscribe(replay_preset=pb.CUSTOM, replay_id=response.latest_replay_id)
    assert [e.replay_id for e in again.events(1)] == [new.replay_id]


def test_no_keepalive_without_credit(start):
    """A stream without credit receives no keepalive, and is closed with OK after 60 s."""
    emulator, client = start(clock=ManualClock(), settings=Settings(keepalive_s=10))
    emulator.publish(ORDERS, orders(1))
    stream = client.subscribe(num_requested=1)
    stream.events(1)
    emulator.clock.jump(59)
    assert stream.silent()
    emulator.clock.jump(1)
    assert stream.end()[0] == "OK"


def test_idle_close_with_an_error(start):
    """With `idle_close` set to "error", an idle stream is closed with an error."""
    emulator, client = start(clock=ManualClock(), settings=Settings(idle_close="error"))
    emulator.publish(ORDERS, orders(1))
    stream = client.subscribe(num_requested=1)
    stream.events(1)
    emulator.clock.jump(60)
    assert stream.refusal() == "subscription.fetch.idle.timeout"


def test_keepalive_position_outlives_retention(start):
    """After 80 hours without events, the last event's replay ID has expired.

    A client can still resume from the last keepalive's position.
    """
    emulator, client = start(clock=ManualClock())
    (old,) = emulator.publish(ORDERS, orders(1))
    stream = client.subscribe()
    stream.events(1)
    tip = b""
    for _ in range(8):
        emulator.clock.jump(10 * 3600)
        tip = stream.next().latest_replay_id
    expired = client.subscribe(replay_preset=pb.CUSTOM, replay_id=old.replay_id)
    assert expired.refusal() == "subscription.fetch.replayid.corrupted"
    (new,) = emulator.publish(ORDERS, orders(1))
    alive = client.subscribe(replay_preset=pb.CUSTOM, replay_id=tip)
    assert [e.replay_id for e in alive.events(1)] == [new.replay_id]


def test_half_close_ends_with_ok(client):
    """After the client half-closes, the stream ends with OK."""
    stream = client.subscribe()
    stream.half_close()
    assert stream.end()[0] == "OK"


def test_a_half_close_with_the_last_request_loses_no_events(emulator):
    """The events that a request asks for are sent, even if the half-close comes together with the
    request, as from a program that sends one request and waits for the answer.
    """
    published = emulator.publish(ORDERS, orders(3))
    mailbox: Mailbox[Fetch] = Mailbox(emulator.clock)
    pages = Pages(emulator.bus, emulator.settings)
    stream = PlainStream(emulator._world, mailbox, emulator.access_token, pages)
    mailbox.put(Fetch(ORDERS, "EARLIEST", b"", 2))
    mailbox.put(Fetch(ORDERS, "EARLIEST", b"", 3))
    mailbox.half_close()
    replies = list(stream.run())
    assert [len(reply.page.positions) for reply in replies] == [3]
    assert replies[0].latest == published[-1].replay_id


def test_half_close_without_a_request(client):
    """A stream that the client half-closes before its first request ends with OK."""
    stream = client.stream("Subscribe")
    stream.half_close()
    assert stream.end()[0] == "OK"


def test_channel_events_keep_their_replay_ids(emulator, client):
    """An event has the same replay ID on its topic and on a channel that contains the topic.

    Its schema ID on the channel is that of the topic.
    """
    (event,) = emulator.publish(ACCOUNTS, [{"ChangeEventHeader": {"changeType": "UPDATE"}}])
    on_topic = client.subscribe(topic_name=ACCOUNTS).events(1)[0]
    on_channel = client.subscribe(topic_name=CHANGES).events(1)[0]
    assert on_topic.replay_id == on_channel.replay_id == event.replay_id
    assert (
        on_channel.event.schema_id
        == client.call("GetTopic", pb.TopicRequest(topic_name=ACCOUNTS)).schema_id
    )


def test_change_events_without_ids(start):
    """With `change_event_ids` off, change events have blank IDs, but platform events do not."""
    emulator, client = start(settings=Settings(change_event_ids=False))
    emulator.publish(ACCOUNTS, [{}])
    emulator.publish(ORDERS, orders(1))
    assert client.subscribe(topic_name=ACCOUNTS).events(1)[0].event.id == ""
    assert client.subscribe().events(1)[0].event.id


def test_many_streams_at_once(emulator, client):
    """Each of 64 open streams receives every published event."""
    streams = [client.subscribe(replay_preset=pb.LATEST) for _ in range(64)]
    until(lambda: emulator.bus.bells.count(ORDERS) == 64)
    emulator.publish(ORDERS, orders(5))
    assert all(len(stream.events(5)) == 5 for stream in streams)
