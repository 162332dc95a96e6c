"""How long things may take, and how long to wait after failures. No clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sfpubsub.errors import SfPubSubError, StreamUnavailableError


@dataclass(frozen=True)
class Pace:
    """Times in seconds. Scaled down by tests."""

    request: float = 20.0
    """How long anything but a held connect may take, its answer included; answers take a second."""
    sign_in: float = 60.0
    """How long fetching a session may take before a handshake; most ways take some seconds."""
    poll: float = 130.0
    """How long a connect may take while the server has not advised a timeout: Salesforce holds it
    for up to 110 s."""
    poll_factor: float = 1.2
    """A held connect may take this many times the advised timeout, and a `request` at least."""
    close: float = 5.0
    """How long the goodbye to the server may take."""
    backoff_initial: float = 1.0
    """Ceiling of the first random delay after a failure; a session that has lived for less is not
    replaced at once."""
    backoff_max: float = 60.0
    """Ceiling that the doubling stops at."""
    busy: float = 120.0
    """Ceiling of the delay after "too busy" and after a limit: the service asks for "a few
    minutes"."""
    renewed: float = 60.0
    """A session that is refused again so soon after its renewal, before it was of any use, is not
    renewed again: too many sign-ins lock a user out."""


class Trouble:
    """The failures since everything was well.

    Args:
        pace: Times.
        chance: Returns a random number from 0 to 1: half of each delay is left to it, so that many
            clients do not come back together.
        patience: Seconds after which the application is told, and told again; None or 0 for never.
    """

    def __init__(self, pace: Pace, chance: Callable[[], float], patience: float | None) -> None:
        self._pace = pace
        self._chance = chance
        self._patience = patience or math.inf
        self._last: SfPubSubError | None = None
        self.count = 0
        """Delays since everything was well."""
        self.tell_at = math.inf
        """When the application is to be told."""

    def note(self, error: SfPubSubError, now: float) -> None:
        """A request failed; with the first one an outage begins."""
        if self._last is None:
            self.tell_at = now + self._patience
        self._last = error

    def delay(self, *, is_busy: bool) -> float:
        """Return the next delay: it doubles each time, and is long for a busy server."""
        doubled = self._pace.backoff_initial * 2 ** min(self.count, 30)
        self.count += 1
        ceiling = self._pace.busy if is_busy else min(self._pace.backoff_max, doubled)
        return ceiling * (0.5 + self._chance() / 2)

    def told(self, now: float) -> SfPubSubError:
        """Return what to tell the application of the outage."""
        self.tell_at = now + self._patience
        error = StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._last}"
        )
        error.__cause__ = self._last
        return error

    def clear(self) -> None:
        """Everything is well, or over."""
        self.count, self._last, self.tell_at = 0, None, math.inf
