"""``spark.read`` of the source returns the events that are retained when it starts."""

from __future__ import annotations

import json
import os
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError, ReplayIdRejectedError
from sfpubsub.spark import ForeachBatchWriter, PubSubDataSource
from sfpubsub.spark.stream import batch
from sfpubsub.spark.stream.batch import EventReader
from sfpubsub.spark.stream.options import SourceOptions
from tests.spark.readers import ids_of
from tests.spark.source_world import TOPIC, World, ids, settings_file


class BatchReader(EventReader):
    """A batch reader that connects to the emulator of a `World`, without environment variables."""

    world: World

    def _stream(self):
        self.world.options = self._options
        return self.world.reader()


@pytest.fixture
def world(run_emulator):
    """A world with frequent keepalives, so that a read ends at a keepalive and not at a timeout."""
    with closing(World(run_emulator(settings=Settings(keepalive_s=0.3)))) as made:
        yield made


def read(world: World, **options: str) -> list[dict]:
    given = {"topic": TOPIC, "idleTimeout": "60", **options}
    reader = BatchReader(SourceOptions.parse(given))
    reader.world = world
    return [
        row
        for part in reader.partitions()
        for piece in reader.read(part)
        for row in piece.to_pylist()
    ]


def test_a_frame_contains_all_events_from_its_start_until_now(world):
    """Events are returned in order, by default from the earliest, or after the given replay id."""
    published = world.publish(25)
    found = read(world, maxOffsetsPerTrigger="10")
    assert ids(found) == [event.event_id for event in published]
    assert [row["ingest_seq"] for row in found] == list(range(25))
    after = read(world, startingOffsets=published[9].replay_id.hex())
    assert ids(after) == [event.event_id for event in published[10:]]


def test_a_frame_without_events_waits_only_for_the_idle_timeout(run_emulator):
    """A batch read that finds no events ends after the idle timeout.

    Unlike a query, it has no position to store, so it does not wait for a keepalive (270 s).
    """
    with closing(World(run_emulator())) as world:
        published = world.publish(2)
        start = published[-1].replay_id.hex()
        assert read(world, startingOffsets=start, idleTimeout="0.5") == []
    assert world.emulator.bus.counters.of_topic(TOPIC).keepalives == 0


def test_a_batch_read_rejects_large_frames_and_useless_starts(world, monkeypatch):
    """A frame that is too large, startingOffsets=latest, and an expired replay id each raise an
    error.
    """
    published = world.publish(5)
    with monkeypatch.context() as small:
        small.setattr(batch, "MAX_FRAME_BYTES", 10)
        with pytest.raises(ConfigurationError, match="trigger availableNow"):
            read(world)
    with pytest.raises(ConfigurationError, match="nothing to read in a batch"):
        read(world, startingOffsets="latest")
    world.emulator.bus.age_out()
    with pytest.raises(ReplayIdRejectedError):
        read(world, startingOffsets=published[0].replay_id.hex())


def test_spark_read_uses_the_settings_file(spark: SparkSession, world, tmp_path):
    """Without an endpoint in the environment, ``spark.read`` uses the settings file that the
    option configFile names.
    """
    published = world.publish(3)
    file = settings_file(world.emulator, tmp_path / "settings.toml")
    assert not any(name.startswith("SFPUBSUB_ENDPOINT") for name in os.environ)
    spark.dataSource.register(PubSubDataSource)
    frame = spark.read.format("sfpubsub").option("topic", TOPIC)
    rows = frame.option("configFile", str(file)).load().orderBy("ingest_seq").collect()
    assert [row["event_id"] for row in rows] == [event.event_id for event in published]


def test_a_query_of_several_topics_writes_one_table_and_reports_lag(spark, world, tmp_path):
    """A query of two topics writes to one table.

    The query's progress reports a topic's sequence number and its number of pending events.
    """
    published = world.publish(3)
    topics = [TOPIC, "/data/AccountChangeEvent"]
    file = settings_file(world.emulator, tmp_path / "settings.toml")
    spark.dataSource.register(PubSubDataSource)
    source = spark.readStream.format("sfpubsub").option("topics", ",".join(topics))
    source = source.option("startingOffsets", "earliest")
    events = source.option("configFile", str(file)).load()
    with ForeachBatchWriter(spark, tmp_path / "table", topic=topics) as writer:
        query = (
            events.writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
    assert ids_of(tmp_path / "table", "parquet") == [event.event_id for event in published]
    (told,) = query.recentProgress[0]["sources"]
    latest = told["latestOffset"]
    known = json.loads(latest) if isinstance(latest, str) else latest
    (mine,) = [topic for topic in known["topics"] if topic["topic"] == TOPIC]
    assert mine["seq"] == 3
    assert mine["pending"] == 0
