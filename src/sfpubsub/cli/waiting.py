"""Report why a subscription is waiting, and decide whether its silence counts as idle.

A subscription that is waiting for another client to release it, for the network or for a new
session is not idle: events may exist, but cannot arrive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from sfpubsub.cli.live import echo
from sfpubsub.types import Health

# Seconds after which silence during a reconnect attempt counts as idle: more than the 20 s for
# which gRPC tries to connect.
ATTEMPT = 25.0

# States (protocol/states.py) without a stream that could deliver events. A paused subscription is
# not reported, because it waits for the reader of the command's output.
_WITHOUT_STREAM = frozenset({"new", "waiting", "renewing", "paused", "saving"})

# Removed from messages, because it differs between attempts and does not help a waiting user.
_RPC_ID = re.compile(r", rpc id [^\s,)]+")


Listening = Literal["yes", "trying", "no"]


class Waiting:
    """Reports why one subscription is waiting. Not thread-safe.

    Args:
        say: Prints a message on its own line.
    """

    def __init__(self, say: Callable[[str], None] = echo) -> None:
        self._say = say
        self._reported: str | None = None
        self._attempt_since: float | None = None

    def observe(self, health: Health, now: float) -> Listening:
        """Report a new reason for waiting, or that events can arrive again.

        Args:
            health: Current health of the subscription.
            now: Time on a monotonic clock, in seconds.

        Returns:
            ``yes`` if events can arrive, and ``no`` if they cannot. During a reconnect attempt, a
            quiet topic looks the same as a network that drops all packets: the result is ``trying``
            for `ATTEMPT` seconds, and then ``yes``.
        """
        retrying = health.state == "opening" and health.reason is not None
        if retrying or health.state in ("waiting", "renewing"):
            self._report(health.reason or "the reason is not known")
        elif health.state in ("opening", "streaming") and self._reported is not None:
            self._say("receiving again")
            self._reported = None
        if not retrying:
            self._attempt_since = None
            return "no" if health.state in _WITHOUT_STREAM else "yes"
        if self._attempt_since is None:
            self._attempt_since = now
        return "trying" if now - self._attempt_since < ATTEMPT else "yes"

    def _report(self, reason: str) -> None:
        reason = _RPC_ID.sub("", reason).removeprefix("reconnecting after: ")
        if reason != self._reported:
            self._say(f"waiting: {reason}")
        self._reported = reason
