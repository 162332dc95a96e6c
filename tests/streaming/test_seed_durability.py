"""Tests of each sentence of Salesforce's page "Message Durability" against the emulator.

The page is one of the documents ("seeds") that this project started from. Most tests run with the
synchronous and with the asyncio client.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError, ReplayIdRejectedError
from sfpubsub.streaming import StreamingMessage
from sfpubsub.streaming.positions import as_number, as_replay_id
from sfpubsub.types import ReplayOption

from .conftest import TOPIC, numbered
from .faces import SyncFace, session_of

# The sentences of the page, each with the test that shows it.
SENTENCES = {
    "Salesforce stores events for 24 hours, so you can retrieve stored events during that "
    "retention window.": "test_events_outside_the_retention_window_are_discarded",
    "A subscriber can retrieve events at any time and isn't restricted to listening to events at "
    "the time they're sent.": "test_minus_2_delivers_all_retained_events",
    "IDs are incremented and not guaranteed to be contiguous for consecutive events.": (
        "test_ids_grow_but_are_not_contiguous"
    ),
    "For example, the event following the event with ID 999 can have an ID of 1,025.": (
        "test_ids_grow_but_are_not_contiguous"
    ),
    "Each ID is guaranteed to be higher than the ID of the previous event.": (
        "test_ids_grow_but_are_not_contiguous"
    ),
    "The ID is unique for the org and the channel.": "test_each_channel_has_its_own_position",
    "The IDs of deleted events aren't reused.": "test_ids_of_deleted_events_are_not_reused",
    "The ID is added in the replayId field of the notification message.": (
        "test_a_notification_has_the_documented_fields"
    ),
    "The time portion now ends with a Z suffix instead of +0000.": (
        "test_a_notification_has_the_documented_fields"
    ),
    "Both suffixes denote a UTC time zone.": "test_both_date_suffixes_mean_utc",
    "A subscriber can choose which events to receive, such as all events within the retention "
    "window or starting after a particular event.": "test_a_replay_id_delivers_the_events_after_it",
    "The default is to receive only the new events sent after subscribing.": (
        "test_only_new_events_are_delivered_by_default"
    ),
    "Events outside the 24-hour retention period are discarded.": (
        "test_events_outside_the_retention_window_are_discarded"
    ),
    "Replay ID: Subscriber receives all events after the event specified by its replayId "
    "value.": "test_a_replay_id_delivers_the_events_after_it",
    "-1: Subscriber receives new events that are broadcast after the client "
    "subscribes.": "test_minus_1_delivers_only_new_events",
    "-2: Subscriber receives all events, including past events that are within the 24-hour "
    "retention window and new events sent after subscription.": (
        "test_minus_2_delivers_all_retained_events"
    ),
    "To replay events, use the Streaming API endpoint.": (
        "test_the_api_version_of_the_endpoint_is_37_or_later"
    ),
    "Durable streaming is supported at this endpoint starting with API version 37.0.": (
        "test_the_api_version_of_the_endpoint_is_37_or_later"
    ),
    "However, we recommend you upgrade to version 37.0 and use the main Streaming API endpoint.": (
        "test_the_api_version_of_the_endpoint_is_37_or_later"
    ),
    "After calling the setReplay() function on the extension, the events that the subscriber "
    "receives depend on the replay value parameter passed to setReplay().": (
        "test_a_replay_id_delivers_the_events_after_it"
    ),
    "If the setReplay() function isn't called, or the CometD extension isn't registered, only new "
    "events are sent to the subscriber (same as the -1 option).": (
        "test_only_new_events_are_delivered_by_default"
    ),
}


def test_every_sentence_of_the_page_has_a_test():
    """The table that assigns a test to each sentence of the page names only tests that exist."""
    assert set(SENTENCES.values()) <= set(globals())


def test_minus_1_delivers_only_new_events(face, emulator):
    """A subscription from -1 receives the events published after it subscribed, and no others."""
    emulator.publish_streaming(TOPIC, numbered(3))
    client = face(emulator, TOPIC, replay=-1)
    new = emulator.publish_streaming(TOPIC, numbered(3))
    assert client.ids(3) == new
    assert client.rest() == []


def test_minus_2_delivers_all_retained_events(face, emulator):
    """A subscription from -2 first receives all retained events, and then new ones, in order."""
    past = emulator.publish_streaming(TOPIC, numbered(3))
    client = face(emulator, TOPIC, replay=-2)
    assert client.ids(3) == past
    new = emulator.publish_streaming(TOPIC, numbered(2))
    assert client.ids(2) == new


@pytest.mark.parametrize(
    ("number", "replay"),
    [
        (-1, ReplayOption.NEW_EVENTS),
        (-1, "latest"),
        (-2, ReplayOption.ALL_EVENTS),
        (-2, "earliest"),
        (5, as_replay_id(5)),
    ],
)
def test_a_start_has_several_spellings(number, replay):
    """A start given as a word, ReplayOption or ReplayId resolves to the number it stands for."""
    assert as_number(replay) == as_number(number) == number


def test_a_replay_id_delivers_the_events_after_it(face, emulator):
    """A subscription from an event's replay id receives the events after it, but not that event."""
    past = emulator.publish_streaming(TOPIC, numbered(5))
    client = face(emulator, is_open=True)
    client.subscribe(TOPIC, past[1])
    assert client.ids(3) == past[2:]
    assert client.rest() == []


def test_ids_grow_but_are_not_contiguous(face, emulator):
    """Ids grow in irregular steps, and the client does not wait for the skipped numbers."""
    past = emulator.publish_streaming(TOPIC, numbered(12))
    steps = {after - before for before, after in itertools.pairwise(past)}
    assert min(steps) >= 1
    assert len(steps) > 1
    assert face(emulator, TOPIC, replay=-2).ids(12) == past


def test_events_outside_the_retention_window_are_discarded(face, run_emulator):
    """After the retention window, a subscription from -2 starts at the oldest event still retained.

    The position of a discarded event is rejected.
    """
    clock = ManualClock()
    emulator = run_emulator(clock=clock, settings=Settings())
    (old,) = emulator.publish_streaming(TOPIC, numbered(1))
    clock.jump(2 * 3600.0)
    kept = emulator.publish_streaming(TOPIC, numbered(2))
    clock.jump(23 * 3600.0)
    client = face(emulator, TOPIC, replay=-2)
    assert client.ids(2) == kept
    other = face(emulator)
    with pytest.raises(ReplayIdRejectedError, match="was invalid") as refused:
        other.subscribe(TOPIC, old)
    assert refused.value.__cause__.error_message.startswith(f"The replayId {{{old}}} you provided")
    other.subscribe(TOPIC, kept[0])
    assert other.ids(1) == kept[1:]


@pytest.mark.parametrize("replay", [5, 10**9])
def test_an_id_that_was_never_assigned_is_rejected(face, emulator, replay):
    """An id that no event ever had is rejected like one that is too old."""
    emulator.bus.age_out()
    with pytest.raises(ReplayIdRejectedError):
        face(emulator, TOPIC, replay=replay if replay > 5 else emulator.bus.tip() + 5)


def test_only_new_events_are_delivered_by_default(face, emulator):
    """Without a `replay` argument, a subscription gets only new events."""
    emulator.publish_streaming(TOPIC, numbered(3))
    client = face(emulator, TOPIC)
    new = emulator.publish_streaming(TOPIC, numbered(1))
    assert client.ids(1) == new


def test_each_channel_has_its_own_position(face, emulator):
    """Two channels of one client are replayed from different positions."""
    topics = emulator.publish_streaming(TOPIC, numbered(3))
    news = emulator.publish_streaming("/u/News", [{"payload": str(i)} for i in range(3)])
    client = face(emulator)
    client.subscribe(TOPIC, topics[1])
    client.subscribe("/u/News", news[0])
    found = {(item.channel, item.replay_id) for item in client.collect(3)}
    assert found == {(TOPIC, topics[2]), ("/u/News", news[1]), ("/u/News", news[2])}


def test_ids_of_deleted_events_are_not_reused(face, emulator):
    """After all events have been deleted, the next event has a higher id than any before."""
    past = emulator.publish_streaming(TOPIC, numbered(3))
    emulator.bus.age_out()
    client = face(emulator, TOPIC, replay=-2)
    (new,) = emulator.publish_streaming(TOPIC, numbered(1))
    assert new > past[-1]
    assert client.ids(1) == [new]


def test_a_notification_has_the_documented_fields(face, emulator):
    """A PushTopic event and a generic event have the fields that the page shows for them."""
    emulator.publish_streaming("/u/News", [{"payload": "This is a message."}])
    client = face(emulator, TOPIC, "/u/News", replay=-2)
    (news,) = client.collect(1)
    assert news.raw["clientId"]
    assert news.payload == news.data["payload"] == "This is a message."
    assert news.channel == news.subscription == "/u/News"
    assert (news.type, news.sobject) == (None, None)
    emulator.publish_streaming(TOPIC, [{"type": "deleted", "sobject": {"Id": "001x"}}])
    (message,) = client.collect(1)
    assert (message.type, message.sobject) == ("deleted", {"Id": "001x"})
    assert message.replay_id == message.data["event"]["replayId"]
    assert message.created_date.endswith("Z")
    assert message.delivery_seq == 2


@pytest.mark.parametrize("suffix", ["Z", "+0000"])
def test_both_date_suffixes_mean_utc(suffix):
    """Dates end in "Z" or "+0000", and both are parsed as UTC."""
    event = {"event": {"createdDate": f"2016-03-29T19:05:28.334{suffix}", "replayId": 55}}
    message = StreamingMessage({"channel": TOPIC, "data": event}, TOPIC, 55, 1)
    found = datetime.fromisoformat(message.created_date)
    assert found == datetime(2016, 3, 29, 19, 5, 28, 334_000, tzinfo=UTC)


def test_the_api_version_of_the_endpoint_is_37_or_later(emulator):
    """API version 37.0 works, and an earlier or malformed version is rejected."""
    with SyncFace(session_of(emulator), api_version="37.0").client as client:
        client.subscribe(TOPIC)
    for wrong in ("36.0", "37", "latest", "37.5"):
        with pytest.raises(ConfigurationError, match=r"37\.0"):
            SyncFace(session_of(emulator), api_version=wrong)
