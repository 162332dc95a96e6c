"""Tests of each promise of the page "Advanced Usage" of the asyncio client that ours replaces.

The page is one of the documents ("seeds") that this project started from. Most tests run with the
synchronous and with the asyncio client.
"""

from __future__ import annotations

import collections
import dbm.dumb
import inspect
import json
import shelve

import pytest

from sfpubsub import (
    AsyncReplayStore,
    DefaultMappingReplayStore,
    FileReplayStore,
    ReplayOption,
    ReplayStore,
    StartPosition,
)
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    ReplayIdRejectedError,
    SfPubSubError,
)
from sfpubsub.streaming import StreamingClient, as_replay_id

from ..cli.test_cli import point_at
from ..conftest import until
from .conftest import TOPIC, numbered

# The sentences of the page, each with its test: "module: test" if that is in another file.
SENTENCES = {
    "Salesforce stores events for 24 hours. Events outside the 24-hour retention period are "
    "discarded.": "test_seed_durability: test_events_outside_the_retention_window_are_discarded",
    "A subscriber can choose which events to receive, such as all events within the retention "
    "window or starting after a particular event.": (
        "test_seed_durability: test_a_replay_id_delivers_the_events_after_it"
    ),
    "Salesforce extends the event messages with replayId and createdDate fields": (
        "test_seed_durability: test_a_notification_has_the_documented_fields"
    ),
    "The default is to receive only the new events sent after subscribing, the default replay "
    "parameter is ReplayOption.NEW_EVENTS": (
        "test_seed_durability: test_only_new_events_are_delivered_by_default"
    ),
    "If you want to receive all events within the retention window every time the Client "
    "connects, before receiving new events, then the ReplayOption.ALL_EVENTS value should be "
    "passed to the Client.": "test_minus_2_replays_all_events_each_time_the_client_is_opened",
    "being able to continue to process event messages from the point where the client left "
    "off": "test_a_client_resumes_from_a_position_in_a_mapping",
    "all you have to do is to pass an object capable of storing the most recent ReplayMarker for "
    "every channel": "test_a_user_defined_store_is_read_and_written",
    "The simplest way is to pass an object for the replay parameter that inherits from "
    "collections.abc.MutableMapping. This can be a simple dict, OrderedDict or if you want to use "
    "persistent storage then a Shelf object": "test_a_client_resumes_from_a_position_in_a_mapping",
    "the client on the first connection will receive only new events, and on reconnection will "
    "continue from the last unretrieved message": (
        "test_a_client_resumes_from_a_position_in_a_mapping"
    ),
    "If you want to receive all events from the retention window before continuing with new "
    "events, combined with the advantage of continuation on the next reconnect, then you can pass "
    "a DefaultMappingStorage object": "test_a_store_with_a_default_start_replays_all_events_first",
    "If you want complete control over how ReplayMarkers are stored and retrieved […] then you can "
    "provide your own ReplayMarkerStorage implementation.": (
        "test_a_user_defined_store_is_read_and_written"
    ),
    "Since Salesforce no longer has the event message that the client would try to retrieve, it "
    "would raise ServerError.": "test_a_position_that_is_too_old_is_rejected",
    "The above code would print the following message, if the client would request an event "
    "outside the retention window": "test_a_position_that_is_too_old_is_rejected",
    "To recover from an error like the above, you would have to discard the ReplayMarker for the "
    "problematic channel, and try to subscribe again.": (
        "test_a_position_that_is_too_old_is_rejected"
    ),
    "you can pass a ReplayOption for the replay_fallback parameter. If a subscription error "
    "occurs, then Client will try to resubscribe using the specified "
    "ReplayOption.": "test_the_fallback_replaces_a_rejected_position",
    "it will try to maintain a continuous connection in the background with the server. If any "
    "network failures happen while waiting to receive() messages, the client will reconnect to "
    "the server transparently, it will resubscribe to the subscribed channels, and continue to "
    "wait for incoming messages.": "test_reconnects: test_no_event_is_lost_or_repeated",
    "a connection_timeout can be passed to the Client, to limit how many seconds the client "
    "object should wait before raising a TransportTimeoutError if it can't reconnect to the "
    "server.": "test_reconnects: test_an_outage_longer_than_the_timeout_is_reported_repeatedly",
    "The default value is 10 seconds. If you pass None as the connection_timeout value, then the "
    "client will keep on trying indefinitely.": "test_the_documented_defaults",
    "It will start to fetch messages from the server as soon as it's connected, even before "
    "receive() is called.": "test_messages_are_prefetched_and_counted",
    "incoming messages will wait in a buffer for users to consume them when receive() is called, "
    "without any delay": "test_messages_are_prefetched_and_counted",
    "the number of prefetched messages can be limited with the max_pending_count parameter of the "
    "Client. The default value is 100.": (
        "test_reconnects: test_the_queue_never_exceeds_its_limit_plus_one_response"
    ),
    "The current number of messages waiting to be consumed can be obtained from the "
    "Client.pending_count attribute.": "test_messages_are_prefetched_and_counted",
    # In our client the hooks handle its own JSON only, not that of a sign-in.
    "you can specify the callable to use for serialization with the json_dumps and the callable "
    "for deserialization with the json_loads parameters of the Client.": (
        "test_json_hooks_handle_every_request_and_response"
    ),
}


def test_every_sentence_of_the_page_has_a_test():
    """Each sentence of the page is mapped to a test that exists, here or in another module."""
    from . import test_reconnects, test_seed_durability

    homes = {
        "test_reconnects": test_reconnects,
        "test_seed_durability": test_seed_durability,
    }
    for test in SENTENCES.values():
        home, _, name = test.rpartition(": ")
        assert hasattr(homes[home], name) if home else name in globals(), test


def test_the_documented_defaults(face, emulator):
    """By default, a client reads new events, waits for 10 seconds, prefetches 100 messages and
    keeps no positions.
    """
    client = face(emulator, is_open=False).client
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(type(client)).parameters.items()
    }
    assert (defaults["connection_timeout"], defaults["max_pending_count"]) == (10.0, 100)
    assert (defaults["replay_policy"], defaults["replay_fallback"]) == ("automatic", None)
    assert (defaults["replay"], client.replay_store) == (ReplayOption.NEW_EVENTS, None)


def test_minus_2_replays_all_events_each_time_the_client_is_opened(face, emulator):
    """With ReplayOption.ALL_EVENTS no position is stored, so a reopened client gets all events
    again.
    """
    found = emulator.publish_streaming(TOPIC, numbered(2))
    client = face(emulator, is_open=False, replay=ReplayOption.ALL_EVENTS)
    for _ in range(2):
        client.open()
        client.subscribe(TOPIC)
        assert client.ids(2) == found
        client.close()


def shelf(path):
    """Return a shelf that any thread may use.

    The tests' event loop has a thread of its own, and since Python 3.13 `shelve.open` creates a
    SQLite database, which only the thread that opened it may use.
    """
    return shelve.Shelf(dbm.dumb.open(str(path)))


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, "shelf"])
def test_a_client_resumes_from_a_position_in_a_mapping(face, emulator, tmp_path, kind):
    """With a mapping as store, the first run reads new events, and the next one resumes after the
    last event received.
    """
    mapping = None if kind == "shelf" else kind()
    emulator.publish_streaming(TOPIC, numbered(2))
    seen = []
    for run in range(2):
        kept = shelf(tmp_path / "replay") if mapping is None else mapping
        client = face(emulator, TOPIC, replay=kept)
        if run == 0:
            published = emulator.publish_streaming(TOPIC, numbered(5))
            until(lambda client=client: client.pending_count == 5)
        seen += client.ids(3 if run == 0 else 2)
        client.close()
        assert kept[TOPIC] == seen[-1].to_bytes(8, "big")
        if mapping is None:
            kept.close()
    assert seen == published


def test_a_store_with_a_default_start_replays_all_events_first(face, emulator, tmp_path):
    """A store with a default replays all events in its first run, and later resumes after the last
    one. This holds for a mapping and for a durable file.
    """
    for replay in (
        DefaultMappingReplayStore({}, ReplayOption.ALL_EVENTS),
        FileReplayStore(tmp_path / "positions.json", default="earliest"),
    ):
        emulator.bus.age_out()
        found = emulator.publish_streaming(TOPIC, numbered(2))
        client = face(emulator, TOPIC, replay=replay)
        assert client.ids(2) == found
        client.close()
        found = emulator.publish_streaming(TOPIC, numbered(1))
        client.open()
        client.subscribe(TOPIC)
        assert client.ids(1) == found
    kept = json.loads((tmp_path / "positions.json").read_text())
    assert kept["positions"] == {TOPIC: as_replay_id(found[0]).hex()}


class OwnStore(ReplayStore):
    """A user-defined store that records every position it is given, as a number."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def get(self, topic):
        return StartPosition.after(as_replay_id(self.numbers[-1])) if self.numbers else None

    def set(self, topic, replay_id):
        self.numbers.append(int.from_bytes(bytes(replay_id), "big"))


class OwnAsyncStore(AsyncReplayStore):
    """The asynchronous version of OwnStore, with coroutines."""

    def __init__(self) -> None:
        self.store = OwnStore()

    async def get(self, topic):
        return self.store.get(topic)

    async def set(self, topic, replay_id):
        self.store.set(topic, replay_id)


def test_a_user_defined_store_is_read_and_written(face, emulator):
    """A user's store needs only `get` and `set`, which may be coroutines for the asyncio client.

    The synchronous client rejects a store with coroutines.
    """
    own = OwnStore()
    found = emulator.publish_streaming(TOPIC, numbered(3))
    own.numbers.append(found[0])
    client = face(emulator, TOPIC, replay=own)
    assert client.ids(2) == found[1:]
    assert own.numbers == found
    if client.name == "sync":
        with pytest.raises(ConfigurationError, match="AsyncStreamingClient"):
            face(emulator, is_open=False, replay=OwnAsyncStore())
        return
    awaited = OwnAsyncStore()
    awaited.store.numbers.append(found[0])
    other = face(emulator, TOPIC, replay=awaited)
    assert other.ids(2) == found[1:]
    assert awaited.store.numbers == found


def test_a_position_that_is_too_old_is_rejected(face, emulator):
    """Subscribing at a stored position that is too old raises an error with the server's own
    message.

    Once the position is deleted, the client can subscribe to the channel.
    """
    (old,) = emulator.publish_streaming(TOPIC, numbered(1))
    emulator.bus.age_out()
    replay = {TOPIC: as_replay_id(old)}
    client = face(emulator, replay=replay)
    with pytest.raises(ReplayIdRejectedError) as error:
        client.subscribe(TOPIC)
    assert str(error.value.__cause__.error_message) == (
        f"The replayId {{{old}}} you provided was invalid.  Please provide a valid ID, -2 to "
        f"replay all events, or -1 to replay only new events."
    )
    assert client.subscriptions == set()
    del replay[TOPIC]
    client.subscribe(TOPIC)
    assert client.subscriptions == {TOPIC}


def test_the_fallback_replaces_a_rejected_position(face, emulator):
    """With replay_fallback, a rejected position is reported as a Gap, and the subscription starts
    from the fallback. The next message then replaces the stored position.
    """
    (old,) = emulator.publish_streaming(TOPIC, numbered(1))
    emulator.bus.age_out()
    found = emulator.publish_streaming(TOPIC, numbered(2))
    replay, gaps = {TOPIC: as_replay_id(old)}, []
    client = face(
        emulator, replay=replay, replay_fallback=ReplayOption.ALL_EVENTS, on_gap=gaps.append
    )
    client.subscribe(TOPIC)
    assert replay == {TOPIC: as_replay_id(old)}
    assert client.ids(1) == found[:1]
    assert replay == {TOPIC: bytes(as_replay_id(found[0]))}
    (gap,) = gaps
    assert (gap.reason, gap.after, gap.error_code) == ("rejected", as_replay_id(old), "400")


def test_messages_are_prefetched_and_counted(face, emulator):
    """Messages are fetched before `receive` is called, are counted, and can still be read after
    closing.
    """
    client = face(emulator, TOPIC)
    assert (client.pending_count, client.has_pending_messages) == (0, False)
    found = emulator.publish_streaming(TOPIC, numbered(3))
    until(lambda: client.pending_count == 3)
    assert client.has_pending_messages
    client.close()
    assert client.closed
    assert client.pending_count == 3
    assert client.ids(2) == found[:2]
    assert client.iterate() == found[2:]
    assert client.iterate() == []
    with pytest.raises(LocalProtocolError, match="no pending messages"):
        client.receive()


def test_json_hooks_handle_every_request_and_response(face, emulator):
    """Requests and responses pass through json_dumps and json_loads; an error in a hook is
    reported.
    """
    calls = collections.Counter()

    def dumps(value):
        calls["dumps"] += 1
        return json.dumps(value)

    def loads(text):
        calls["loads"] += 1
        return json.loads(text)

    client = face(emulator, TOPIC, json_dumps=dumps, json_loads=loads)
    emulator.publish_streaming(TOPIC, numbered(1))
    client.ids(1)
    assert calls["loads"] >= 4
    assert calls["dumps"] >= 4

    def broken(text):
        raise KeyError(text)

    with pytest.raises(SfPubSubError, match="could not be read: KeyError"):
        face(emulator, json_loads=broken)


def test_json_hooks_see_no_secrets(emulator, monkeypatch):
    """The JSON hooks never see the response of a sign-in, which contains the token."""
    point_at(emulator, monkeypatch)
    seen = []

    def loads(text):
        seen.append(text)
        return json.loads(text)

    with StreamingClient.from_env(json_loads=loads) as client:
        client.subscribe(TOPIC)
    assert len(seen) >= 3
    assert not [text for text in seen if "access_token" in text or emulator.access_token in text]


def test_the_manual_policy_stores_only_acked_positions(face, emulator):
    """With replay_policy="manual", a position is stored only once its message and all before it
    have been handled without an error, or acked.
    """
    replay: dict = {}
    client = face(emulator, TOPIC, replay=replay, replay_policy="manual")
    found = emulator.publish_streaming(TOPIC, numbered(3))
    messages = client.collect(3)
    assert replay == {}
    with pytest.raises(ValueError, match="no"):
        client.handled(messages[0], ValueError("no"))
    assert replay == {}
    client.handled(messages[1])
    assert replay == {}, "the first message would be lost after a crash"
    client.ack(messages[0])
    assert replay == {TOPIC: bytes(as_replay_id(found[1]))}
    client.ack(messages[2])
    assert replay == {TOPIC: bytes(as_replay_id(found[2]))}


def test_a_failing_store_loses_no_message(face, emulator):
    """If the store fails, receive() raises, and the next receive() returns the same message."""

    class Full(OwnStore):
        is_full = True

        def set(self, topic, replay_id):
            if self.is_full:
                self.is_full = False
                raise OSError("disk full")
            super().set(topic, replay_id)

    store = Full()
    client = face(emulator, TOPIC, replay=store)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    with pytest.raises(OSError, match="disk full"):
        client.receive(5.0)
    assert client.ids(1) == found
    assert store.numbers == found
