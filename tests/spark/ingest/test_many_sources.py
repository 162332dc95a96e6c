"""Tests of one raw table with several sources, in Parquet and in the session's table format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, DecodeError, LocalProtocolError
from sfpubsub.spark import EventWriter, read_sidecar
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.types import RawEvent
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of, read_table
from tests.spark.sample_events import MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

OTHER = "/event/Other__e"


@pytest.fixture(params=["parquet", TABLE_FORMAT])
def format_(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "org"


@pytest.fixture
def open_writer(
    spark: SparkSession, table: Path, format_: str
) -> Iterator[Callable[..., EventWriter]]:
    """Return a function that closes the previous writer and opens a new one, as a restarted process
    would.
    """
    opened: list[EventWriter] = []

    def open_one(**options) -> EventWriter:
        if opened:
            opened[-1].close()
        opened.append(EventWriter(spark, table, format=format_, clock=lambda: NOW, **options))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].close()


def part(source: str, numbers, **options) -> Part:
    """Return the events with these numbers as one source's part of a write."""
    rows = EventRows()
    rows.extend(batch_of(numbers, topic=None if source == MANAGED else source, **options), NOW)
    return Part(source, rows)


def test_sources_share_one_commit_with_all_positions(open_writer, table, format_):
    """One write stores the events of several sources with consecutive numbers, and the position of
    each topic, even one without events. An event from two sources is stored once.
    """
    writer = open_writer(subscription=MANAGED, topic=[TOPIC, OTHER])
    quiet = {OTHER: replay_id(90)}
    first = writer.write_parts([part(MANAGED, range(2)), part(TOPIC, range(1, 5))], quiet)
    assert [(found.rows, found.duplicates) for found in first] == [(2, 0), (3, 1)]
    assert [found.first_seq for found in first] == [0, 2]
    assert len({found.batch_id for found in first}) == 1
    assert [found.position for found in first] == [None, replay_id(4)]
    assert writer.positions == {TOPIC: replay_id(4), **quiet}
    writer.write_parts([part(OTHER, [7])])
    rows = read_table(table, format_)
    assert rows["ingest_seq"].to_pylist() == list(range(6))
    assert rows["subscription"].to_pylist() == [MANAGED] * 2 + [TOPIC] * 3 + [OTHER]
    assert ids_of(table, format_) == [f"event-{n}" for n in (0, 1, 2, 3, 4, 7)]
    writer = open_writer(subscription=MANAGED, topic=[TOPIC, OTHER])
    assert writer.positions == {TOPIC: replay_id(4), OTHER: replay_id(7)}
    (again,) = writer.write_parts([part(OTHER, range(5))])
    assert (again.rows, again.duplicates) == (0, 5), "an event of another source was stored again"
    assert writer.positions[OTHER] == replay_id(4)


def test_sources_can_be_added_and_dropped(open_writer, table, format_):
    """A run can add a source if it also includes one that the table already has.

    A source that is left out of a run keeps its position.
    """
    open_writer(topic=TOPIC).write(batch_of(range(3)))
    with pytest.raises(ConfigurationError, match=f"belongs to topic {TOPIC}.*not to topic {OTHER}"):
        open_writer(topic=OTHER)
    open_writer(topic=[OTHER, TOPIC]).write_parts([part(OTHER, [5])])
    writer = open_writer(topic=OTHER)
    writer.write_parts([part(OTHER, [6])])
    assert {source.name for source in writer.table_sources} == {TOPIC, OTHER}
    with pytest.raises(LocalProtocolError, match=f"{OTHER}, not {TOPIC}"):
        writer.write_parts([part(TOPIC, [9])])
    writer = open_writer(topic=TOPIC, subscription=MANAGED)
    assert writer.positions == {TOPIC: replay_id(2), OTHER: replay_id(6)}
    writer.move(replay_id(50), TOPIC)
    with pytest.raises(LocalProtocolError, match="is stored by the service"):
        writer.move(replay_id(50), MANAGED)
    assert open_writer(topic=TOPIC).position == replay_id(50)
    with pytest.raises(ConfigurationError, match=f"both channel {OTHER} and topic {OTHER}"):
        open_writer(topic=TOPIC, channel=OTHER)


def test_undecodable_event_excludes_only_its_own_source(open_writer, table, format_):
    """With the policy `fail`, a source's part of a write is skipped if it has an undecodable event.

    Other sources' parts are written, including events that the skipped part also contains.
    """
    writer = open_writer(topic=[TOPIC, OTHER], on_undecodable="fail")
    bad = RawEvent("bad", "schema-1", b"\xff", replay_id(8))
    parts = [part(TOPIC, [raw_event(1), bad, raw_event(2)]), part(OTHER, [raw_event(2)])]
    failed, written = writer.write_parts(parts)
    assert isinstance(failed, DecodeError)
    assert (written.rows, written.duplicates) == (1, 0)
    assert ids_of(table, format_) == ["event-2"]
    assert open_writer(topic=[TOPIC, OTHER]).positions == {OTHER: replay_id(2)}


def test_conflicts_are_counted_and_stored_by_source(open_writer, spark, table, format_):
    """Conflicting and re-encoded events are counted separately for each source.

    If a source's part is not written, its conflicts are not counted, because it is redelivered.
    """
    writer = open_writer(topic=[TOPIC, OTHER], on_undecodable="fail")
    writer.write_parts([part(TOPIC, [1])])
    altered = [raw_event(n, payload=raw_event(n + 50).payload) for n in range(3)]
    parts = [part(TOPIC, [2, altered[1]]), part(OTHER, [altered[2], raw_event(3)])]
    first, second = writer.write_parts(parts)
    assert (first.rows, first.duplicates, first.conflicts, first.reencoded) == (1, 0, 1, 0)
    assert (second.rows, second.duplicates, second.conflicts, second.reencoded) == (1, 1, 0, 1)
    assert ids_of(table, format_) == ["event-1", "event-2", "event-3"]
    again = raw_event(3, payload=raw_event(53).payload)
    bad = RawEvent("bad", "schema-1", b"\xff", replay_id(8))
    failed, written = writer.write_parts([part(OTHER, [again, bad]), part(TOPIC, [altered[2]])])
    assert isinstance(failed, DecodeError)
    assert (written.rows, written.conflicts) == (0, 1)
    kept = read_sidecar(spark, table, "conflicts").collect()
    assert sorted((row["event_id"], row["subscription"]) for row in kept) == [
        ("event-1", TOPIC),
        ("event-2", TOPIC),
    ]


def test_events_are_recognised_whichever_sources_the_writer_has(open_writer):
    """A start reads the keys of all rows, whichever source they came from, so duplicates are
    detected after a source was added or left out.
    """
    open_writer(topic=TOPIC).write(batch_of(range(10)))
    writer = open_writer(topic=[TOPIC, OTHER])
    assert writer.write_parts([part(OTHER, range(5, 20))])[0].rows == 10
    assert open_writer(topic=OTHER).write_parts([part(OTHER, range(21))])[0].rows == 1
