"""Channels of the Streaming API as sources of a raw table: rows, positions, epochs. No Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
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


@pytest.fixture
def emulator(run_emulator):
    """One with a PushTopic that has had an event, which is forgotten."""
    started = run_emulator()
    started.publish_streaming(TOPIC, numbered(1))
    started.bus.age_out()
    return started


@pytest.fixture
def open_channel(emulator) -> Iterator[Callable[..., ChannelSubscription]]:
    """Opens a channel as a new process would; all are closed with the test."""
    with contextlib.ExitStack() as opened:

        def open_one(position: str | None = None, **options) -> ChannelSubscription:
            return opened.enter_context(channel_of(emulator, position, **options))

        yield open_one


def channel_of(emulator, position: str | None = None, **options) -> ChannelSubscription:
    arguments = {"channel": TOPIC, "fallback": None, "clock": lambda: NOW} | options
    return ChannelSubscription(
        partial(StreamingClient, session_of(emulator), pace=QUICK),
        arguments.pop("channel"),
        None if position is None else ReplayId(position.encode()),
        **arguments,
    )


def taken(subscription: ChannelSubscription, count: int) -> list[EventBatch]:
    """Receive until there are that many events."""
    found: list[EventBatch] = []

    def enough() -> bool:
        batch = subscription.next_batch(0.1)
        if batch is not None:
            found.append(batch)
        return sum(map(len, found)) >= count

    until(enough, f"{count} events")
    return found


def rows_of(batches: list[EventBatch]) -> tuple[list[dict], ReplayId]:
    gathered = PendingEvents()
    for batch in batches:
        gathered.add(batch, len(batch), NOW)
    return gathered.rows.table().to_pylist(), gathered.rows.position


def test_a_message_is_a_row(emulator, open_channel):
    """The payload is its JSON, the replay id the digits, and there is no schema."""
    ids = emulator.publish_streaming(TOPIC, numbered(3))
    rows, position = rows_of(taken(open_channel(), 3))
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


def test_it_resumes_behind_its_position(emulator, open_channel):
    """And the same event has the same key each time."""
    ids = emulator.publish_streaming(TOPIC, numbered(3))
    all_rows, _ = rows_of(taken(open_channel(), 3))
    rows, _ = rows_of(taken(open_channel(str(ids[0])), 2))
    assert [row["dedupe_key"] for row in rows] == [row["dedupe_key"] for row in all_rows[1:]]


def test_a_filter_names_the_source_and_not_the_event(emulator, open_channel):
    """Positions are kept under the name with the filter."""
    emulator.publish_streaming(TOPIC, numbered(2))
    rows, _ = rows_of(taken(open_channel(channel=f"{TOPIC}?Name='1'"), 1))
    everything, _ = rows_of(taken(open_channel(), 2))
    assert rows[0]["subscription"] == f"{TOPIC}?Name='1'"
    assert rows[0]["dedupe_key"] == everything[1]["dedupe_key"]


def test_an_event_with_a_uuid_is_the_one_that_the_pubsub_api_delivers(emulator, open_channel):
    """Read on both ways into one table it is one row."""
    (published,) = emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "7"}])
    rows, _ = rows_of(taken(open_channel(channel="/event/Order_Event__e"), 1))
    assert rows[0]["event_id"] == published.event_id
    assert rows[0]["dedupe_key"] == dedupe_key(published.event_id, "schema", b"payload")
    assert rows[0]["event_name"] == "Order_Event__e"


def test_a_refused_position_ends_it_or_begins_an_epoch(emulator, open_channel):
    """Ids start anew, so an id that comes again is another event; the gap is told."""
    ids = emulator.publish_streaming(TOPIC, numbered(1))
    old, _ = rows_of(taken(open_channel(), 1))
    with pytest.raises(ReplayIdRejectedError), channel_of(emulator, "987654321"):
        pass
    subscription = open_channel("987654321", fallback="earliest")
    rows, position = rows_of(taken(subscription, 1))
    assert rows[0]["replay_id"] == str(ids[0]).encode()
    assert position == ReplayId(f"{ids[0]}/1".encode())
    assert rows[0]["dedupe_key"] != old[0]["dedupe_key"]
    (gap,) = subscription.health().gaps
    assert gap.reason == "rejected"
    emulator.publish_streaming(TOPIC, numbered(1))
    _, position = rows_of(taken(open_channel(f"{ids[0]}/1"), 1))
    assert bytes(position).endswith(b"/1"), "the epoch goes on"


def test_a_refusal_on_the_way_divides_what_came_before_from_what_comes(emulator, open_channel):
    """What is received and not yet handed out is of the old epoch."""
    emulator.publish_streaming(TOPIC, numbered(2))
    subscription = open_channel(fallback="earliest")
    until(lambda: subscription.health().pending_count == 2, "the events")
    emulator.faults.add(Fault("reset_stream"))
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: emulator.faults.report()[-1]["happened"], "the end of the session")
    emulator.publish_streaming(TOPIC, numbered(1))
    before, after = [], []
    for batch in taken(subscription, 3):
        (after if b"/1" in bytes(batch.last_replay_id) else before).extend(batch)
    assert (len(before), len(after)) == (2, 1)
    assert [gap.reason for gap in subscription.health().gaps] == ["rejected"]


def test_a_position_of_a_topic_is_none_of_a_channel(emulator):
    """The bytes of a Pub/Sub position say nothing to the Streaming API."""
    with pytest.raises(ConfigurationError, match="was not written from a topic"):
        channel_of(emulator, "\x00\x08")


def test_an_outage_is_no_silence(emulator, open_channel, monkeypatch):
    """A job that ends when idle must not take one for the other."""
    monkeypatch.setattr("sfpubsub.spark.ingest.channels.CONNECTION_TIMEOUT", 0.2)
    subscription = open_channel()
    assert subscription.health().can_receive
    emulator.stop()
    until(lambda: subscription.next_batch(0.1) or not subscription.health().can_receive, "notice")
    assert "no connection" in subscription.health().reason


def test_what_was_closed_is_over(open_channel):
    """The loop of a job ends in order then."""
    subscription = open_channel()
    subscription.__exit__(None, None, None)
    with pytest.raises(SubscriptionClosedError):
        subscription.next_batch(0.1)
    assert subscription.health().has_ended
