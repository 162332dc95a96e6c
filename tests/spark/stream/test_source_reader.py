"""Tests of the streaming source's reader, called in the order that Spark uses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    PermissionDeniedError,
    ReplayIdRejectedError,
    StreamError,
    StreamUnavailableError,
)
from sfpubsub.spark.stream import feed, partition, topic
from sfpubsub.spark.stream.offsets import Offset
from sfpubsub.spark.stream.partition import SOURCE_SCHEMA
from sfpubsub.spark.stream.reader import EventStreamReader
from tests.conftest import PATIENCE, until
from tests.spark.source_world import TOPIC, World, ids, next_end, rows

SMALL = Settings(events_per_response=7, keepalive_s=0.3)


@pytest.fixture
def world(run_emulator):
    """A query on an emulator that sends small responses and frequent keepalives."""
    with closing(World(run_emulator(settings=SMALL))) as made:
        yield made


def test_events_are_delivered_once_in_order_and_in_limited_batches(world):
    """maxOffsetsPerTrigger limits each batch, and ingest_seq is continuous across batches."""
    published = world.publish(50)
    world.set(maxOffsetsPerTrigger="20")
    source = world.reader()
    position, found = source.initialOffset(), []
    for seq in (20, 40, 50):
        end = next_end(source, position, seq)
        found += rows(source, position, end)
        assert rows(source, position, end) == found[position["seq"] :]  # the same when read again
        position = end
    assert ids(found) == [event.event_id for event in published]
    assert [row["ingest_seq"] for row in found] == list(range(50))
    assert [row["replay_id"] for row in found] == [event.replay_id for event in published]
    assert list(found[0]) == SOURCE_SCHEMA.names
    assert '"Order_Number__c":"0"' in found[0]["payload_json"]
    assert source.latestOffset(position, source.getDefaultReadLimit()) == position


@pytest.mark.parametrize("start", ["earliest", "latest", "hex"])
@pytest.mark.parametrize("cut", [1, 7, 18, 30])
def test_a_checkpointed_batch_is_the_same_in_another_process(run_emulator, start, cut):
    """After a crash, a batch has the same events even if the service splits its
    responses differently.
    """
    emulator = run_emulator(settings=SMALL)
    before = emulator.publish(TOPIC, [{"Order_Number__c": "before"}] * 10)
    given = before[-1].replay_id.hex() if start == "hex" else start
    with closing(World(emulator, startingOffsets=given, maxOffsetsPerTrigger=str(cut))) as world:
        first = world.reader()
        begin = first.initialOffset()
        first.latestOffset(begin, first.getDefaultReadLimit())
        until(lambda: emulator.bus.bells.count(TOPIC), "the stream")
        published = world.publish(30)
        expected = [e.event_id for e in (before if start == "earliest" else []) + published][:cut]
        end = next_end(first, begin, cut)
        assert ids(rows(first, begin, end)) == expected
        # The service splits its responses differently the next time.
        emulator.faults.add(Fault(rpc="Subscribe", kind="split_response", events=2))
        world.set(startingOffsets=given, maxOffsetsPerTrigger="1000")
        second = world.reader()
        found = rows(second, second.initialOffset(), end)
        assert ids(found) == expected
        assert [row["ingest_seq"] for row in found] == list(range(cut))
        rest = len(published) + (len(before) if start == "earliest" else 0) - cut
        if rest:
            after = next_end(second, end, cut + rest)
            assert (
                ids(rows(second, end, after))
                == [e.event_id for e in (before if start == "earliest" else []) + published][cut:]
            )


def test_an_offset_always_has_the_same_text(world):
    """The keys of an offset are always in the same order.

    Spark compares offsets as text, so another order would cause endless batches.
    """
    world.publish(3)
    source = world.reader()
    end = next_end(source, source.initialOffset(), 3)
    assert list(end) == sorted(end)
    assert end["v"] == 1
    bytes.fromhex(end["replay"])
    assert list(source.latestOffset(dict(end), source.getDefaultReadLimit()).items()) == list(
        end.items()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "format 2"),
        ({"topic": "/event/Other__e"}, "has positions in"),
        ({"replay": "x"}, "cannot read"),
    ],
)
def test_an_offset_of_another_topic_or_format_is_rejected(world, change, message):
    """A checkpoint of another topic or version, or a damaged one, raises an error."""
    source = world.reader()
    with pytest.raises(ConfigurationError, match=message):
        source.latestOffset(source.initialOffset() | change, source.getDefaultReadLimit())


def test_a_query_from_latest_gets_a_position_on_an_idle_topic(world):
    """A keepalive provides a position, so a restarted query reads the events published
    while it was down.
    """
    world.publish(5)
    world.set(startingOffsets="latest")
    first = world.reader()
    begin = first.initialOffset()
    anchored = next_end(first, begin)  # a batch without events, due to a keepalive
    assert (anchored["seq"], anchored["replay"]) == (0, "latest")
    assert rows(first, begin, anchored) == []
    limit = first.getDefaultReadLimit()
    assert first.latestOffset(anchored, limit) == anchored  # only one keepalive causes a batch
    first.stop()
    published = world.publish(4, first=5)
    second = world.reader()
    assert second.partitions(begin, anchored) == []  # killed before it was committed
    end = next_end(second, anchored, 4)
    assert ids(rows(second, anchored, end)) == [event.event_id for event in published]
    third = world.reader()
    assert ids(rows(third, anchored, end)) == [event.event_id for event in published]


def test_a_position_on_a_quiet_topic_is_renewed_before_it_expires(world, monkeypatch):
    """Keepalives renew the position, so 72 hours without events do not look like data loss."""
    world.publish(3)
    source = world.reader()
    end = next_end(source, source.initialOffset(), 3)
    monkeypatch.setattr(topic, "_RENEW_AFTER", 0.0)
    world.emulator.clock.jump(60 * 3600)
    renewed = next_end(source, end)
    assert (renewed["seq"], renewed["replay"]) == (3, end["replay"])
    assert renewed["keepalive"] != end["replay"]
    world.emulator.clock.jump(60 * 3600)  # now the event has expired, but the keepalive has not
    later = world.publish(2)
    restarted = world.reader()
    found = rows(restarted, renewed, next_end(restarted, renewed, 5))
    assert ids(found) == [event.event_id for event in later]


def test_an_expired_position_ends_the_query_with_advice(world):
    """By default, the query fails if its position has expired.

    The error names failOnDataLoss, the option that lets the query continue.
    """
    published = world.publish(6)
    first = world.reader()
    end = next_end(first, first.initialOffset(), 6)
    first.stop()
    world.publish(3)
    gone = published[-1].replay_id.hex()
    world.emulator.faults.add(Fault(kind="age_out", replay_id=gone))
    second = world.reader()
    with pytest.raises(ReplayIdRejectedError, match="failOnDataLoss") as caught:
        next_end(second, end)
    assert caught.value.gap.after.hex() == gone
    assert caught.value.error_code.endswith("fetch.replayid.corrupted")


def test_without_fail_on_data_loss_a_row_marks_the_gap(world):
    """With failOnDataLoss=false, the query continues with the oldest retained event, after a row
    that describes the gap.
    """
    published = world.publish(6)
    first = world.reader()
    end = next_end(first, first.initialOffset(), 6)
    later = world.publish(3)
    gone = published[-1].replay_id.hex()
    world.emulator.faults.add(Fault(kind="age_out", replay_id=gone))
    world.set(failOnDataLoss="false")
    for source in (world.reader(), world.reader()):  # the second one repeats the batch
        if source is world.readers[-2]:
            after = next_end(source, end, 9)
        gap, *found = rows(source, end, after)
        assert (gap["event_name"], gap["payload"]) == (partition.GAP_EVENT, None)
        assert gap["replay_id"].hex() == gone
        assert '"reason": "rejected"' in gap["payload_json"]
        assert len(gap["dedupe_key"]) == 16
        assert ids(found) == [event.event_id for event in later]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("kept", ["some", "none"])
def test_a_first_batch_without_its_first_events_is_data_loss(world, start, kept):
    """If events of a first batch have expired, repeating the batch raises an error.

    With failOnDataLoss=false, a gap row is added instead.
    """
    world.set(startingOffsets=start)
    first = world.reader()
    begin = first.initialOffset()
    first.latestOffset(begin, first.getDefaultReadLimit())
    until(lambda: world.emulator.bus.bells.count(TOPIC), "the stream")
    published = world.publish(10)
    end = next_end(first, begin, 10)
    world.publish(5, first=10)
    gone = published[3 if kept == "some" else -1].replay_id.hex()
    world.emulator.faults.add(Fault(kind="age_out", replay_id=gone))
    with pytest.raises(ReplayIdRejectedError, match="no longer retained"):
        world.reader().partitions(begin, end)
    world.set(startingOffsets=start, failOnDataLoss="false")
    source = world.reader()
    gap, *found = rows(source, begin, end)
    assert gap["event_name"] == partition.GAP_EVENT
    assert '"reason": "missing"' in gap["payload_json"]
    assert ids(found) == [e.event_id for e in published[4:]] if kept == "some" else found == []
    # The next batch follows, wherever the first one now ends.
    after = next_end(source, end, 15)
    assert [r["payload_json"][-20:] for r in rows(source, end, after) if r["payload"]]


def test_a_repeated_first_batch_is_complete_if_its_start_was_changed(world):
    """A changed startingOffsets option does not remove events from an unfinished first batch."""
    published = world.publish(10)
    first = world.reader()
    end = next_end(first, first.initialOffset(), 10)
    world.set(startingOffsets=published[3].replay_id.hex())
    second = world.reader()
    found = rows(second, second.initialOffset(), end)
    assert ids(found) == [event.event_id for event in published]


def test_a_repeated_batch_with_fewer_events_is_data_loss(world):
    """Repeating a batch raises an error if an event is missing, even if its first and last events
    still exist.
    """
    world.publish(10)
    first = world.reader()
    begin = next_end(first, first.initialOffset(), 10)
    world.publish(3, first=10)
    end = next_end(first, begin, 13)
    with pytest.raises(ReplayIdRejectedError, match="no longer retained"):
        world.reader().partitions(begin, end | {"seq": 14})


@pytest.mark.parametrize("start", ["an event", "earliest"])
def test_the_search_for_the_missing_end_of_a_batch_terminates(world, start):
    """If the end of a batch is no longer retained, the search for it ends with an error, even on a
    busy topic.

    The offsets say how many events the batch had, so newer events cannot belong to it.
    """
    published = world.publish(20)
    source = world.reader()
    begin = source.initialOffset()
    nowhere = "00" + published[0].replay_id.hex()
    end = next_end(source, begin, 20) | {"replay": nowhere}
    if start == "an event":
        begin = next_end(source, begin, 20)
        end = begin | {"seq": 25, "replay": nowhere}
    else:
        end |= {"first": nowhere}
    with busy(world), pytest.raises(ReplayIdRejectedError, match="no longer retained"):
        world.reader().partitions(begin, end)


def test_available_now_ends_on_a_busy_topic(world):
    """The query reads the events that existed when it began, in several batches, and then ends."""
    world.set(maxOffsetsPerTrigger="30", idleTimeout="60")
    before = world.publish(100)
    with busy(world):
        found, batches, _ = read_available(world)
    assert ids(found)[:100] == [event.event_id for event in before]
    assert batches >= 4
    assert len(set(ids(found))) == len(found)


def test_available_now_from_latest_ends_its_first_run_with_a_position(world):
    """On a busy topic, the first run reads at least one event, and the next one
    resumes where it ended.
    """
    world.set(startingOffsets="latest", idleTimeout="60")
    with busy(world):
        first, _, position = read_available(world)
        second, _, _ = read_available(world, position)
    assert [row["ingest_seq"] for row in first + second] == list(range(len(first + second)))
    numbers = [json.loads(row["payload_json"])["Order_Number__c"] for row in first + second]
    begin = int(numbers[0])
    assert len(first) >= 1
    assert numbers == [str(number) for number in range(begin, begin + len(numbers))]


@contextmanager
def busy(world):
    """Publish events until the block ends, which must happen within `PATIENCE` seconds."""
    over = threading.Event()
    number = iter(range(100, 1_000_000))
    deadline = time.monotonic() + PATIENCE

    def publish_on():
        while not over.wait(0.002) and time.monotonic() < deadline:
            world.publish(1, first=next(number))

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        yield
    finally:
        over.set()
        publisher.join()
    assert time.monotonic() < deadline, "the block ended only when publishing stopped"


def read_available(world, position=None):
    """Run an availableNow query; return its rows, the number of batches, and the end offset."""
    source = world.reader()
    found, batches = [], 0
    source.prepareForTriggerAvailableNow()
    position = position or source.initialOffset()
    while (end := source.latestOffset(position, source.getDefaultReadLimit())) != position:
        found += rows(source, position, end)
        position, batches = end, batches + 1
        assert batches < 200, "it never ends"
    source.stop()
    return found, batches, position


def test_available_now_ends_at_the_first_keepalive(world):
    """A keepalive shows that there are no more events, so the query does not wait for
    the idle timeout.
    """
    world.set(idleTimeout="1000")
    world.publish(10)
    source = world.reader()
    source.prepareForTriggerAvailableNow()
    end = next_end(source, source.initialOffset(), 10)
    assert source.latestOffset(end, source.getDefaultReadLimit()) == end


def test_a_pause_between_responses_does_not_count_as_a_keepalive(run_emulator):
    """Only a keepalive, not a pause after a response, shows that a topic was read to its end."""
    with closing(World(run_emulator())) as world:
        world.publish(3)
        source = world.reader()
        end = next_end(source, source.initialOffset(), 3)
        assert source.latestOffset(end, source.getDefaultReadLimit()) == end
        assert source._topics[0]._open_feed.tip is None


def test_available_now_ends_after_the_idle_timeout(run_emulator):
    """Without a keepalive, the query ends once no event has arrived for idleTimeout."""
    with closing(World(run_emulator(), idleTimeout="0.3")) as world:
        world.publish(10)
        source = world.reader()
        source.prepareForTriggerAvailableNow()
        end = next_end(source, source.initialOffset(), 10)
        assert source.latestOffset(end, source.getDefaultReadLimit()) == end


def test_waiting_for_a_schema_does_not_count_as_idle(world):
    """An availableNow query also reads events whose schema takes longer than the idle timeout."""
    world.set(idleTimeout="0.1")
    world.publish(3)
    world.emulator.faults.add(Fault(kind="refuse", rpc="GetSchema", times=20))
    found, _, _ = read_available(world)
    world.emulator.faults.assert_consumed()
    assert len(found) == 3


def test_a_failed_stream_ends_the_query_with_its_reason(world):
    """The query returns the events received before the failure, and then raises its reason instead
    of appearing idle.
    """
    world.publish(10)
    fault = Fault(
        rpc="Subscribe",
        kind="fail_stream",
        after_responses=1,
        error_code="subscription.topic.cannot.subscribe",
    )
    world.emulator.faults.add(fault)
    source = world.reader()
    begin = source.initialOffset()
    source._topics[0]._move_to(Offset.parse(begin))
    subscription = source._topics[0]._open_feed._subscription
    until(lambda: subscription.health().state == "closed", "the failure")
    end = next_end(source, begin)  # events received before the failure are returned first
    assert 0 < len(rows(source, begin, end)) < 10
    with pytest.raises(PermissionDeniedError, match=r"cannot\.subscribe|subscribe"):
        next_end(source, end)


def test_an_unreachable_service_ends_the_query(world, monkeypatch):
    """The client retries until the connection timeout; then the query fails."""
    monkeypatch.setattr(feed, "CONNECTION_TIMEOUT", 0.3)
    world.publish(2)
    source = world.reader()
    end = next_end(source, source.initialOffset(), 2)
    world.emulator.stop()
    with pytest.raises(StreamUnavailableError):
        next_end(source, end)


def test_an_expired_session_is_renewed_or_ends_the_query(world):
    """A query that can sign in again continues without interruption; one with a
    fixed token fails.
    """
    world.publish(5)
    fixed = world.reader()
    position = next_end(fixed, fixed.initialOffset(), 5)

    class Renewing:
        def get_session(self, expired):
            e = world.emulator
            e.new_token()
            return Session(e.access_token, e.instance_url, e.tenant_id)

    world.session = Renewing()
    source = world.reader()
    same = next_end(source, source.initialOffset(), 5)
    world.emulator.faults.add(Fault(kind="expire_token"))
    published = world.publish(5, first=5)
    after = next_end(source, same, 10)
    assert ids(rows(source, same, after)) == [event.event_id for event in published]
    with pytest.raises(AuthenticationError):
        next_end(fixed, position)


def test_a_schema_change_within_a_batch_is_decoded(world):
    """Each event is decoded with its own schema."""
    world.publish(3)
    first = world.reader()
    world_schema = first._connected().get_schema(world.emulator.bus.topic(TOPIC).schema_id)
    changed = world_schema.schema_json.replace('"Order_Number__c"', '"Order_Name__c"')
    world.emulator.change_schema(TOPIC, changed)
    world.emulator.publish(TOPIC, [{"Order_Name__c": "new"}])
    source = world.reader()
    begin = source.initialOffset()
    found = rows(source, begin, next_end(source, begin, 4))
    assert [("Order_Name__c" in row["payload_json"]) for row in found] == [False] * 3 + [True]
    assert len({row["schema_id"] for row in found}) == 2


def test_an_undecodable_event_becomes_a_row_without_json(world):
    """An undecodable event does not stop the query, and its row contains the payload."""
    world.publish(1)
    schema_id = world.emulator.bus.topic(TOPIC).schema_id
    world.emulator.publish_raw(
        TOPIC,
        [Draft(schema_id=schema_id, payload=b"\xff" * 9), Draft(schema_id="nobody", payload=b"x")],
    )
    source = world.reader()
    begin = source.initialOffset()
    found = rows(source, begin, next_end(source, begin, 3))
    assert [row["payload_json"] is None for row in found] == [False, True, True]
    assert found[1]["payload"] == b"\xff" * 9


def test_memory_is_bounded_by_bytes(world, monkeypatch):
    """maxBytesPerTrigger limits each batch; partitions and the queue of unread events have byte
    limits too.
    """
    world.set(maxBytesPerTrigger="10000")
    monkeypatch.setattr(partition, "MAX_TASK_BYTES", 4_000)
    world.emulator.publish(TOPIC, [{"Notes__c": "x" * 1000, "Order_Number__c": "1"}] * 40)
    source = world.reader()
    position, total = source.initialOffset(), 0
    while total < 40:
        end = next_end(source, position)
        parts = source.partitions(position, end)
        assert end["seq"] - total <= 9
        assert all(len(part.data) < 8_000 for part in parts)
        held = source._topics[0]._open_feed._subscription.health()
        assert held.pending_bytes <= 20_000 + 7_000
        total, position = end["seq"], end
    assert total == 40


def test_a_batch_is_split_into_small_partitions(world, monkeypatch):
    """A large batch is split into several tasks with consecutive row numbers."""
    monkeypatch.setattr(partition, "MAX_TASK_EVENTS", 8)
    world.publish(20)
    source = world.reader()
    begin = source.initialOffset()
    parts = source.partitions(begin, next_end(source, begin, 20))
    assert [part.first_seq for part in parts] == [0, 8, 16]


def test_the_source_stops_reading_if_its_driver_has_died(world, monkeypatch):
    """An orphaned source process raises an error instead of finishing a large batch first."""
    source = world.reader()
    begin = source.initialOffset()
    source.latestOffset(begin, source.getDefaultReadLimit())
    monkeypatch.setattr(feed.os, "getppid", lambda: 1)
    with pytest.raises(StreamError, match="driver"):
        source.latestOffset(begin, source.getDefaultReadLimit())


def test_the_pickled_reader_contains_only_options(world):
    """Executors get a copy of the reader without its connection, its events or the access token."""
    world.publish(3)
    source = world.reader()
    next_end(source, source.initialOffset(), 3)
    data = pickle.dumps(source)
    assert world.emulator.access_token.encode() not in data
    assert len(data) < 2_000
    assert pickle.loads(data)._client is None


def test_an_executor_needs_neither_grpc_nor_a_credential(world, tmp_path):
    """A process that cannot import grpc, protobuf or requests can read a batch's partitions."""
    world.publish(3)
    source = world.reader()
    begin = source.initialOffset()
    parts = source.partitions(begin, next_end(source, begin, 3))
    copy = EventStreamReader(world.options)
    (tmp_path / "task").write_bytes(pickle.dumps((copy, parts)))
    code = (
        "import pickle, sys\n"
        "for name in ('grpc', 'google', 'google.protobuf', 'sfpubsub_grpc', 'requests'):\n"
        "    sys.modules[name] = None\n"
        f"reader, parts = pickle.load(open({str(tmp_path / 'task')!r}, 'rb'))\n"
        "print(sum(len(batch) for part in parts for batch in reader.read(part)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "3", done.stderr


def test_a_keepalive_does_not_advance_past_an_unreported_gap(world, monkeypatch):
    """The gap row is delivered with the next event; until then, a restart detects the
    same gap again.
    """
    monkeypatch.setattr(topic, "_RENEW_AFTER", 0.0)
    published = world.publish(6)
    first = world.reader()
    end = next_end(first, first.initialOffset(), 6)
    first.stop()
    gone = published[-1].replay_id.hex()
    world.emulator.faults.add(Fault(kind="age_out", replay_id=gone))
    world.set(failOnDataLoss="false")
    second = world.reader()
    limit = second.getDefaultReadLimit()
    until(
        lambda: second.latestOffset(end, limit) == end and second._topics[0]._open_feed.tip,
        "a keepalive",
    )
    assert second.latestOffset(end, limit) == end
    second.stop()
    later = world.publish(1, first=6)
    third = world.reader()
    gap, event = rows(third, end, next_end(third, end, 7))
    assert gap["event_name"] == partition.GAP_EVENT
    assert event["event_id"] == later[0].event_id
