"""What ``-v`` says now and then of a subscription that is well: what came, what was committed."""

from __future__ import annotations

import logging

from sfpubsub.cli.words import counted
from sfpubsub.types import Health

logger = logging.getLogger("sfpubsub.cli")

# Seconds between two lines about a busy subscription: often enough to watch, few enough to read.
EVERY = 10.0


class Progress:
    """Logs what has changed since it last did, at most every `EVERY` seconds. Not thread-safe.

    Args:
        name: Of the subscription.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = Health("new", None, 0, 0, 0, 0, 0, 0, 0, None, None)
        self._since: float | None = None
        self._due = 0.0

    def look(self, health: Health, now: float) -> None:
        """Log what has changed, if it is time to.

        Args:
            health: The subscription's, now.
            now: Seconds of a steady clock.
        """
        if self._since is None:
            self._since = now
        if now >= self._due:
            self.end(health, now)

    def end(self, health: Health, now: float) -> None:
        """Log what has changed."""
        said = self._said
        if _counts(health) == _counts(said):
            return
        seconds = 0.0 if self._since is None else now - self._since
        logger.info("%s: %s in %.1f s", self._name, _news(health, said), seconds)
        self._said, self._since, self._due = health, now, now + EVERY


def _counts(health: Health) -> tuple[object, ...]:
    return health.delivered, health.redelivered, health.reconnects, health.committed


def _news(health: Health, said: Health) -> str:
    parts = [counted(health.delivered - said.delivered, "event")]
    if health.redelivered != said.redelivered:
        parts.append(f"{health.redelivered - said.redelivered} sent again")
    if health.reconnects != said.reconnects:
        parts.append(counted(health.reconnects - said.reconnects, "reconnect"))
    if health.committed is not None and health.committed != said.committed:
        parts.append(f"committed up to {health.committed.hex()}")
    return ", ".join(parts)
