"""The raw table: one row an event, as it was received.

Says what a row is and what a table must be able to do, for any format. Knows no Spark, no files and
no position's meaning: `replay_id` is bytes that are stored, and never compared, cast or ordered.
Rows have an order of their own, ``ingest_seq``: the order of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from sfpubsub.client.batch import Event
from sfpubsub.errors import DecodeError
from sfpubsub.types import ReplayId

# Times are in UTC by type: Spark shifts a time without a zone by the session's.
_TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),  # empty where the event has none
        ("dedupe_key", pa.binary()),
        ("replay_id", pa.binary()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("schema_id", pa.string()),
        ("event_name", pa.string()),
        ("event_time", _TIME),  # null where the event does not say, or not in a way Spark can hold
        ("received_at", _TIME),
        ("ingest_seq", pa.int64()),
        ("payload", pa.binary()),
        ("payload_json", pa.string()),  # null where the payload does not fit its schema
    ]
)

# Milliseconds since 1970 of 0001-01-01 and of the end of 9999: what Spark's TIMESTAMP can hold.
_FIRST_TIME = -62_135_596_800_000
_LAST_TIME = 253_402_300_799_999


@runtime_checkable
class Received(Protocol):
    """What the writer needs of an `EventBatch`."""

    @property
    def received_at(self) -> float:
        """Seconds since 1970 UTC."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Row:
    """One event with what was read out of its payload."""

    event: Event
    received_at: float
    event_time: int | None
    """Milliseconds since 1970 UTC."""
    payload_json: str | None
    error: DecodeError | None = None
    """Why there is no JSON."""


def read(event: Event, received_at: float) -> Row:
    """Decode an event. One that cannot be decoded becomes a row without JSON."""
    try:
        return Row(event, received_at, event.event_time, event.to_json())
    except DecodeError as error:
        return Row(event, received_at, None, None, error)


def arrow_table(rows: Sequence[Row], first_seq: int) -> pa.Table:
    """Return the rows as Arrow data with the columns of `SCHEMA`.

    Args:
        rows: In order of arrival.
        first_seq: ``ingest_seq`` of the first one.
    """
    events = [row.event for row in rows]
    columns = {
        "event_id": [event.id for event in events],
        "dedupe_key": [event.dedupe_key for event in events],
        "replay_id": [bytes(event.replay_id) for event in events],
        "topic": [event.topic for event in events],
        "subscription": [event.subscription for event in events],
        "schema_id": [event.schema_id for event in events],
        "event_name": [event.event_name for event in events],
        "event_time": [_microseconds(row.event_time) for row in rows],
        "received_at": [round(row.received_at * 1_000_000) for row in rows],
        "ingest_seq": range(first_seq, first_seq + len(rows)),
        "payload": [event.payload for event in events],
        "payload_json": [row.payload_json for row in rows],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def _microseconds(milliseconds: int | None) -> int | None:
    if milliseconds is None or not _FIRST_TIME <= milliseconds <= _LAST_TIME:
        return None
    return milliseconds * 1000


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

    @abstractmethod
    def recover(self) -> None:
        """Remove what a dead or failed write left, and read `next_seq` and `position` again.

        Raises:
            WriteError: The table cannot be read.
        """

    @abstractmethod
    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """Yield the dedupe keys of rows written since *oldest*, possibly of some before it.

        Yields:
            No less than the time when they were written, in seconds since 1970 UTC, and whole
            keys one after the other. Times do not decrease.
        """

    @abstractmethod
    def stored_until(self, oldest: float, keys: Collection[bytes]) -> set[bytes]:
        """Return those of *keys* that rows written before *oldest* hold, and perhaps later ones."""

    @abstractmethod
    def append(self, rows: pa.Table, position: ReplayId | None, now: float) -> str:
        """Make the rows and the position durable and visible, at once, and return the batch's id.

        Args:
            rows: At least one, numbered from `next_seq` on.
            position: What was received last, for a plain subscription.
            now: Seconds since 1970 UTC; never less than `newest_time`.

        Raises:
            WriteError: Whether the batch is in the table is unknown until `recover`.
        """

    @abstractmethod
    def move(self, position: ReplayId) -> None:
        """Make *position* durable without rows.

        Raises:
            WriteError: It was not.
        """
