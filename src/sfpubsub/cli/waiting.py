"""What a person hears of a subscription that waits, and whether its silence counts as idle.

A subscription that waits for its managed slot, for the network or for a new session is not idle:
nothing can arrive, however much there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from sfpubsub.cli.live import echo
from sfpubsub.types import Health

# Seconds that an attempt after a failure may last before silence counts as idle: gRPC tries to
# connect for 20 s.
ATTEMPT = 25.0

# States (protocol/states.py) without a stream that could bring anything. A paused one is not told
# of: it waits for the reader of our own output.
_WITHOUT_STREAM = frozenset({"new", "waiting", "renewing", "paused", "saving"})

# Differs from attempt to attempt, and says nothing to a person who waits.
_RPC_ID = re.compile(r", rpc id [^\s,)]+")


Listening = Literal["yes", "trying", "no"]


class Waiting:
    """Follows one subscription. Not thread-safe.

    Args:
        say: Tells a person one line.
    """

    def __init__(self, say: Callable[[str], None] = echo) -> None:
        self._say = say
        self._told: str | None = None
        self._attempt_since: float | None = None

    def look(self, health: Health, now: float) -> Listening:
        """Say what has changed.

        Args:
            health: The subscription's, now.
            now: Seconds of a steady clock.

        Returns:
            Whether an event could have arrived. ``trying`` is not known yet: a quiet topic and a
            network that swallows everything look the same.
        """
        retrying = health.state == "opening" and health.reason is not None
        if retrying or health.state in ("waiting", "renewing"):
            self._tell(health.reason or "no reason is known")
        elif health.state in ("opening", "streaming") and self._told is not None:
            self._say("receiving again")
            self._told = None
        if not retrying:
            self._attempt_since = None
            return "no" if health.state in _WITHOUT_STREAM else "yes"
        if self._attempt_since is None:
            self._attempt_since = now
        return "trying" if now - self._attempt_since < ATTEMPT else "yes"

    def _tell(self, reason: str) -> None:
        reason = _RPC_ID.sub("", reason).removeprefix("opening again after: ")
        if reason != self._told:
            self._say(f"waiting: {reason}")
        self._told = reason
