"""What a raw table must be able to do, in any format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId

# Batches whose names a table remembers. A stream repeats its last batch only, so this is room for
# as many streams that write to one table in turn.
REMEMBERED_NAMES = 32


@dataclass(frozen=True, slots=True)
class StoredRow:
    """What distinguishes a row from another one of the same event id, and its position."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "dedupe_key",
        "schema_id",
        "topic",
        "payload",
        "replay_id",
        "ingest_seq",
    )

    dedupe_key: bytes
    schema_id: str | None
    topic: str | None
    payload: bytes | None
    replay_id: bytes | None
    ingest_seq: int | None


class RawTable(ABC):
    """One destination in one format. Not thread-safe.

    A batch and all positions are one transaction: readers see both or neither, whatever happens.
    """

    on_restored: Callable[[Sequence[Source], Mapping[str, ReplayId]], None] | None = None
    """Called by `recover` where somebody has taken the table back to an older version, before that
    is settled, with the sources that the table has then, and by name the position of the newest row
    that is left of each. May be called again for one."""

    @property
    @abstractmethod
    def next_seq(self) -> int:
        """The ``ingest_seq`` of the next row. Never used twice, whatever became of the rows."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """Whose table it is: all whose events it was ever to take."""

    @property
    @abstractmethod
    def positions(self) -> Mapping[str, ReplayId]:
        """Where each topic and channel resumes, by its name; none of those without a position."""

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
            ConfigurationError: The table is not ours, or other sources'.
        """

    @abstractmethod
    def keys_since(self, oldest: float, after: int = -1) -> Iterable[tuple[float, bytes]]:
        """Yield the dedupe keys of rows written since *oldest*, possibly of some before it.

        Args:
            oldest: Seconds since 1970 UTC.
            after: The last row of a batch, by its ``ingest_seq``: only rows after it.

        Yields:
            No less than the time when they were written, in seconds since 1970 UTC, and no more
            than `sfpubsub.spark.raw.layout.LONGEST_PARTITION` later; and whole keys one after the
            other. Times do not decrease.
        """

    @abstractmethod
    def key_of(self, seq: int, written_at: float) -> bytes | None:
        """Return the dedupe key of the row with that ``ingest_seq``; None if there is no such row.

        Args:
            seq: ``ingest_seq``.
            written_at: When it was written, in seconds since 1970 UTC; an hour more or less.

        Raises:
            WriteError: The table cannot be read.
        """

    @abstractmethod
    def rows_with(
        self, keys: Collection[bytes], spans: Sequence[tuple[float, float]]
    ) -> Mapping[bytes, StoredRow]:
        """Return the rows with *keys* that were written in one of *spans*, or shortly around it.

        Args:
            keys: Any number.
            spans: First and last time, in seconds since 1970 UTC.

        Returns:
            The first row of each key, by the key.

        Raises:
            WriteError: The table cannot be read.
        """

    @abstractmethod
    def append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """Make rows, positions and name durable and visible, at once, and return the batch's id.

        Args:
            rows: At least one, numbered from `next_seq` on.
            positions: Of topics and channels that have moved; the others stay where they are.
            now: Seconds since 1970 UTC; never less than `newest_time`.
            name: Kept in `names`.

        Raises:
            WriteError: Whether the batch is in the table is unknown until `recover`.
        """

    @abstractmethod
    def move(self, positions: Mapping[str, ReplayId]) -> None:
        """Make positions durable without rows.

        Raises:
            WriteError: Whether they are durable is unknown until `recover`.
        """
