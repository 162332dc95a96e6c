"""The interface of a raw table in any format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.arrow import frame_of_rows, to_arrow
from sfpubsub.types import ReplayId

# Number of batch names that a table remembers. A stream repeats only its last batch, so this many
# streams can write to one table in turn.
REMEMBERED_NAMES = 32


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Values of a stored row, for comparison with an event that has the same dedupe key."""

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
    """A raw table in one format. Not thread-safe.

    A batch and the positions after it form one transaction: readers always see both or neither.
    """

    on_restored: Callable[[Sequence[Source], Mapping[str, ReplayId]], None] | None = None
    """Called by `recover` if the table was restored to an older version, before anything is
    committed. It receives the table's sources and, by name, the position of each source's newest
    remaining row. May be called more than once for the same restore.
    """

    @property
    @abstractmethod
    def next_seq(self) -> int:
        """The ``ingest_seq`` of the next row. Numbers are not reused after a restore."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """All sources of the table: those of the current writer and of earlier writers."""

    @property
    @abstractmethod
    def org_id(self) -> str | None:
        """18-character id of the org whose events the table contains; None if it is not known."""

    @property
    @abstractmethod
    def positions(self) -> Mapping[str, ReplayId]:
        """The position of each topic or channel, by name. Those without a position are omitted."""

    @property
    @abstractmethod
    def newest_time(self) -> float:
        """The earliest time at which the newest batch may have been written.

        In seconds since the epoch; 0 if there are no batches.
        """

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """Names of the newest named batches; at most `REMEMBERED_NAMES`."""

    @abstractmethod
    def recover(self) -> None:
        """Fence off all earlier writes, and reload the table's state.

        When this returns, every earlier write that failed, was killed or is suspended is either in
        the table or can no longer be committed.

        Raises:
            WriteError: The table cannot be read, or another writer has taken it over.
            ConfigurationError: The table was not created by sfpubsub, or belongs to other sources.
        """

    @abstractmethod
    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """Yield the dedupe keys of rows written since *oldest*, and possibly some older ones.

        Args:
            oldest: Time in seconds since the epoch.

        Yields:
            Pairs of a time and the concatenated keys of some rows. The time, in seconds since 1970
            UTC, is when the rows were written, or at most
            `sfpubsub.spark.raw.layout.LONGEST_PARTITION` later. Times do not decrease.

        Raises:
            WriteError: The table cannot be read.
        """

    @abstractmethod
    def rows_with(
        self, keys: Collection[bytes], spans: Sequence[tuple[float, float]]
    ) -> Mapping[bytes, StoredRow]:
        """Find rows by dedupe key among those written in *spans*.

        Rows written at other times may be found as well.

        Args:
            keys: Any number of dedupe keys.
            spans: Time spans, as pairs of a first and a last time, in seconds since the epoch.

        Returns:
            A mapping from each key to the first row that has it. Keys without a row are omitted.

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
        """Append a batch in one durable transaction, and return the batch's id.

        Args:
            rows: At least one row, numbered from `next_seq`.
            positions: Changed positions of topics and channels; the others stay unchanged.
            now: Time of the write, in seconds since the epoch; not before `newest_time`.
            name: Name of the batch, remembered in `names`; None for a batch without a name.

        Raises:
            WriteError: It is unknown whether the batch is in the table; call `recover`.
        """

    @abstractmethod
    def move(self, positions: Mapping[str, ReplayId]) -> None:
        """Store positions durably, without rows.

        Raises:
            WriteError: It is unknown whether the positions are durable; call `recover`.
        """

    def compact_before(self, day: date) -> None:  # noqa: B027  # only formats with a log do it
        """Rewrite the small files of the days before *day* as larger ones, if they are many.

        If that fails, it is only logged, because the table stays correct.
        """


def rows_among(
    spark: SparkSession, rows: DataFrame, keys: Collection[bytes]
) -> dict[bytes, StoredRow]:
    """Return, for each of *keys*, the row with that key and the lowest ``ingest_seq``.

    Keys without a row are missing from the result. The keys are sent to the executors, which return
    only the rows that match.

    Args:
        spark: The session of *rows*.
        rows: Rows with the columns of a `StoredRow`; other columns are not read.
        keys: Dedupe keys, at least one. All are in memory at once, so pass those of one batch.
    """
    wanted = pa.table({"dedupe_key": pa.array(set(keys), pa.binary())})
    asked = f.broadcast(frame_of_rows(spark, wanted))
    found = to_arrow(rows.select(*StoredRow.COLUMNS).join(asked, "dedupe_key", "left_semi"))
    stored = [StoredRow(**row) for row in found.sort_by([("ingest_seq", "descending")]).to_pylist()]
    return {row.dedupe_key: row for row in stored}
