"""The positions of plain subscriptions, kept in the table that their events go to.

Rows and position are one transaction there, so a crash never leaves one without the other. Decides
nothing: the table says where to resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.sources import Source
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import ReplayId, StartPosition


class PositionKeeper(Protocol):
    """What the store needs of an `EventWriter`."""

    @property
    def sources(self) -> Sequence[Source]:
        """Whose events the table takes."""
        ...

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Where each of them resumes, by name."""
        ...

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Make *position* durable."""
        ...


class TableReplayStore(ReplayStore):
    """Gives ``client.subscribe(topic, replay=…)`` the position of the topic in a writer's table.

    For subscriptions whose events go into this table by manual acks: then there is nothing to
    store while a write is under way, and a position that came to it would be an error.

    Args:
        writer: The `EventWriter` that takes the subscriptions' events.
    """

    def __init__(self, writer: PositionKeeper) -> None:
        self._writer = writer
        self._names = {source.name for source in writer.sources if source.keeps_position}

    def get(self, topic: str) -> StartPosition:
        """Return where *topic* resumes.

        Raises:
            ConfigurationError: The table does not take its events.
        """
        self._check(topic)
        position = self._writer.positions.get(topic)
        # A new table takes all that the service keeps. Beginning at LATEST, a crash before the
        # first batch would begin at a later LATEST, and what came between would be lost unseen.
        return StartPosition.earliest() if position is None else StartPosition.after(position)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id*. Does nothing after a write that carried the same position.

        Raises:
            ConfigurationError: The table does not take its events.
            WriteError: It could not be made durable.
        """
        self._check(topic)
        if replay_id != self._writer.positions.get(topic):
            self._writer.move(replay_id, topic)

    def _check(self, topic: str) -> None:
        if topic not in self._names:
            kept = ", ".join(sorted(self._names)) or "no topic"
            raise ConfigurationError(f"this table keeps the position of {kept}, not of {topic}")
