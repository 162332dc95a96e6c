"""The state of a raw table, which each sfpubsub transaction records in the table's log.

A writer reads it at startup. Each state is complete, so only the newest one is needed. This module
uses neither Spark nor a table format.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.layout import LAYOUT, check_layout
from sfpubsub.spark.raw.sources import Source, recorded_sources, sources_record
from sfpubsub.spark.raw.table import REMEMBERED_NAMES
from sfpubsub.types import ReplayId

# Application id under which Delta numbers our transactions.
APPLICATION = "sfpubsub"

# The key that distinguishes our records from other metadata.
_MARK = "sfpubsub"


@dataclass(frozen=True)
class State:
    """The state of a raw table after a transaction by sfpubsub."""

    sources: tuple[Source, ...]
    """All sources of the table, including those of earlier writers."""
    writer: str
    """Random id of the writer that committed this state; unique per `EventWriter`."""
    attempt: str
    """Random id of the transaction, used to find it in the log after the commit."""
    number: int
    """Number of transactions by sfpubsub so far, including this one."""
    next_seq: int = 0
    """``ingest_seq`` of the next row."""
    positions: Mapping[str, ReplayId] = field(default_factory=dict)
    """Position of each source that keeps its position in the table, by name."""
    time: float = 0.0
    """Time of the newest batch, in seconds since the epoch; 0 if there are no batches."""
    names: tuple[str, ...] = ()
    """Names of the last `REMEMBERED_NAMES` named batches, oldest first."""
    batch: str | None = None
    """Id of the transaction's batch; None if the transaction has no rows."""
    first_seq: int | None = None
    rows: int = 0
    org_id: str | None = None
    """18-character id of the org whose events the table contains; None if it is not known."""

    @classmethod
    def first(cls, sources: tuple[Source, ...], writer: str, number: int = 0) -> State:
        """Return the state of an empty table."""
        return cls(sources, writer, uuid.uuid4().hex, number)

    def taken_by(self, writer: str, sources: tuple[Source, ...], org_id: str | None) -> State:
        """Return the state after an empty transaction, with which *writer* fences off earlier
        writers.
        """
        return replace(self._next(), writer=writer, sources=sources, org_id=org_id)

    def moved(self, positions: Mapping[str, ReplayId]) -> State:
        """Return the state after a transaction with positions but no rows."""
        return replace(self._next(), positions={**self.positions, **positions})

    def grown(
        self,
        batch: str,
        rows: int,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None,
    ) -> State:
        """Return the state after a transaction that appends a batch and updates *positions*."""
        return replace(
            self._next(),
            next_seq=self.next_seq + rows,
            positions={**self.positions, **positions},
            time=now,
            names=(*self.names, name)[-REMEMBERED_NAMES:] if name is not None else self.names,
            batch=batch,
            first_seq=self.next_seq,
            rows=rows,
        )

    def _next(self) -> State:
        return replace(
            self,
            attempt=uuid.uuid4().hex,
            number=self.number + 1,
            batch=None,
            first_seq=None,
            rows=0,
        )

    def to_json(self) -> str:
        """Return the state as JSON text for the log."""
        return json.dumps(
            {
                _MARK: LAYOUT,
                "sources": sources_record(self.sources),
                "writer": self.writer,
                "attempt": self.attempt,
                "number": self.number,
                "next_seq": self.next_seq,
                "positions": {name: place.hex() for name, place in self.positions.items()},
                "time": self.time,
                "names": self.names,
                "batch": self.batch,
                "first_seq": self.first_seq,
                "rows": self.rows,
                "org_id": self.org_id,
            }
        )

    @classmethod
    def from_json(cls, text: str | None, where: str) -> State | None:
        """Parse the output of `to_json`; return None if *text* is anything else.

        Args:
            text: Text from a log.
            where: The table, for error messages.

        Raises:
            ConfigurationError: *text* is a state, but it is damaged or has a newer layout.
        """
        if not text or _MARK not in text:
            return None
        try:
            found = json.loads(text)
            number = found[_MARK]
        except (ValueError, KeyError, TypeError):
            return None  # someone else's metadata that mentions our name
        check_layout(where, number)
        try:
            positions = found["positions"].items()
            return cls(
                sources=recorded_sources(found["sources"]),
                writer=found["writer"],
                attempt=found["attempt"],
                number=int(found["number"]),
                next_seq=int(found["next_seq"]),
                positions={name: ReplayId.from_hex(text) for name, text in positions},
                time=float(found["time"]),
                names=tuple(found["names"]),
                batch=found["batch"],
                first_seq=found["first_seq"],
                rows=int(found["rows"]),
                org_id=found["org_id"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
            raise ConfigurationError(
                f"the state in the log of {where} cannot be read ({error}): choose another "
                f"destination"
            ) from error
