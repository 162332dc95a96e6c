"""Plan the next step (steps.py) from the raw table and the steps done so far.

Planning changes no tables. The plan contains every decision, so that another process can execute
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.columns import BATCH
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.batches import RawBatch, RawBatches
from sfpubsub.spark.tables.decode import UNDECODABLE_NAME
from sfpubsub.spark.tables.steps import StepPlan
from sfpubsub.spark.tables.target import Target
from sfpubsub.spark.tables.types import TYPED, EventTypes

# Raw batches per step. A raw batch is one file, decoded by one core, and a step costs about 0.2 s
# and one commit per table. This number occupies 32 cores, spreads that cost, and limits the work
# repeated after a crash.
BATCHES_AT_ONCE = 32

# Maximum payload bytes per step, unless a single batch has more. The results are collected to the
# driver, where Spark allows 1 GiB (spark.driver.maxResultSize).
BYTES_AT_ONCE = 256 * 2**20

# SQL pattern of the reason of a row whose schema is missing (avro/typed_rows.py).
_NOT_KNOWN = "schema % is not known"


@dataclass(frozen=True)
class _Count:
    """The number and size of the rows of one raw batch that have the same schema."""

    batch: str
    schema_id: str
    rows: int
    size: int
    newest: float
    """``received_at`` of the newest row, in seconds since the epoch."""


class Planner:
    """Plans the steps in which the tables of one target are built from the raw table.

    Not thread-safe.

    Args:
        raw: The raw table.
        target: Where the tables are written.
        types: The target's event types.
        names: Names of the events to build tables for; None means all.
        patience: Seconds that a row waits for its schema, counted from the row's arrival.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        raw: RawBatches,
        target: Target,
        types: EventTypes,
        *,
        names: frozenset[str] | None,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        self._raw = raw
        self._target = target
        self._types = types
        self.names = names
        """Names of the events to build tables for; None means all."""
        self._patience = patience
        self._clock = clock
        self._missing: dict[str, set[RawBatch]] | None = None
        """Batches with rows whose schema is missing, by schema id."""
        self.is_waiting = False
        """Whether the last plan skipped rows that are waiting for their schemas."""

    def rows(self, plan: StepPlan, version: str | None = None) -> DataFrame:
        """Return the raw rows that a step adds."""
        rows = self._raw.rows(plan.batches, version)
        if self.names is not None:
            named = f.col("event_name").isin(*sorted(self.names))
            rows = rows.where(named | (f.coalesce(f.col("event_name"), f.lit("")) == ""))
        if plan.kind == "again":
            rows = rows.where(f.col("schema_id").isin(*plan.schema_ids))
        return rows

    def next(self, newest: StepPlan | None) -> StepPlan | None:
        """Return the plan of the next step, or None if there is nothing to do now.

        Raises:
            WriteError: The raw table cannot be read.
            ConfigurationError: The raw table was restored to an older version, but the target
                cannot remove rows.
        """
        self.is_waiting = False
        version = self._raw.version()
        if newest is None:
            return self._rows(StepPlan(0, "rows", version=version), self._raw.after(None, version))
        base = replace(newest, version=version)
        moves = self._raw.moves(newest.version) if newest.version != version else None
        if moves is not None and moves.went_back and newest.last is not None:
            last = newest.last.id
            gone = sorted(batch for batch in moves.vanished if batch <= last)
            back = self._raw.named([batch for batch in moves.added if batch <= last], version)
            if gone or back:
                return self._restored(base, gone, back)
        step = self._again(newest) if newest.kind == "forget" else None
        if step is None and newest.pending:
            step = self._rows(base, newest.pending, came_back=True)
        step = step or self._forget(base)
        return step or self._rows(base, self._raw.after(newest.last, version))

    def beside(self, newest: StepPlan | None, note: dict[str, Any]) -> StepPlan:
        """Return the plan of a step that processes no raw rows.

        It does not change which raw batches are processed next.

        Args:
            newest: The plan of the newest step; None if there was no step.
            note: JSON object that tells each `Follower` what to do; stored in the plan.
        """
        base = newest or StepPlan(0, "beside", version=self._raw.version())
        return StepPlan(
            base.number + 1,
            "beside",
            last=base.last,
            version=base.version,
            pending=base.pending,
            note=note,
        )

    def rebuild(self, newest: StepPlan | None) -> StepPlan:
        """Return the plan of a step that empties all tables, to start over from the first batch."""
        self._missing = None
        number = 1 if newest is None else newest.number + 1
        return StepPlan(number, "rebuild", version=self._raw.version(), types=self._typed())

    def _restored(self, base: StepPlan, gone: Sequence[str], back: Sequence[RawBatch]) -> StepPlan:
        if not self._target.can_merge:
            raise ConfigurationError(
                f"the raw table was restored to an earlier version, and {len(gone)} of the "
                f"removed batches are in {self._target.place}, whose format does not support "
                f"removing them: rebuild the tables with sfpubsub tables rebuild"
            )
        self._missing = None
        return StepPlan(
            base.number + 1,
            "restored",
            batches=tuple(RawBatch(batch, "") for batch in gone),
            last=base.last,
            version=base.version,
            types=self._typed(),
            pending=(*back, *base.pending),
        )

    def _forget(self, base: StepPlan) -> StepPlan | None:
        """Return the plan of a step that removes rows from `_undecodable`, to decode them again.

        They are the rows whose schemas were missing and are now available. Return None if there
        are no such rows, or if the target cannot remove rows.
        """
        if not self._target.can_merge:
            return None
        if self._missing is None:
            self._missing = self._undecodable()
        come = [schema_id for schema_id in self._missing if self._types.name_of(schema_id)]
        wanted = {batch.id for schema_id in come for batch in self._missing.pop(schema_id)}
        # Rows that the raw table no longer has stay in `_undecodable`.
        batches = self._raw.named(wanted, base.version) if wanted else []
        if not batches:
            return None
        return StepPlan(
            base.number + 1,
            "forget",
            batches=tuple(batches),
            last=base.last,
            version=base.version,
            schema_ids=tuple(sorted(come)),
            pending=base.pending,
        )

    def _again(self, forgotten: StepPlan) -> StepPlan | None:
        """Return the plan of a step that decodes removed rows again, and adds them to the tables.

        Return None if the raw table no longer has these rows.

        Args:
            forgotten: The plan, made by `_forget`, of the step that removed the rows.
        """
        step = replace(forgotten, kind="again")
        counts = self._counts(self.rows(step, forgotten.version))
        return self._planned(step, counts, step.last, step.pending) if counts else None

    def _rows(
        self, base: StepPlan, waiting: Sequence[RawBatch], *, came_back: bool = False
    ) -> StepPlan | None:
        batches = list(waiting[:BATCHES_AT_ONCE])
        if not batches:
            return None
        step = replace(base, kind="rows", batches=tuple(batches), schema_ids=())
        counts = self._counts(self.rows(step, base.version))
        if self.names is None:
            _check_read(batches, counts)
        kept = self._cut(batches, counts)
        if not kept:
            return None
        step = replace(step, batches=tuple(kept))
        last = base.last if came_back else kept[-1]
        pending = tuple(waiting[len(kept) :]) if came_back else ()
        by_id = {batch.id: batch for batch in kept}
        found = [count for count in counts if count.batch in by_id]
        for count in found:
            if self._missing is not None and self._types.is_missing(count.schema_id):
                self._missing.setdefault(count.schema_id, set()).add(by_id[count.batch])
        return self._planned(step, found, last, pending)

    def _planned(
        self,
        step: StepPlan,
        counts: Sequence[_Count],
        last: RawBatch | None,
        pending: tuple[RawBatch, ...],
    ) -> StepPlan:
        names = {count.schema_id: self._types.name_of(count.schema_id) for count in counts}
        return StepPlan(
            step.number + 1,
            step.kind,
            batches=step.batches,
            last=last,
            version=step.version,
            schema_ids=tuple(sorted(schema_id for schema_id, name in names.items() if name)),
            types=tuple(sorted({name for name in names.values() if name})),
            rows=sum(count.rows for count in counts),
            size=sum(count.size for count in counts),
            undecodable=None in names.values(),
            pending=pending,
        )

    def _counts(self, rows: DataFrame) -> list[_Count]:
        found = rows.groupBy("batch", "schema_id").agg(
            f.count("*").alias("rows"),
            f.sum(f.octet_length("payload")).alias("size"),
            f.max(f.unix_micros("received_at")).alias("newest"),
        )
        return [
            _Count(
                row["batch"], row["schema_id"], row["rows"], row["size"] or 0, row["newest"] / 1e6
            )
            for row in found.collect()
        ]

    def _cut(self, batches: Sequence[RawBatch], counts: Sequence[_Count]) -> list[RawBatch]:
        """Return the leading batches that fit into a step and do not have to wait for schemas."""
        waiting = {
            count.batch
            for count in counts
            if self._clock() - count.newest < self._patience
            and self._types.is_missing(count.schema_id)
        }
        kept: list[RawBatch] = []
        size = 0
        for batch in batches:
            size += sum(count.size for count in counts if count.batch == batch.id)
            if batch.id in waiting:
                self.is_waiting = True
                break
            if kept and size > BYTES_AT_ONCE:
                break
            kept.append(batch)
        return kept

    def _undecodable(self) -> dict[str, set[RawBatch]]:
        table = self._target.table(UNDECODABLE_NAME)
        if not table.exists():
            return {}
        rows = table.read().where(f.col("reason").like(_NOT_KNOWN))
        found: dict[str, set[RawBatch]] = {}
        for row in rows.select("schema_id", *BATCH.names).distinct().collect():
            batch = RawBatch(row["batch"], str(row["ingest_date"]))
            found.setdefault(row["schema_id"], set()).add(batch)
        return found

    def _typed(self) -> tuple[str, ...]:
        names = self._target.names()
        return tuple(
            name for name in names if self._target.table(name).facts().get("kind") == TYPED
        )


def _check_read(batches: Sequence[RawBatch], counts: Sequence[_Count]) -> None:
    found = {count.batch for count in counts}
    empty = [batch.id for batch in batches if batch.id not in found]
    if empty:  # batches are never empty, so Spark was configured to skip unreadable files
        raise WriteError(
            f"reading raw batch {empty[0]} returned no rows, so nothing was written: "
            f"check that Spark does not ignore corrupt or missing files"
        )
