"""Positions of topics and channels, stored in the table that receives their events.

Rows and position are written in one transaction, so a crash never leaves one without the other. The
table alone determines where to resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.sources import Source
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import ReplayId, StartPosition


class PositionKeeper(Protocol):
    """The part of an `EventWriter` that `TableReplayStore` needs."""

    @property
    def sources(self) -> Sequence[Source]:
        """Sources whose events the writer accepts."""
        ...

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Stored positions, by name of the source; a source without a position is omitted."""
        ...

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Store *position*, immediately or with a later write.

        Args:
            position: The position to store.
            source: Name of the topic or channel; may be None if there is only one.
        """
        ...


class TableReplayStore(ReplayStore):
    """A replay store for ``client.subscribe(topic, replay=…)`` that reads positions from a table.

    Use it only for subscriptions that use manual acks and whose events are written to this table.
    Their acked positions are already in the table, so `set` rarely has to write.

    Args:
        writer: The `EventWriter` that writes the subscriptions' events.
    """

    def __init__(self, writer: PositionKeeper) -> None:
        self._writer = writer
        self._names = {source.name for source in writer.sources if source.keeps_position}

    def get(self, topic: str) -> StartPosition:
        """Return where to resume *topic*: after its stored position, or at EARLIEST if it has none.

        Raises:
            ConfigurationError: The topic is not a source of the table.
        """
        self._check(topic)
        position = self._writer.positions.get(topic)
        # A new table starts with everything that the service retains. With LATEST, a restart after
        # a crash before the first batch would start at a later position, and the events in between
        # would be lost silently.
        return StartPosition.earliest() if position is None else StartPosition.after(position)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Store *replay_id*, unless a write has already stored it.

        If several jobs share the writer, it is stored with a later write (`SharedWriter.note`).

        Raises:
            ConfigurationError: The topic is not a source of the table.
            WriteError: The position could not be stored.
        """
        self._check(topic)
        if replay_id != self._writer.positions.get(topic):
            self._writer.move(replay_id, topic)

    def _check(self, topic: str) -> None:
        if topic not in self._names:
            kept = ", ".join(sorted(self._names)) or "no topic"
            raise ConfigurationError(
                f"{topic} is not a source of the table, which stores the positions of {kept}: add "
                f"this topic to the writer's topics"
            )
