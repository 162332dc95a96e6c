"""The log of reads: what the org answered, durable before it is merged.

A table of the target for each object, ``_reads_Account``. A read comes in pieces, each of which is
one transaction: its rows, and one row more, the marker, which says what the piece is worth and how
the read continues. So a process that was killed continues after the last whole piece. Invariant: a
piece never changes; those that are merged are removed when the next read begins.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.errors import WriteError
from sfpubsub.spark.mirror.columns import Columns
from sfpubsub.spark.mirror.reads import AsOf
from sfpubsub.spark.tables.target import Target

LOG_PREFIX = "_reads_"

Kind = Literal["object", "ids", "sweep"]

# What a row says beside the record's fields.
FACTS = pa.schema(
    [
        ("_is_deleted", pa.bool_()),
        ("_found", pa.bool_()),  # else the read was to return the record and did not
        ("_until", TIME),
        ("_piece", pa.int64()),
        ("_marker", pa.string()),  # of the one row without a record
    ]
)

_FACTS = {"kind": "reads"}


@dataclass(frozen=True)
class Marker:
    """What a piece is worth, and how its read continues."""

    read: int
    """Number of the read's first piece, by which the read is known."""
    kind: Kind
    """``object``: every record. ``ids``: some records. ``sweep``: the ids of every record."""
    as_of: AsOf
    is_last: bool = False
    until: datetime | None = None
    """See `Read`."""
    job: str | None = None
    """Of a read in bulk."""
    locator: str | None = None
    """Of the page behind this piece."""
    after: str | None = None
    """Of a read by queries: the last id of this piece."""
    selected: tuple[str, ...] = ()
    """What is read, in the order of the query."""
    rows: int = 0
    """Of the read so far."""
    size: int = 0
    """Rows of this piece, those of records that were not returned included."""
    total: int | None = None
    """About how many records the object has; None where nobody has counted."""
    piece: int = 0
    """Number of the piece."""

    def to_json(self) -> str:
        """Return it as it is kept."""
        found = asdict(self)
        found["until"] = self.until.isoformat() if self.until else None
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Return what `to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        found["as_of"] = AsOf(**found["as_of"])
        found["until"] = datetime.fromisoformat(found["until"]) if found["until"] else None
        found["selected"] = tuple(found["selected"])
        return cls(**found)


class ReadLog:
    """The log of one object's reads. One thread changes it; others may read.

    Args:
        target: Where the tables are.
        entity: The object.
    """

    def __init__(self, target: Target, entity: str) -> None:
        self._target = target
        self._table = target.table(f"{LOG_PREFIX}{entity}")
        self._number = self._table.step()
        self._made: pa.Schema | None = None
        self._cleared = -1

    @property
    def next(self) -> int:
        """The number of the next piece."""
        return self._number + 1

    def add(self, columns: Columns, rows: Iterable[pa.Table], marker: Marker) -> Marker:
        """Make a piece durable.

        Args:
            columns: The object's.
            rows: ``record_id``, the columns, ``_is_deleted`` and ``_found``.
            marker: Without its number; ``read`` 0 stands for this piece's own.

        Returns:
            The marker with its numbers.

        Raises:
            WriteError: `markers` tells whether the piece is there.
        """
        number = self.next
        marker = replace(marker, piece=number, read=marker.read or number)
        schema = pa.schema([("record_id", pa.string()), *columns.schema.remove_metadata(), *FACTS])
        if schema != self._made:  # waits for a merge that another thread may be doing
            self._table.make(schema, _FACTS)
            self._made = schema
        if not self._table.append([_file(schema, rows, marker)], number):
            raise WriteError(
                f"piece {number} of {self._table.name} was written by another process: run one "
                f"mirror for each target"
            )
        self._number = number
        self._target.finish(number)
        return marker

    def markers(self) -> list[Marker]:
        """Return the markers of all pieces that there are, in order."""
        if not self._table.exists():
            return []
        rows = self._table.read().where("record_id IS NULL AND _marker IS NOT NULL")
        found = [Marker.from_json(row["_marker"]) for row in rows.select("_marker").collect()]
        return sorted(found, key=lambda marker: marker.piece)

    def rows(self, first: int, last: int) -> DataFrame:
        """Return the rows of some pieces, without their markers."""
        rows = self._table.read().where(f.col("_piece").between(first, last))
        return rows.where("record_id IS NOT NULL")

    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return self._table.columns()

    def clear(self, last: int) -> None:
        """Remove all pieces up to one; cheap if they are gone already."""
        if last <= self._cleared or not self._table.exists():
            return
        if self._table.read().where(f.col("_piece") <= last).limit(1).count():
            self._table.delete(f"_piece <= {last}", self.next)
            self._number += 1
        self._cleared = last


def _file(schema: pa.Schema, rows: Iterable[pa.Table], marker: Marker) -> bytes:
    content = io.BytesIO()
    with pq.ParquetWriter(content, schema, compression="snappy") as writer:
        for part in rows:
            own = part.append_column("_until", _same(marker.until, TIME, len(part)))
            own = own.append_column("_piece", _same(marker.piece, pa.int64(), len(part)))
            own = own.append_column("_marker", pa.nulls(len(part), pa.string()))
            writer.write_table(own.select(schema.names).cast(schema))
        last: dict[str, Any] = dict.fromkeys(schema.names)
        last |= {"_piece": marker.piece, "_marker": marker.to_json()}
        writer.write_table(pa.Table.from_pylist([last], schema))
    return content.getvalue()


def _same(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.array([value], kind).take(pa.array([0] * count, pa.int64()))
