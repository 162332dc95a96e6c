"""What a table's log says of a table: written with every transaction of ours, read at the start.

One value, carried forward whole from each transaction to the next, so that the newest one is all
there is to know. Knows neither Spark nor a table format.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Source
from sfpubsub.spark.raw.layout import LAYOUTS, NEWEST, Layout, newer_layout
from sfpubsub.spark.raw.table import REMEMBERED_NAMES
from sfpubsub.types import ReplayId

# The key that tells our records from other people's metadata.
_MARK = "sfpubsub"


@dataclass(frozen=True)
class State:
    """A table as one transaction left it."""

    source: Source
    writer: str
    """The writer that committed it: random, and another one for each `EventWriter`."""
    attempt: str
    """The transaction's own name, random, by which it is found again after it was committed."""
    number: int
    """Transactions of ours up to this one."""
    next_seq: int = 0
    """``ingest_seq`` of the next row."""
    position: ReplayId | None = None
    time: float = 0.0
    """Seconds since 1970 UTC of the newest batch."""
    names: tuple[str, ...] = ()
    """Names of the last batches that had one."""
    batch: str | None = None
    """The batch of this transaction; None if it has no rows."""
    first_seq: int | None = None
    rows: int = 0
    layout: Layout = NEWEST
    """What the table's columns are."""

    @classmethod
    def first(cls, source: Source, writer: str, layout: Layout = NEWEST) -> State:
        """Return the state of a table in which nothing is."""
        return cls(source, writer, uuid.uuid4().hex, 0, layout=layout)

    def taken_by(self, writer: str) -> State:
        """Return the state of a transaction without rows, which ends every older writer."""
        return replace(self._next(), writer=writer)

    def moved(self, position: ReplayId) -> State:
        """Return the state of a transaction that has a position and no rows."""
        return replace(self._next(), position=position)

    def upgraded(self) -> State:
        """Return the state of a transaction that gives the table the newest layout."""
        return replace(self._next(), layout=NEWEST)

    def grown(
        self, batch: str, rows: int, position: ReplayId | None, now: float, name: str | None
    ) -> State:
        """Return the state of a transaction with a batch; a position of None stays as it is."""
        return replace(
            self._next(),
            next_seq=self.next_seq + rows,
            position=position or self.position,
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
        """Return the record."""
        return json.dumps(
            {
                _MARK: self.layout.number,
                self.source.kind: self.source.name,
                "writer": self.writer,
                "attempt": self.attempt,
                "number": self.number,
                "next_seq": self.next_seq,
                "position": self.position.hex() if self.position is not None else None,
                "time": self.time,
                "names": self.names,
                "batch": self.batch,
                "first_seq": self.first_seq,
                "rows": self.rows,
            }
        )

    @classmethod
    def from_json(cls, text: str | None, where: str) -> State | None:
        """Return the state that *text* is the record of; None if it is something else.

        Args:
            text: What a log says.
            where: The table, for the error.

        Raises:
            ConfigurationError: It is ours and cannot be read: damaged, or of a newer version.
        """
        if not text or _MARK not in text:
            return None
        try:
            found = json.loads(text)
            number = found[_MARK]
        except (ValueError, KeyError, TypeError):
            return None  # somebody's note that has our name in it
        if number not in LAYOUTS:
            raise ConfigurationError(newer_layout(where, number))
        try:
            return cls(
                source=Source.choose(found.get("managed"), found.get("topic")),
                writer=found["writer"],
                attempt=found["attempt"],
                number=int(found["number"]),
                next_seq=int(found["next_seq"]),
                position=(
                    None if found["position"] is None else ReplayId.from_hex(found["position"])
                ),
                time=float(found["time"]),
                names=tuple(found["names"]),
                batch=found["batch"],
                first_seq=found["first_seq"],
                rows=int(found["rows"]),
                layout=LAYOUTS[number],
            )
        except (ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise ConfigurationError(
                f"the state in the log of {where} cannot be read ({error}): name another "
                f"destination"
            ) from error
