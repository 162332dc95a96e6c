"""The raw table: one row an event, as it was received.

Says what a row is and what a table must be able to do, for any format. Knows no Spark, no files and
no position's meaning: `replay_id` is bytes that are stored, and never compared, cast or ordered.
Rows have an order of their own, ``ingest_seq``: the order of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME, TIME
from sfpubsub.client.batch import Event
from sfpubsub.errors import DecodeError, LocalProtocolError
from sfpubsub.spark.dedupe import KEY_BYTES
from sfpubsub.types import ReplayId

SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),  # empty where the event has none
        ("dedupe_key", pa.binary()),
        ("replay_id", pa.binary()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("schema_id", pa.string()),
        ("event_name", pa.string()),
        ("event_time", TIME),  # null where the event does not say, or not in a way Spark can hold
        ("received_at", TIME),
        ("ingest_seq", pa.int64()),
        ("payload", pa.binary()),
        ("payload_json", pa.string()),  # null where the payload does not fit its schema
    ]
)

# Columns that readers see after those of `SCHEMA`, in every format: the hour of writing (UTC), by
# which the table is partitioned, and the batch's id. In Parquet the directories' names carry them.
ADDED_COLUMNS = ("ingest_hour", "batch")

# The form of `ingest_hour`, whose order as text is its order in time.
_HOUR_FORMAT = "%Y-%m-%d-%H"
HOUR_SECONDS = 3600.0

# Rows that become Arrow data at once. With fewer the twelve columns' own cost shows (80 µs), with
# more the garbage collector's.
_PIECE = 1000

# Batches whose names a table remembers. A stream repeats its last batch only, so this is room for
# as many streams that write to one table in turn.
REMEMBERED_NAMES = 32


@runtime_checkable
class Received(Protocol):
    """What the writer needs of an `EventBatch`."""

    @property
    def received_at(self) -> float:
        """Seconds since 1970 UTC."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)  # not frozen: there is one for each event, and that would take 1 µs more
class Row:
    """One event with what was read out of its payload."""

    event: Event
    key: bytes
    """`Event.dedupe_key`."""
    received_at: float
    event_time: int | None
    """Milliseconds since 1970 UTC."""
    payload_json: str | None
    error: DecodeError | None = None
    """Why there is no JSON."""


def read(event: Event, received_at: float) -> Row:
    """Decode an event. One that cannot be decoded becomes a row without JSON."""
    key = event.dedupe_key
    try:
        time, text = event.time_and_json()
    except DecodeError as error:
        return Row(event, key, received_at, None, None, error)
    return Row(event, key, received_at, time, text)


def arrow_table(rows: Sequence[Row], first_seq: int) -> pa.Table:
    """Return the rows as Arrow data with the columns of `SCHEMA`.

    Args:
        rows: In order of arrival.
        first_seq: ``ingest_seq`` of the first one.
    """
    events = [row.event for row in rows]
    raws = [event.raw for event in events]
    columns = {
        "event_id": [raw.id for raw in raws],
        "dedupe_key": [row.key for row in rows],
        "replay_id": [bytes(raw.replay_id) for raw in raws],
        "topic": [event.topic for event in events],
        "subscription": [event.subscription for event in events],
        "schema_id": [raw.schema_id for raw in raws],
        "event_name": [event.codec.name for event in events],
        "event_time": [
            None if time is None or not FIRST_TIME <= time <= LAST_TIME else time * 1000
            for time in [row.event_time for row in rows]
        ],
        "received_at": [round(row.received_at * 1_000_000) for row in rows],
        "ingest_seq": range(first_seq, first_seq + len(rows)),
        "payload": [raw.payload for raw in raws],
        "payload_json": [row.payload_json for row in rows],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


class EventRows:
    """Events read into rows while they arrive: what one write is made of. Not thread-safe.

    They become Arrow data piece by piece, so that few Python objects live until the write: the
    garbage collector goes through all there are, which took a fifth of the time.
    """

    def __init__(self) -> None:
        self.undecodable: list[tuple[int, Row]] = []
        """The rows without JSON, and their places."""
        self._pieces: list[pa.Table] = []
        self._rows: list[Row] = []
        self._count = 0

    def extend(self, events: Iterable[Event], received_at: float) -> None:
        """Read events, which arrived after those before. See `read`."""
        for event in events:
            row = read(event, received_at)
            if row.error is not None:
                self.undecodable.append((self._count, row))
            self._rows.append(row)
            self._count += 1
        if len(self._rows) >= _PIECE:
            self._cut()

    def __len__(self) -> int:
        return self._count

    def table(self) -> pa.Table:
        """Return all rows as Arrow data; ``ingest_seq`` means nothing yet."""
        if self._rows or not self._pieces:
            self._cut()
        return pa.concat_tables(self._pieces)

    def _cut(self) -> None:
        self._pieces.append(arrow_table(self._rows, 0))
        self._rows = []


def check_rows(rows: pa.Table) -> pa.Table:
    """Return rows of any origin with the columns of `SCHEMA`; ``ingest_seq`` means nothing yet.

    ``ingest_seq`` may be missing, and `ADDED_COLUMNS` are dropped if present: the table that takes
    the rows makes its own.

    Raises:
        LocalProtocolError: Columns are missing, unknown, of other types, or a key is not one.
    """
    names = set(rows.column_names)
    if "ingest_seq" not in names:
        rows = rows.append_column("ingest_seq", pa.nulls(len(rows), pa.int64()))
        names.add("ingest_seq")
    wrong = names.symmetric_difference(SCHEMA.names) - set(ADDED_COLUMNS)
    if wrong:
        raise LocalProtocolError(
            f"rows for a raw table have its columns; missing or unknown: {', '.join(sorted(wrong))}"
        )
    try:
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LocalProtocolError(f"rows for a raw table have its types: {error}") from error
    lengths = set(pc.unique(pc.binary_length(rows["dedupe_key"])).to_pylist())
    if not lengths <= {KEY_BYTES}:
        raise LocalProtocolError(f"a dedupe_key of a raw table has {KEY_BYTES} bytes")
    return rows


def renumbered(rows: pa.Table, first_seq: int) -> pa.Table:
    """Return *rows* with ``ingest_seq`` counting from *first_seq*."""
    numbers = pa.array(range(first_seq, first_seq + len(rows)), pa.int64())
    return rows.set_column(rows.schema.get_field_index("ingest_seq"), "ingest_seq", numbers)


def joined_keys(keys: pa.Array | pa.ChunkedArray) -> bytes:
    """Return the dedupe keys of a column one after the other, as a `Window` takes them."""
    if isinstance(keys, pa.ChunkedArray):
        return b"".join([joined_keys(chunk) for chunk in keys.chunks])
    if not len(keys):
        return b""
    keys = keys.cast(pa.binary(KEY_BYTES))
    start = keys.offset * KEY_BYTES
    return bytes(memoryview(keys.buffers()[1])[start : start + len(keys) * KEY_BYTES])


def hour_of(time: float) -> str:
    """Return the ``ingest_hour`` of a time in seconds since 1970 UTC."""
    return datetime.fromtimestamp(time, UTC).strftime(_HOUR_FORMAT)


def hour_start(hour: str) -> float:
    """Return the beginning of an ``ingest_hour`` in seconds since 1970 UTC.

    Raises:
        ValueError: It is none.
    """
    return datetime.strptime(hour, _HOUR_FORMAT).replace(tzinfo=UTC).timestamp()


class RawTable(ABC):
    """One destination in one format. Not thread-safe.

    A batch and its position are one transaction: readers see both or neither, whatever happens.
    """

    @property
    @abstractmethod
    def next_seq(self) -> int:
        """The ``ingest_seq`` of the next row."""

    @property
    @abstractmethod
    def position(self) -> ReplayId | None:
        """Where a plain subscription resumes; None in a new table and for a managed one."""

    @property
    @abstractmethod
    def newest_time(self) -> float:
        """No more than the ``now`` of the newest batch, in seconds since 1970 UTC; 0 without."""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of the last batches that had one; `REMEMBERED_NAMES` or more of them."""

    @abstractmethod
    def recover(self) -> None:
        """Make an end of every write before this one, and read the table's properties again.

        A write that died, failed, or is still under way in a process that was stopped, is in the
        table when this returns, or never will be.

        Raises:
            WriteError: The table cannot be read, or another writer has taken it over.
            ConfigurationError: The table is not ours, or another source's.
        """

    @abstractmethod
    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """Yield the dedupe keys of rows written since *oldest*, possibly of some before it.

        Yields:
            No less than the time when they were written, in seconds since 1970 UTC, and whole
            keys one after the other. Times do not decrease.
        """

    @abstractmethod
    def stored(
        self, keys: Collection[bytes], first: float | None, last: float | None
    ) -> set[bytes]:
        """Return those of *keys* that rows written from *first* to *last* hold, or some nearby.

        Args:
            keys: Any number.
            first: Seconds since 1970 UTC; None for the table's beginning.
            last: Seconds since 1970 UTC; None for its end.

        Raises:
            WriteError: The table cannot be read.
        """

    @abstractmethod
    def append(
        self, rows: pa.Table, position: ReplayId | None, now: float, name: str | None = None
    ) -> str:
        """Make rows, position and name durable and visible, at once, and return the batch's id.

        Args:
            rows: At least one, numbered from `next_seq` on.
            position: What was received last, for a plain subscription; None leaves it as it is.
            now: Seconds since 1970 UTC; never less than `newest_time`.
            name: Kept in `names`.

        Raises:
            WriteError: Whether the batch is in the table is unknown until `recover`.
        """

    @abstractmethod
    def move(self, position: ReplayId) -> None:
        """Make *position* durable without rows.

        Raises:
            WriteError: Whether it is durable is unknown until `recover`.
        """
