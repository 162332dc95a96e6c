"""Queries of several topics use one stream and one offset per topic, and share batches."""

from __future__ import annotations

import json
import os
from contextlib import closing

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.reader import EventStreamReader
from tests.client.test_managed import orders
from tests.conftest import until
from tests.spark.source_world import TOPIC, World, ids, rows

# A topic that every new emulator has.
ACCOUNTS = "/data/AccountChangeEvent"

SMALL = Settings(events_per_response=7, keepalive_s=0.3)


class SeveralTopics(World):
    """A world whose query reads several topics."""

    def set(self, topics: str = f"{TOPIC},{ACCOUNTS}", **options: str) -> None:
        given = {"topics": topics, "startingOffsets": "earliest", "idleTimeout": "0.5"}
        self.options = SourceOptions.parse({**given, **options})

    def publish_both(self, orders_: int, accounts: int) -> dict[str, list[str]]:
        """Publish events to both topics, and return their event ids by topic."""
        bus = self.emulator.bus
        schema = json.loads(bus.schema(bus.topic(ACCOUNTS).schema_id).text)
        return {
            TOPIC: [event.event_id for event in self.emulator.publish(TOPIC, orders(orders_))],
            ACCOUNTS: [
                event.event_id
                for event in self.emulator.publish(ACCOUNTS, [_change(schema)] * accounts)
            ],
        }


def _change(schema: dict) -> dict:
    header = next(field for field in schema["fields"] if field["name"] == "ChangeEventHeader")
    kinds = {"string": "x", "long": 1, "int": 1}
    value = {}
    for field in header["type"]["fields"]:
        kind = field["type"]
        if isinstance(kind, dict):
            value[field["name"]] = kind["symbols"][0] if kind["type"] == "enum" else []
        else:
            value[field["name"]] = kinds.get(kind)
    return {"ChangeEventHeader": value}


@pytest.fixture
def world(run_emulator):
    with closing(SeveralTopics(run_emulator(settings=SMALL))) as made:
        yield made


def read_all(source: EventStreamReader, start: dict, count: int) -> tuple[dict, list[dict]]:
    """Read batches until there are *count* rows; return the end offset and the rows."""
    found: list[dict] = []
    position = start

    def enough() -> bool:
        nonlocal position
        end = source.latestOffset(position, source.getDefaultReadLimit())
        if end != position:
            found.extend(rows(source, position, end))
            position = end
        return len(found) >= count

    until(enough, f"{count} events")
    return position, found


def by_topic(found: list[dict]) -> dict[str, list[str]]:
    return {name: ids([row for row in found if row["topic"] == name]) for name in (TOPIC, ACCOUNTS)}


def test_each_topic_has_its_own_offset(world):
    """Each event is delivered once and in its topic's order, even after a restart."""
    published = world.publish_both(20, 9)
    source = world.reader()
    position, found = read_all(source, source.initialOffset(), 29)
    assert by_topic(found) == published
    assert [offset["topic"] for offset in position["topics"]] == [ACCOUNTS, TOPIC]
    assert [offset["seq"] for offset in position["topics"]] == [9, 20]
    assert all(list(offset) == sorted(offset) for offset in position["topics"])
    for name, count in ((TOPIC, 20), (ACCOUNTS, 9)):
        numbers = [row["ingest_seq"] for row in found if row["topic"] == name]
        assert numbers == list(range(count)), "each topic is numbered separately"
    again = world.publish_both(3, 2)
    _, more = read_all(world.reader(), position, 5)
    assert by_topic(more) == again


def test_batch_limits_are_divided_between_topics(world):
    """The batch limits are divided between the topics, so that a busy one does not starve
    another.
    """
    world.publish_both(40, 40)
    world.set(maxOffsetsPerTrigger="10")
    source = world.reader()
    start = source.initialOffset()

    def both() -> dict | None:
        end = source.latestOffset(start, ReadMaxRows(10))
        seqs = [offset["seq"] for offset in end["topics"]]
        return end if all(seqs) else None

    end = until(both, "events of both")
    assert [offset["seq"] for offset in end["topics"]] == [5, 5]
    small = source.latestOffset(end, ReadMaxBytes(2))
    assert sum(offset["seq"] for offset in small["topics"]) - 10 in (1, 2), (
        "each batch has at least one event"
    )


@pytest.mark.parametrize("cut", [1, 4])
def test_a_checkpointed_batch_of_several_topics_can_be_read_again(world, cut):
    """After a crash in the first batch, a new process reads the same events of each topic."""
    world.publish_both(12, 12)
    world.set(maxOffsetsPerTrigger=str(2 * cut))
    first = world.reader()
    start = first.initialOffset()
    end = until(
        lambda: (
            (found := first.latestOffset(start, first.getDefaultReadLimit())) != start and found
        ),
        "an end",
    )
    expected = rows(first, start, end)
    world.set(maxOffsetsPerTrigger="1000")
    second = world.reader()
    assert ids(rows(second, second.initialOffset(), end)) == ids(expected)


def test_topics_can_be_added_to_and_dropped_from_a_checkpoint(world):
    """A new topic starts at startingOffsets, and one that was dropped for a while resumes where it
    stopped. A checkpoint without any of the query's topics is rejected.
    """
    world.publish_both(4, 3)
    world.set(topics=TOPIC)
    alone = world.reader()
    position, _ = read_all(alone, alone.initialOffset(), 4)
    assert position["topic"] == TOPIC, "the offset of a single topic keeps its old form"
    world.set()
    joined = world.reader()
    position, found = read_all(joined, position, 3)
    assert {row["topic"] for row in found} == {ACCOUNTS}
    world.set(topics=TOPIC)
    world.publish_both(2, 2)
    position, found = read_all(world.reader(), position, 2)
    assert {row["topic"] for row in found} == {TOPIC}
    world.set()
    _, found = read_all(world.reader(), position, 2)
    assert {row["topic"] for row in found} == {ACCOUNTS}
    world.set(topics="/event/Strange__e")
    with pytest.raises(ConfigurationError, match=r"has positions in /data/.*, /event/.*Strange"):
        world.reader().latestOffset(position, ReadMaxRows(1))


def test_available_now_ends_once_every_topic_is_read(world):
    """A topic without events does not prevent the query from ending."""
    world.publish_both(10, 0)
    source = world.reader()
    source.prepareForTriggerAvailableNow()
    position, found = read_all(source, source.initialOffset(), 10)
    assert source.latestOffset(position, source.getDefaultReadLimit()) == position
    assert by_topic(found)[ACCOUNTS] == []


def test_progress_reports_how_far_behind_a_query_is(world):
    """Progress reports the number of pending events, their delay, and whether the topic has been
    read to its end.
    """
    published = world.publish_both(30, 0)
    world.set(topics=TOPIC, maxOffsetsPerTrigger="10")
    source = world.reader()
    assert source.reportLatestOffset() is None, "nothing is known before the first request"
    start = source.initialOffset()
    end = until(
        lambda: (found := source.latestOffset(start, ReadMaxRows(10)))["seq"] == 10 and found,
        "a batch",
    )
    # At least half of what may be received ahead: credit is requested in portions.
    latest = until(
        lambda: (found := source.reportLatestOffset())["pending"] >= 5 and found, "more of it"
    )
    assert latest["seq"] >= end["seq"] + 5
    assert latest["delay_s"] >= 0
    assert json.loads(json.dumps(latest)) == latest
    position, _ = read_all(source, start, 30)
    until(
        lambda: (
            source.latestOffset(position, ReadMaxRows(10)) == position
            and source.reportLatestOffset()["caught_up"]
        ),
        "a keepalive",
    )
    latest = source.reportLatestOffset()
    assert (latest["pending"], latest["seq"]) == (0, len(published[TOPIC]))


def test_without_a_settings_file_the_error_suggests_one(monkeypatch):
    """The error says that Spark's processes get no SFPUBSUB_ variables, and names configFile."""
    for name in list(os.environ):
        if name.startswith("SFPUBSUB_"):
            monkeypatch.delenv(name)
    source = EventStreamReader(SourceOptions.parse({"topic": TOPIC}))
    with pytest.raises(ConfigurationError, match=r"gets no SFPUBSUB_.*option configFile"):
        source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
