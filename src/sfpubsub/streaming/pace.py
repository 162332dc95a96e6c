"""How long things may take, and how long to wait after failures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Times in seconds. Scaled down by tests."""

    request: float = 20.0
    """How long anything but a held connect may take, its answer included; answers usually take
    less than a second."""
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
    """Ceiling of the first random delay after a failure; a session that lived for less than this is
    not replaced at once."""
    backoff_max: float = 60.0
    """Ceiling at which the doubling stops."""
    busy: float = 120.0
    """Ceiling of the delay after "too busy" and after a limit: the service asks for "a few
    minutes"."""
    renewed: float = 60.0
    """A session that is refused again this soon after its renewal, without having been useful, is
    not renewed again: too many sign-ins lock a user out."""
