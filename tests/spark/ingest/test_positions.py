"""Tests of the replay store that keeps its positions in the table."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId, StartPosition
from tests.spark.sample_events import TOPIC, replay_id

OTHER = "/event/Other__e"


class Keeper:
    """Holds a table's positions in memory, and records calls to `move`."""

    sources = Source.several("My_Sub", [TOPIC, OTHER])

    def __init__(self) -> None:
        self.positions: dict[str, ReplayId] = {}
        self.moves: list[tuple[str | None, ReplayId]] = []

    def move(self, position: ReplayId, source: str | None = None) -> None:
        self.moves.append((source, position))


def test_new_table_starts_at_earliest():
    """A new table starts at EARLIEST, because with LATEST a crash before the first batch would lose
    the events before the second start.
    """
    assert TableReplayStore(Keeper()).get(TOPIC) == StartPosition.earliest()


def test_a_table_resumes_after_its_position():
    """A topic with a stored position resumes after it, and one without starts at EARLIEST."""
    keeper = Keeper()
    keeper.positions[TOPIC] = replay_id(1)
    store = TableReplayStore(keeper)
    assert store.get(TOPIC) == StartPosition.after(replay_id(1))
    assert store.get(OTHER) == StartPosition.earliest(), "another topic's position was used"


def test_the_position_of_a_write_is_not_written_twice():
    """A position that was stored with its rows is not written again, while a newer one, such as a
    keepalive's, is.
    """
    keeper = Keeper()
    keeper.positions[TOPIC] = replay_id(1)
    store = TableReplayStore(keeper)
    store.set(TOPIC, replay_id(1))
    assert keeper.moves == []
    store.set(TOPIC, replay_id(2))
    assert keeper.moves == [(TOPIC, replay_id(2))]


def test_position_of_an_unknown_topic_is_rejected():
    """A topic that is not a source of the table raises a configuration error, and so does a managed
    subscription, whose position is stored by the service.
    """
    store = TableReplayStore(Keeper())
    with pytest.raises(ConfigurationError, match="/event/Strange__e"):
        store.get("/event/Strange__e")
    with pytest.raises(ConfigurationError, match=TOPIC):
        store.set("/event/Strange__e", replay_id(1))
    with pytest.raises(ConfigurationError, match="My_Sub is not a source"):
        store.get("My_Sub")
