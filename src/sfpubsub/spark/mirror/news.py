"""Which rows of a read of changed records are merged: neither known ones nor the newest ones.

This module is pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sfpubsub.rest.describing import STAMP
from sfpubsub.spark.records.reads import Seen


class News:
    """Chooses the rows of one object's reads of changed records. Not thread-safe.

    A row with a newer stamp than a *quiet* time is left for the next read, because its event may
    still be on the way: otherwise every change that the mirror has not received yet would look like
    one without an event. A record that was left once is not left again, so that one that changes
    all the time is read, too.
    """

    def __init__(self) -> None:
        self._seen = Seen()
        self._quiet = 0.0
        self._left: set[str] = set()
        self._left_before: set[str] = set()

    def begin(self, first: datetime, quiet: float) -> None:
        """Begin a read.

        Args:
            first: The lowest stamp that it asks for.
            quiet: The quiet time, in seconds since the epoch.
        """
        self._seen.forget_before(first)
        self._quiet, self._left = quiet, set()

    def end(self) -> None:
        """End a read that has returned all its rows."""
        self._left_before = self._left

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is merged.

        Args:
            row: The JSON values of the row, with ``Id`` and SystemModstamp.
        """
        record_id, stamp = str(row["Id"]), stamp_of(row)
        if stamp.timestamp() > self._quiet and record_id not in self._left_before:
            self._left.add(record_id)
            return False
        content = json.dumps(row, sort_keys=True, default=str).encode()
        return self._seen.is_new(
            record_id, hashlib.blake2b(content, digest_size=16).digest(), stamp
        )


def stamp_of(row: Mapping[str, Any]) -> datetime:
    """Return the SystemModstamp of a row of a query."""
    return datetime.fromisoformat(row[STAMP])
