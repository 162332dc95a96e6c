"""Timeouts, and delays after failures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Timeouts and delays in seconds. Tests use shorter ones."""

    request: float = 20.0
    """Timeout of every request except a held connect, including its response; responses usually
    take less than a second.
    """
    sign_in: float = 60.0
    """Time allowed for fetching a session before a handshake; most sign-in flows take a few
    seconds.
    """
    held: float = 110.0
    """How long the server may hold a connect, unless it has advised a time; Salesforce: 110 s."""
    held_factor: float = 1.2
    """The timeout of a held connect is the time that the server may hold it, times this factor; at
    least `request`.
    """
    close: float = 5.0
    """Timeout of the disconnect when the client is closed."""
    backoff_initial: float = 1.0
    """Upper bound of the first random delay after a failure. A session that lasted for less than
    this is not replaced without a delay.
    """
    backoff_max: float = 60.0
    """Maximum upper bound, at which it is no longer doubled."""
    busy: float = 120.0
    """Upper bound of the delay after "too busy" and after a limit: the service asks to wait for "a
    few minutes".
    """
    renewed: float = 60.0
    """A session that is refused within this time after its renewal, without having worked, is not
    renewed again: too many sign-ins lock a user out.
    """
