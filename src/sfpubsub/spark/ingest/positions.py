"""The position of a plain subscription, kept in the table that its events go to.

Rows and position are one transaction there, so a crash never leaves one without the other. Decides
nothing: the table says where to resume.
"""

from __future__ import annotations

from typing import Protocol

from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import ReplayId, StartPosition


class PositionKeeper(Protocol):
    """What the store needs of an `EventWriter`."""

    @property
    def topic(self) -> str | None:
        """The topic that the table belongs to."""
        ...

    @property
    def position(self) -> ReplayId | None:
        """Where it resumes."""
        ...

    def move(self, position: ReplayId) -> None:
        """Make *position* durable."""
        ...


class TableReplayStore(ReplayStore):
    """Gives ``client.subscribe(topic, replay=…)`` the position of a writer's table.

    For a subscription whose events go into this table by manual acks: then there is nothing to
    store while a write is under way, and a position that came to it would be an error.

    Args:
        writer: The `EventWriter` that takes the subscription's events.
    """

    def __init__(self, writer: PositionKeeper) -> None:
        self._writer = writer

    def get(self, topic: str) -> StartPosition:
        """Return where *topic* resumes.

        Raises:
            ConfigurationError: The table belongs to another topic.
        """
        self._check(topic)
        position = self._writer.position
        # A new table takes all that the service keeps. Beginning at LATEST, a crash before the
        # first batch would begin at a later LATEST, and what came between would be lost unseen.
        return StartPosition.earliest() if position is None else StartPosition.after(position)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id*. Does nothing after a write that carried the same position.

        Raises:
            ConfigurationError: The table belongs to another topic.
            WriteError: It could not be made durable.
        """
        self._check(topic)
        if replay_id != self._writer.position:
            self._writer.move(replay_id)

    def _check(self, topic: str) -> None:
        if topic != self._writer.topic:
            raise ConfigurationError(
                f"this table keeps the position of topic {self._writer.topic}, not of {topic}"
            )
