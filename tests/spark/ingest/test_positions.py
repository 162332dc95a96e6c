"""The replay store that is a table."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.types import ReplayId, StartPosition
from tests.spark.sample_events import TOPIC, replay_id


class Keeper:
    """A table's position, in memory."""

    topic = TOPIC

    def __init__(self) -> None:
        self.position: ReplayId | None = None
        self.moves: list[ReplayId] = []

    def move(self, position: ReplayId) -> None:
        self.position = position
        self.moves.append(position)


def test_a_new_table_begins_with_all_that_is_kept():
    """At LATEST, a crash before the first batch would lose what came before the second start."""
    assert TableReplayStore(Keeper()).get(TOPIC) == StartPosition.earliest()


def test_a_table_resumes_after_its_position():
    """After it, not at it."""
    keeper = Keeper()
    keeper.position = replay_id(1)
    assert TableReplayStore(keeper).get(TOPIC) == StartPosition.after(replay_id(1))


def test_the_position_of_a_write_is_not_written_twice():
    """It was published with the rows; a keepalive's is new."""
    keeper = Keeper()
    keeper.position = replay_id(1)
    store = TableReplayStore(keeper)
    store.set(TOPIC, replay_id(1))
    assert keeper.moves == []
    store.set(TOPIC, replay_id(2))
    assert keeper.moves == [replay_id(2)]


def test_another_topics_position_is_refused():
    """It would be resumed from by the wrong topic."""
    store = TableReplayStore(Keeper())
    with pytest.raises(ConfigurationError, match="/event/Other__e"):
        store.get("/event/Other__e")
    with pytest.raises(ConfigurationError, match=TOPIC):
        store.set("/event/Other__e", replay_id(1))
