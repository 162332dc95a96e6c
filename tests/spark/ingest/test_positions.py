"""The replay store that is a table."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId, StartPosition
from tests.spark.sample_events import TOPIC, replay_id

OTHER = "/event/Other__e"


class Keeper:
    """A table's positions, in memory."""

    sources = Source.several("My_Sub", [TOPIC, OTHER])

    def __init__(self) -> None:
        self.positions: dict[str, ReplayId] = {}
        self.moves: list[tuple[str | None, ReplayId]] = []

    def move(self, position: ReplayId, source: str | None = None) -> None:
        self.moves.append((source, position))


def test_a_new_table_begins_with_all_that_is_kept():
    """At LATEST, a crash before the first batch would lose what came before the second start."""
    assert TableReplayStore(Keeper()).get(TOPIC) == StartPosition.earliest()


def test_a_table_resumes_after_its_position():
    """After it, not at it."""
    keeper = Keeper()
    keeper.positions[TOPIC] = replay_id(1)
    store = TableReplayStore(keeper)
    assert store.get(TOPIC) == StartPosition.after(replay_id(1))
    assert store.get(OTHER) == StartPosition.earliest(), "each by itself"


def test_the_position_of_a_write_is_not_written_twice():
    """It was published with the rows; a keepalive's is new."""
    keeper = Keeper()
    keeper.positions[TOPIC] = replay_id(1)
    store = TableReplayStore(keeper)
    store.set(TOPIC, replay_id(1))
    assert keeper.moves == []
    store.set(TOPIC, replay_id(2))
    assert keeper.moves == [(TOPIC, replay_id(2))]


def test_another_topics_position_is_refused():
    """It would be resumed from by the wrong topic."""
    store = TableReplayStore(Keeper())
    with pytest.raises(ConfigurationError, match="/event/Strange__e"):
        store.get("/event/Strange__e")
    with pytest.raises(ConfigurationError, match=TOPIC):
        store.set("/event/Strange__e", replay_id(1))
    with pytest.raises(ConfigurationError, match="My_Sub is not a source"):
        store.get("My_Sub")
