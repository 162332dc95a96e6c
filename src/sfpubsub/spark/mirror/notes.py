"""What a mirror's steps are to do, as their plans keep it.

Pure: no Spark, no I/O. A note says all that the outcome of a step depends on beside the tables, so
that a step that died is done again by the next process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sfpubsub.spark.mirror.reads import AsOf, Read
from sfpubsub.spark.tables.records import Reason


@dataclass(frozen=True)
class Merge:
    """Merge some pieces of a read; `is_last` once all of them are merged, then without pieces."""

    entity: str
    kind: str
    """See `Marker`."""
    first: int
    last: int
    """Numbers of the pieces."""
    read: Read
    """`Read.until` counts with `is_last` only: each row has its own."""
    newest: Read | None
    """See `Merging`."""
    is_last: bool
    laid: int
    """``ingest_seq`` of the newest raw row that was laid."""
    at: float
    """When the step was planned, in seconds since 1970 UTC."""
    size: int = 0
    """Rows of the pieces."""
    calls: int = 0
    """Requests made of the org since the step before this one that says so."""
    selected: tuple[str, ...] = ()
    """With `is_last`: what the read has selected."""

    def to_note(self) -> dict[str, Any]:
        """Return it as a plan keeps it."""
        return {
            **vars(self),
            "do": "merge",
            "read": _read_note(self.read),
            "newest": None if self.newest is None else _read_note(self.newest),
        }


@dataclass(frozen=True)
class Ask:
    """Put an entry that no event gave into the queue."""

    entity: str
    record_ids: tuple[str, ...] | None
    """None for all of the object."""
    reason: Reason
    laid: int
    """``ingest_seq`` of the newest raw row that was laid."""
    at: float
    calls: int = 0

    def to_note(self) -> dict[str, Any]:
        """Return it as a plan keeps it."""
        return {**vars(self), "do": "ask", "reason": str(self.reason)}


@dataclass(frozen=True)
class Sweep:
    """Compare the ids that the org has, which are in some pieces, with those of the table."""

    entity: str
    first: int
    last: int
    laid: int
    at: float
    calls: int = 0

    def to_note(self) -> dict[str, Any]:
        """Return it as a plan keeps it."""
        return {**vars(self), "do": "sweep"}


Note = Merge | Ask | Sweep


def note_of(found: Mapping[str, Any]) -> Note:
    """Return what a plan keeps."""
    values = {name: value for name, value in found.items() if name != "do"}
    if found["do"] == "merge":
        values["read"] = _read_of(values["read"])
        values["selected"] = tuple(values["selected"])
        values["newest"] = None if values["newest"] is None else _read_of(values["newest"])
        return Merge(**values)
    if found["do"] == "ask":
        ids = values["record_ids"]
        values["record_ids"] = None if ids is None else tuple(ids)
        values["reason"] = Reason(values["reason"])
        return Ask(**values)
    return Sweep(**values)


def _read_note(read: Read) -> dict[str, Any]:
    return {
        "as_of": [read.as_of.ingest_seq, read.as_of.asked],
        "since": None if read.since is None else [read.since[0].isoformat(), *read.since[1:]],
        "until": None if read.until is None else read.until.isoformat(),
    }


def _read_of(found: Mapping[str, Any]) -> Read:
    since, until = found["since"], found["until"]
    return Read(
        AsOf(*found["as_of"]),
        None if since is None else (datetime.fromisoformat(since[0]), since[1], since[2]),
        None if until is None else datetime.fromisoformat(until),
    )
