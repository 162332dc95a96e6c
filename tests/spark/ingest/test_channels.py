"""Tests of Streaming API channels as sources of a raw table, without Spark.

An epoch is a period in which a channel's replay ids are unique; it ends when a position is
rejected.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from sfpubsub.client.batch import EventBatch
from sfpubsub.emulator.faults import Fault
from sfpubsub.errors import ConfigurationError, ReplayIdRejectedError, SubscriptionClosedError
from sfpubsub.spark.ingest.channels import ChannelSubscription
from sfpubsub.spark.ingest.pending_events import PendingEvents
from sfpubsub.streaming import StreamingClient
from sfpubsub.types import ReplayId, dedupe_key
from tests.conftest import until
from tests.spark.sample_events import NOW
from tests.streaming.conftest import TOPIC, numbered
from tests.streaming.faces import QUICK, session_of
from tests.streaming.fake import fake_bayeux


@pytest.fixture
def emulator(run_emulator):
    """An emulator with a PushTopic whose only event has expired."""
    started = run_emulator()
    started.publish_streaming(TOPIC, numbered(1))
    started.bus.age_out()
    return started


@pytest.fixture
def open_channel(emulator) -> Iterator[Callable[..., ChannelSubscription]]:
    """Return a function that opens a channel as a new process would.

    All channels are closed after the test.
    """
    with contextlib.ExitStack() as opened:

        def open_one(position: str | None = None, **options) -> ChannelSubscription:
            return opened.enter_context(channel_of(emulator, position, **options))

        yield open_one


def channel_of(emulator, position: str | None = None, **options) -> ChannelSubscription:
    """Return a subscription to the PushTopic, which resumes after *position* if one is given."""
    arguments = {"channel": TOPIC, "fallback": None, "clock": lambda: NOW} | options
    return ChannelSubscription(
        partial(StreamingClient, session_of(emulator), pace=QUICK),
        arguments.pop("channel"),
        None if position is None else ReplayId(position.encode()),
        **arguments,
    )


def receive(subscription: ChannelSubscription, count: int) -> list[EventBatch]:
    """Receive batches until they contain at least *count* events, and return them."""
    found: list[EventBatch] = []

    def enough() -> bool:
        batch = subscription.next_batch(0.1)
        if batch is not None:
            found.append(batch)
        return sum(map(len, found)) >= count

    until(enough, f"{count} events")
    return found


def rows_of(batches: list[EventBatch]) -> tuple[list[dict], ReplayId]:
    """Return the raw rows of the batches, and the position of the last one."""
    gathered = PendingEvents()
    for batch in batches:
        gathered.add(batch, len(batch))
    return gathered.rows.table().to_pylist(), gathered.rows.position


def test_message_becomes_a_row(emulator, open_channel):
    """The payload is the message's JSON, the replay id is its decimal digits as bytes, and the
    schema id and the event id are empty.
    """
    ids = emulator.publish_streaming(TOPIC, numbered(3))
    rows, position = rows_of(receive(open_channel(), 3))
    assert [row["replay_id"] for row in rows] == [str(number).encode() for number in ids]
    assert position == ReplayId(str(ids[-1]).encode())
    row = rows[0]
    said = json.loads(row["payload"])
    assert said["sobject"] == {"Id": "0010", "Name": "0"}
    assert said["event"]["replayId"] == ids[0]
    assert row["payload_json"].encode() == row["payload"]
    assert (row["topic"], row["subscription"], row["event_name"]) == (TOPIC, TOPIC, "Accounts")
    assert (row["schema_id"], row["event_id"]) == ("", "")
    assert row["event_time"] is not None
    assert len({row["dedupe_key"] for row in rows}) == 3


def test_channel_resumes_after_its_position(emulator, open_channel):
    """A new subscription receives only the events after the given position, with the dedupe keys
    that they had in an earlier subscription.
    """
    ids = emulator.publish_streaming(TOPIC, numbered(3))
    all_rows, _ = rows_of(receive(open_channel(), 3))
    rows, _ = rows_of(receive(open_channel(str(ids[0])), 2))
    assert [row["dedupe_key"] for row in rows] == [row["dedupe_key"] for row in all_rows[1:]]


def test_position_of_the_table_is_never_above_an_event_that_may_be_on_its_way():
    """An event that comes with a reply while a connect is in flight does not move the position,
    because the connect may bring an earlier one.
    """

    def news(replay_id: int) -> dict:
        return {"channel": "/u/News", "data": {"event": {"replayId": replay_id}, "payload": ""}}

    with fake_bayeux() as fake:
        fake.more.append([news(6)])
        connect = partial(StreamingClient, fake.session, pace=replace(QUICK, reorder=0.0))
        position = ReplayId(b"4/1")
        with ChannelSubscription(connect, "/u/News", position, fallback=None) as subscription:
            rows, position = rows_of(receive(subscription, 1))
            assert ([row["replay_id"] for row in rows], position) == ([b"6"], ReplayId(b"4/1"))
            fake.polls.put([news(5)])
            fake.polls.put([news(7)])
            rows, position = rows_of(receive(subscription, 2))
            assert [row["replay_id"] for row in rows] == [b"5", b"7"]
            assert position == ReplayId(b"7/1")


def test_filter_is_in_the_source_name_but_not_in_dedupe_keys(emulator, open_channel):
    """A channel with a filter is a separate source, but its events have the same dedupe keys as
    without the filter.
    """
    emulator.publish_streaming(TOPIC, numbered(2))
    rows, _ = rows_of(receive(open_channel(channel=f"{TOPIC}?Name='1'"), 1))
    everything, _ = rows_of(receive(open_channel(), 2))
    assert rows[0]["subscription"] == f"{TOPIC}?Name='1'"
    assert rows[0]["dedupe_key"] == everything[1]["dedupe_key"]


def test_platform_event_has_the_same_key_as_over_the_pubsub_api(emulator, open_channel):
    """A platform event's dedupe key is derived from its event UUID, so that a table that receives
    it over both APIs stores it once.
    """
    (published,) = emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "7"}])
    rows, _ = rows_of(receive(open_channel(channel="/event/Order_Event__e"), 1))
    assert rows[0]["event_id"] == published.event_id
    assert rows[0]["dedupe_key"] == dedupe_key(published.event_id, "schema", b"payload")
    assert rows[0]["event_name"] == "Order_Event__e"


def test_rejected_position_raises_or_starts_an_epoch(emulator, open_channel):
    """Without a fallback, a rejected position raises an error.

    With one, a gap is reported and a new epoch begins, in which a known replay id identifies a
    different event.
    """
    ids = emulator.publish_streaming(TOPIC, numbered(1))
    old, _ = rows_of(receive(open_channel(), 1))
    with pytest.raises(ReplayIdRejectedError), channel_of(emulator, "987654321"):
        pass
    subscription = open_channel("987654321", fallback="earliest")
    rows, position = rows_of(receive(subscription, 1))
    assert rows[0]["replay_id"] == str(ids[0]).encode()
    assert position == ReplayId(f"{ids[0]}/1".encode())
    assert rows[0]["dedupe_key"] != old[0]["dedupe_key"]
    (gap,) = subscription.health().gaps
    assert gap.reason == "rejected"
    emulator.publish_streaming(TOPIC, numbered(1))
    _, position = rows_of(receive(open_channel(f"{ids[0]}/1"), 1))
    assert bytes(position).endswith(b"/1"), "the epoch was not kept"


def test_rejection_while_streaming_separates_the_epochs(emulator, open_channel):
    """If the position is rejected while streaming, events received before then, even if not yet
    delivered, belong to the old epoch, and later events to the new one.
    """
    emulator.publish_streaming(TOPIC, numbered(2))
    subscription = open_channel(fallback="earliest")
    until(lambda: subscription.health().pending_count == 2, "the events")
    emulator.faults.add(Fault("reset_stream"))
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: emulator.faults.report()[-1]["happened"], "the end of the session")
    emulator.publish_streaming(TOPIC, numbered(1))
    before, after = [], []
    for batch in receive(subscription, 3):
        (after if b"/1" in bytes(batch.last_replay_id) else before).extend(batch)
    assert (len(before), len(after)) == (2, 1)
    assert [gap.reason for gap in subscription.health().gaps] == ["rejected"]


def test_position_of_a_topic_is_rejected_for_a_channel(emulator):
    """A position of the Pub/Sub API raises a configuration error, because the Streaming API cannot
    resume from it.
    """
    with pytest.raises(ConfigurationError, match="was not stored for a topic"):
        channel_of(emulator, "\x00\x08")


def test_outage_is_not_mistaken_for_idleness(emulator, open_channel, monkeypatch):
    """When the connection is lost, `health` says that no events can be received, and why, so that a
    job with an idle timeout does not end.
    """
    monkeypatch.setattr("sfpubsub.spark.ingest.channels.CONNECTION_TIMEOUT", 0.2)
    subscription = open_channel()
    assert subscription.health().can_receive
    emulator.stop()
    until(lambda: subscription.next_batch(0.1) or not subscription.health().can_receive, "notice")
    assert "no connection" in subscription.health().reason


def test_closed_channel_reports_its_end(open_channel):
    """A closed channel raises SubscriptionClosedError and reports that it has ended, so that the
    job's loop ends normally.
    """
    subscription = open_channel()
    subscription.__exit__(None, None, None)
    with pytest.raises(SubscriptionClosedError):
        subscription.next_batch(0.1)
    assert subscription.health().has_ended
