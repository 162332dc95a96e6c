"""Decide when an outage of a subscription is reported in the log, and in which words.

An outage begins when the subscription loses its stream or cannot open one. It ends with the first
response of another stream, or when that stream has been open for so long that it counts as healthy.
A break that is over at the first attempt is normal, so it is reported once, at its end. Anything
longer is a warning, which is repeated less and less often.
"""

from __future__ import annotations

from sfpubsub.protocol.commands import ReportOutage

_NEVER = float("inf")

# Seconds after which a break is no longer short: ten times the longest delay before the first
# attempt to reopen a stream.
SHORT = 10.0

# When a warning is repeated, in seconds since the outage began: often enough that a person who
# looks at the log sees it, and after the last one every `HOURLY` seconds.
REPEATED_AT = (60.0, 300.0, 900.0)
HOURLY = 3600.0


class Outage:
    """The current outage of one subscription, if any. Not thread-safe; the driver serialises calls.

    Args:
        name: The topic, or the managed subscription's name or id.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.since: float | None = None
        """When the outage began; None if there is none."""
        self.due_at: float = _NEVER
        """When to call `remind`; infinity if there is no outage."""
        self._failures = 0
        self._is_warned = False
        self._reason = ""

    def failed(
        self, reason: str, now: float, *, since: float | None = None, is_held: bool = False
    ) -> list[ReportOutage]:
        """Record that a stream was lost, or that it or its session could not be opened.

        Args:
            reason: The failure's message.
            now: The current time, in seconds.
            since: When the outage began, if this is its first failure; *now* by default.
            is_held: Whether another client holds the managed subscription.
        """
        if self.since is None:
            self.since = now if since is None else since
            self.due_at = self.since + SHORT
        self._failures += 1
        self._reason = reason
        if not self._is_warned and (is_held or self._failures > 1):
            return [self._warn(now, self.since)]
        return self.remind(now)

    def remind(self, now: float) -> list[ReportOutage]:
        """Return the warning that is due, if any."""
        return [] if self.since is None or now < self.due_at else [self._warn(now, self.since)]

    def _warn(self, now: float, since: float) -> ReportOutage:
        self._is_warned = True
        passed = now - since
        later = [at for at in REPEATED_AT if at > passed]
        self.due_at = since + (later[0] if later else (passed // HOURLY + 1) * HOURLY)
        tries = f"{self._failures} failed attempt{'s' * (self._failures != 1)}"
        return ReportOutage(
            True,
            f"{self._name} has had no stream for {_length(passed)}, after {tries}, and tries "
            f"again; the last failure: {self._reason}",
        )

    def over(self, now: float) -> list[ReportOutage]:
        """End the outage, and return the report of its length; empty if there was none."""
        if self.since is None:
            return []
        report = ReportOutage(
            self._is_warned,
            f"{self._name} has a stream again, after {_length(now - self.since)}; the last "
            f"failure: {self._reason}",
        )
        self.reset()
        return [report]

    def reset(self) -> None:
        """Forget the outage, because the subscription has ended or the outage is over."""
        self.since, self.due_at = None, _NEVER
        self._failures, self._is_warned = 0, False


def _length(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600.0 else f"{seconds / 3600:.1f} h"
