"""The read log: stores the org's responses durably before they are merged.

Each object has its own log table in the target, such as ``_reads_Account``. A read is stored in
pieces. A piece is written in one transaction, and consists of rows and a marker. The marker is an
additional row that states which changes the piece is guaranteed to contain (`reads.AsOf`) and where
the read continues, so a restarted process resumes after the last complete piece. Invariant: a piece
never changes. Merged pieces are removed when the next read begins.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.reads import AsOf

LOG_PREFIX = "_reads_"

Kind = Literal["object", "ids", "sweep", "changes"]

# Columns of a row in addition to the record's fields. They come first, because Delta has bounds
# only for a table's first 32 columns, and a merge finds its pieces by `_piece`.
FACTS = pa.schema(
    [
        ("_is_deleted", pa.bool_()),
        ("_unfit", pa.bool_()),  # a value did not fit its column, and is null
        ("_found", pa.bool_()),  # otherwise the record was requested but not returned
        ("_until", TIME),
        ("_stamp", TIME),  # the record's SystemModstamp, if the object has it
        ("_derived_at", TIME),  # see `Row.derived_at`
        ("_piece", pa.int64()),
        ("_marker", pa.string()),  # set only in the marker row
    ]
)

_FACTS = {"kind": "reads"}

# Those fields of a marker that are times.
_TIMES = ("until", "derived_at")

# Maximum size of the pieces kept in memory until they are merged, in bytes. A piece of 50,000 rows
# of an ordinary object takes about 5 MB.
_KEPT_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Marker:
    """Metadata of one piece of a read, such as its `reads.AsOf` and where the next piece begins."""

    read: int
    """Number of the read's first piece, which identifies the read."""
    kind: Kind
    """``object``: all records. ``ids``: records by id. ``sweep``: the ids of all records.
    ``changes``: the records whose stamps (SystemModstamp) are not before a certain time.
    """
    as_of: AsOf
    is_last: bool = False
    until: datetime | None = None
    """The piece contains no change committed after this time; see `Read.until`."""
    derived_at: datetime | None = None
    """See `Row.derived_at`."""
    job: str | None = None
    """For a Bulk read: id of its job."""
    locator: str | None = None
    """For a Bulk read: locator of the page after this piece."""
    after: str | None = None
    """For a read by queries: the last record id of this piece."""
    at: float | None = None
    """When the read began, in seconds since the epoch."""
    through: float | None = None
    """For a read of all, or of all changed records: it contains every change that was visible in
    the org at this time, by the org's clock in seconds since the epoch.
    """
    selected: tuple[str, ...] = ()
    """Selected fields, in the order of the query."""
    filled: Mapping[str, int] = field(default_factory=dict)
    """The columns that the read fills: `Columns.filled`; empty for a sweep."""
    rows: int = 0
    """Number of rows of the read so far."""
    size: int = 0
    """Number of rows in this piece, including those of records that were not returned."""
    deleted: int = 0
    """Number of rows of the read so far that are of deleted records."""
    absent: int = 0
    """Number of records in this piece that were requested by id, but not returned."""
    epoch: int = 0
    """When the read began: how often the user's right to see every record had been interrupted
    (`Held.epoch`).
    """
    lowest: str | None = None
    highest: str | None = None
    """Lowest and highest id of the records in this piece; None if it has no rows."""
    total: int | None = None
    """Approximate number of records of the object; None if not counted."""
    piece: int = 0
    """Number of the piece in the log."""

    @property
    def can_resume(self) -> bool:
        """Whether the read can go on after this piece. Otherwise it starts over."""
        return self.kind != "changes" or self.job is not None

    def to_json(self) -> str:
        """Return the marker as JSON text for `from_json`."""
        found = asdict(self)
        for name in _TIMES:
            found[name] = found[name].isoformat() if found[name] else None
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Parse the output of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        found["as_of"] = AsOf(**found["as_of"])
        for name in _TIMES:
            found[name] = datetime.fromisoformat(found[name]) if found[name] else None
        found["selected"] = tuple(found["selected"])
        return cls(**found)


class ReadLog:
    """The read log of one object.

    Only one thread may write; others may read, but only one of them may call `take`.

    Args:
        target: Location of the tables.
        entity: The object.
    """

    def __init__(self, target: Target, entity: str) -> None:
        self._target = target
        self._table = target.table(f"{LOG_PREFIX}{entity}")
        self._number = self._table.step()
        self._made: pa.Schema | None = None
        self._cleared = -1
        self._kept: dict[int, bytes] = {}

    @property
    def next(self) -> int:
        """Number that the next piece in the log will get."""
        return self._number + 1

    def add(self, columns: Columns, rows: Iterable[pa.Table], marker: Marker) -> Marker:
        """Write a piece durably.

        Args:
            columns: The object's columns.
            rows: Tables with ``record_id``, the columns, ``_is_deleted`` and ``_found``.
            marker: The marker without its number. Its ``read`` is 0 for the first piece of a read,
                and otherwise as returned for that piece.

        Returns:
            The marker with `Marker.piece` and `Marker.read` set.

        Raises:
            WriteError: The write failed, or its outcome is unknown: `markers` shows whether the
                piece exists.
        """
        number = self.next
        marker = replace(marker, piece=number, read=marker.read or number)
        schema = pa.schema([("record_id", pa.string()), *FACTS, *columns.schema.remove_metadata()])
        if schema != self._made:  # may wait for a merge in another thread
            self._table.make(schema, _FACTS)
            self._made = schema
        content, marker = _file(schema, rows, marker)
        if not self._table.append([content], number):
            raise WriteError(
                f"piece {number} of {self._table.name} was written by another process: run only "
                f"one mirror for each target"
            )
        self._number = number
        kept = sum(map(len, list(self._kept.values())))
        if marker.kind == "object" and kept + len(content) <= _KEPT_BYTES:
            self._kept[number] = content
        self._target.finish(number)
        return marker

    def markers(self) -> list[Marker]:
        """Return the markers of all pieces, in order."""
        if not self._table.exists():
            return []
        rows = self._table.read().where("record_id IS NULL AND _marker IS NOT NULL")
        found = [Marker.from_json(row["_marker"]) for row in rows.select("_marker").collect()]
        return sorted(found, key=lambda marker: marker.piece)

    def rows(self, first: int, last: int) -> DataFrame:
        """Return the rows of pieces *first* to *last* (inclusive), without their markers."""
        rows = self._table.read().where(f.col("_piece").between(first, last))
        return rows.where("record_id IS NOT NULL")

    def take(self, first: int, last: int) -> list[bytes] | None:
        """Return the files of pieces *first* to *last* (inclusive) from memory; see `rows_in`.

        Return None if some are not in memory, because they are too large, were taken before, do not
        belong to a read of the whole object, or were written by another process. Whatever the
        result, none of them are in memory afterwards.
        """
        found = [self._kept.pop(piece, None) for piece in range(first, last + 1)]
        files = [each for each in found if each is not None]
        return files if len(files) == len(found) else None

    def columns(self) -> list[str]:
        """Return the names of the log table's columns."""
        return self._table.columns()

    def clear(self, last: int) -> None:
        """Remove the pieces up to number *last* (inclusive), unless they were already removed."""
        if last <= self._cleared or not self._table.exists():
            return
        self.take(min(self._kept, default=last), last)
        if self._table.read().where(f.col("_piece") <= last).limit(1).count():
            self._table.delete(f"_piece <= {last}", self.next)
            self._number += 1
        self._cleared = last


def rows_in(file: bytes) -> Iterator[pa.Table]:
    """Yield the rows in the Parquet file of a piece, without its marker, one row group at a time.

    Long texts may compress to a small fraction of their size, so all rows together might not fit
    in memory.
    """
    content = pq.ParquetFile(io.BytesIO(file))
    for number in range(content.num_row_groups):
        rows = content.read_row_group(number)
        rows = rows.filter(pc.is_valid(rows["record_id"]))
        if len(rows):
            yield rows


def id_range(pieces: Iterable[Marker]) -> tuple[str, str] | None:
    """Return the lowest and the highest record id in *pieces*.

    Return None if the pieces have no rows.
    """
    both = (each for piece in pieces for each in (piece.lowest, piece.highest))
    ids = [each for each in both if each is not None]
    return (min(ids), max(ids)) if ids else None


def _file(schema: pa.Schema, rows: Iterable[pa.Table], marker: Marker) -> tuple[bytes, Marker]:
    """Return a piece as the contents of a Parquet file, and its marker.

    The marker is *marker* with the piece's id range, and with the piece's deleted records counted.
    """
    content = io.BytesIO()
    ids: list[str] = []
    deleted = marker.deleted
    with pq.ParquetWriter(content, schema, compression="snappy") as writer:
        for part in rows:
            if not len(part):  # a row group without rows would leave the file without bounds
                continue
            own = part.append_column("_until", _same(marker.until, TIME, len(part)))
            own = own.append_column("_derived_at", _same(marker.derived_at, TIME, len(part)))
            own = own.append_column("_piece", _same(marker.piece, pa.int64(), len(part)))
            own = own.append_column("_marker", pa.nulls(len(part), pa.string()))
            writer.write_table(own.select(schema.names).cast(schema))
            ids += pc.min_max(part["record_id"]).as_py().values()
            deleted += pc.sum(part["_is_deleted"]).as_py() or 0
        lowest, highest = min(ids, default=None), max(ids, default=None)
        marker = replace(marker, lowest=lowest, highest=highest, deleted=deleted)
        last: dict[str, Any] = dict.fromkeys(schema.names)
        last |= {"_piece": marker.piece, "_marker": marker.to_json()}
        writer.write_table(pa.Table.from_pylist([last], schema))
    return content.getvalue(), marker


def _same(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.array([value], kind).take(pa.array([0] * count, pa.int64()))
