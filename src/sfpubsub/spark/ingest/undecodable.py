"""Policies for undecodable events; see `EventWriter`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from sfpubsub.client.undecodable import quarantined, reason_of
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.rows import Row
from sfpubsub.stores.quarantine import Quarantine

_log = logging.getLogger("sfpubsub.spark")

OnUndecodable: TypeAlias = Literal["keep", "quarantine", "skip", "fail"]


class Undecodable:
    """Applies the policy to rows that could not be decoded.

    Args:
        policy: What to do with the events; see `EventWriter`.
        quarantine: Where to put the events. Required for the policy ``quarantine``, and not allowed
            otherwise.

    Raises:
        ConfigurationError: The policy is not valid, or does not match *quarantine*.
    """

    def __init__(self, policy: OnUndecodable, quarantine: Quarantine | None) -> None:
        if policy not in get_args(OnUndecodable):
            raise ConfigurationError(
                f"on_undecodable must be one of {', '.join(get_args(OnUndecodable))}, not "
                f"{policy!r}"
            )
        if (policy == "quarantine") != (quarantine is not None):
            raise ConfigurationError(
                "on_undecodable='quarantine' and quarantine=… must be used together"
            )
        self._policy = policy
        self._quarantine = quarantine

    def keeps(self, bad: Sequence[Row]) -> bool:
        """Apply the policy to undecodable rows, and log an error for each of their events.

        Returns:
            True if the rows should be written, with null as their ``payload_json``; False if their
            events were quarantined or skipped.

        Raises:
            WriteError: The quarantine could not be written.
            DecodeError: The policy is ``fail``. The error is that of the first event, and nothing
                is logged.
        """
        errors = [(row, row.error) for row in bad if row.error is not None]
        if self._policy == "fail":
            raise errors[0][1]
        if self._quarantine is not None:
            self._quarantine.put(
                [quarantined(r.event, reason_of(e), r.received_at) for r, e in errors]
            )
        became = {"keep": "kept without JSON", "skip": "skipped"}.get(self._policy, "quarantined")
        for row, error in errors:
            _log.error(  # the reason is one sentence; a traceback would add nothing
                "event %s at position %s cannot be decoded and is %s: %s",
                row.event.id,
                row.event.replay_id.hex(),
                became,
                reason_of(error),
            )
        return self._policy == "keep"
