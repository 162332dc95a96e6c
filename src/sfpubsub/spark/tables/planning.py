"""Plan the next step (steps.py) from the raw table and the steps done so far.

Planning changes no tables. The plan contains every decision, so that another process can execute
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.columns import BATCH
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.batches import RawBatch, RawBatches
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.records.step import UNDECODABLE_NAME, Kind, StepPlan
from sfpubsub.spark.runtime.driver_memory import bytes_to_collect
from sfpubsub.spark.tables.steps import CURE
from sfpubsub.spark.tables.types import TYPED, EventTypes

# Raw batches per step. A raw batch is one file, decoded by one core, and a step costs about 0.2 s
# and one commit per table. This number occupies 32 cores, spreads that cost, and limits the work
# repeated after a crash.
BATCHES_AT_ONCE = 32

# Maximum payload bytes per step, unless a single batch has more. The results are collected to the
# driver, so a session with less memory has smaller steps (`bytes_to_collect`).
BYTES_AT_ONCE = 256 * 2**20

# SQL pattern of the reason of a row whose schema is missing (avro/typed_rows.py).
_NOT_KNOWN = "schema % is not known"


@dataclass(frozen=True)
class _Count:
    """The number and size of the rows of one raw batch that have the same schema."""

    batch: str
    schema_id: str
    is_named: bool
    """Whether the step adds these rows, by the name of their event."""
    rows: int
    size: int
    newest: float
    """``received_at`` of the newest row, in seconds since the epoch."""
    last_seq: int
    """Highest ``ingest_seq`` of the rows."""


class Planner:
    """Plans the steps in which the tables of one target are built from the raw table.

    Not thread-safe.

    Args:
        raw: The raw table.
        target: Where the tables are written.
        types: The target's event types.
        names: Names of the events to build tables for; None means all.
        org_id: 18-character id of the org of the tables; None if it is not known.
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
        org_id: str | None,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        self._raw = raw
        self._target = target
        self._types = types
        self.names = names
        """Names of the events to build tables for; None means all."""
        self.org_id = org_id
        """18-character id of the org of the rows planned so far; None if it is not known."""
        self._patience = patience
        self._clock = clock
        self._missing: dict[str, set[RawBatch]] | None = None
        """Batches with rows whose schema is missing, by schema id."""
        self.is_waiting = False
        """Whether the last plan skipped rows that are waiting for their schemas."""

    def rows(self, plan: StepPlan) -> DataFrame:
        """Return the raw rows that a step adds."""
        return self._all_rows(plan, None).where(_is_named(plan.names))

    def _all_rows(self, plan: StepPlan, version: str | None) -> DataFrame:
        """Return the raw rows that a step adds, and those of events that it does not name."""
        rows = self._raw.rows(plan.batches, version)
        if plan.kind == "redecode":
            rows = rows.where(f.col("schema_id").isin(*plan.schema_ids))
        return rows

    def next(self, newest: StepPlan | None) -> StepPlan | None:
        """Return the plan of the next step, or None if there is nothing to do now.

        Raises:
            WriteError: The raw table cannot be read.
            ConfigurationError: The raw table was restored to an earlier version since the newest
                step, or it contains rows of another org (OtherOrgError).
        """
        self.is_waiting = False
        version = self._raw.version()
        if newest is None:
            return self._rows(StepPlan(0, "rows", version=version), self._raw.after(None, version))
        if newest.version != version and newest.last is not None:
            self._check_not_restored(newest)
        base = replace(newest, version=version)
        step = self._redecode(newest) if newest.kind == "unpark" else None
        step = step or self._unpark(base)
        return step or self._rows(base, self._raw.after(newest.last, version))

    def instruct(
        self,
        newest: StepPlan | None,
        note: dict[str, Any],
        subject: str,
        totals: dict[str, Any],
    ) -> StepPlan:
        """Return the plan of a step that processes no raw rows.

        It does not change which raw batches are processed next.

        Args:
            newest: The plan of the newest step; None if there was no step.
            note: JSON object that tells each `Follower` what to do; stored in the plan.
            subject: See `StepPlan.subject`.
            totals: See `StepPlan.totals`.
        """
        base = newest or StepPlan(0, "instruction", version=self._raw.version())
        return _after(replace(base, totals=totals), "instruction", note=note, subject=subject)

    def rebuild(self, newest: StepPlan | None) -> StepPlan:
        """Return the plan of a step that empties all tables, to start over from the first batch."""
        self._missing = None
        base = newest or StepPlan(0, "rebuild")
        start = StepPlan(base.number, "rebuild", version=self._raw.version(), totals=base.totals)
        return _after(start, "rebuild", types=self._typed())

    def leave_out(self, newest: StepPlan | None) -> StepPlan:
        """Return the plan of a step after which all batches that exist now count as processed.

        It is for a mirror, whose followers read all objects again in return.
        """
        self._missing = None
        base = newest or StepPlan(0, "rebuild")
        version = self._raw.version()
        batches = self._raw.after(base.last, version)
        last = batches[-1] if batches else base.last
        seq = base.applied_seq
        if batches:
            found = self._raw.rows(batches[-1:], version).agg(f.max("ingest_seq")).collect()
            seq = max(seq, -1 if found[0][0] is None else int(found[0][0]))
        start = replace(base, last=last, applied_seq=seq, version=version)
        return _after(start, "rebuild")

    def _check_not_restored(self, newest: StepPlan) -> None:
        if self._raw.is_restored_since(newest.version):
            raise ConfigurationError(
                f"the raw table of {self._target.place} was restored to an earlier version, which "
                f"the tables cannot follow: {CURE}"
            )

    def _unpark(self, base: StepPlan) -> StepPlan | None:
        """Return the plan of a step that removes rows from `_undecodable`, to decode them again.

        They are the rows whose schemas were missing and are now available. Return None if there
        are no such rows.
        """
        if self._missing is None:
            self._missing = self._undecodable()
        come = [schema_id for schema_id in self._missing if self._types.name_of(schema_id)]
        wanted = {batch.id for schema_id in come for batch in self._missing.pop(schema_id)}
        # Rows that the raw table no longer has stay in `_undecodable`.
        batches = self._raw.named(wanted, base.version) if wanted else []
        if not batches:
            return None
        return _after(
            base,
            "unpark",
            batches=tuple(batches),
            names=self._named(),
            schema_ids=tuple(sorted(come)),
        )

    def _redecode(self, unparked: StepPlan) -> StepPlan | None:
        """Return the plan of a step that decodes removed rows again, and adds them to the tables.

        Return None if the raw table no longer has these rows.

        Args:
            unparked: The plan, made by `_unpark`, of the step that removed the rows.
        """
        step = replace(unparked, kind="redecode")
        counts = [count for count in self._counts(step) if count.is_named]
        return self._planned(step, counts) if counts else None

    def _rows(self, base: StepPlan, waiting: Sequence[RawBatch]) -> StepPlan | None:
        batches = list(waiting[:BATCHES_AT_ONCE])
        if not batches:
            return None
        step = replace(
            base, kind="rows", batches=tuple(batches), schema_ids=(), names=self._named()
        )
        counts = self._counts(step)
        _check_read(batches, counts)
        kept = self._cut(batches, [count for count in counts if count.is_named])
        if not kept:
            return None
        by_id = {batch.id: batch for batch in kept}
        counts = [count for count in counts if count.batch in by_id]
        found = [count for count in counts if count.is_named]
        for count in found:
            if self._missing is not None and self._types.is_missing(count.schema_id):
                self._missing.setdefault(count.schema_id, set()).add(by_id[count.batch])
        step = replace(
            step,
            batches=tuple(kept),
            last=kept[-1],
            applied_seq=max(base.applied_seq, *(count.last_seq for count in counts)),
        )
        return self._planned(step, found)

    def _planned(self, step: StepPlan, counts: Sequence[_Count]) -> StepPlan:
        names = {count.schema_id: self._types.name_of(count.schema_id) for count in counts}
        return _after(
            step,
            step.kind,
            batches=step.batches,
            names=step.names,
            schema_ids=tuple(sorted(schema_id for schema_id, name in names.items() if name)),
            types=tuple(sorted({name for name in names.values() if name})),
            rows=sum(count.rows for count in counts),
            size=sum(count.size for count in counts),
            undecodable=None in names.values(),
        )

    def _named(self) -> tuple[str, ...] | None:
        return None if self.names is None else tuple(sorted(self.names))

    def _counts(self, step: StepPlan) -> list[_Count]:
        rows = self._all_rows(step, step.version)
        found = (
            rows.groupBy("batch", "schema_id", _is_named(step.names).alias("is_named"))
            .agg(
                f.count("*").alias("rows"),
                f.sum(f.octet_length("payload")).alias("size"),
                f.max(f.unix_micros("received_at")).alias("newest"),
                f.max("ingest_seq").alias("last_seq"),
                f.collect_set("org_id").alias("org_ids"),  # without null
            )
            .collect()
        )
        for row in found:
            for org_id in row["org_ids"]:
                self.org_id = one_org(self.org_id, org_id, self._target.place)
        return [
            _Count(
                row["batch"],
                row["schema_id"],
                row["is_named"],
                row["rows"],
                row["size"] or 0,
                row["newest"] / 1e6,
                row["last_seq"],
            )
            for row in found
        ]

    def _cut(self, batches: Sequence[RawBatch], counts: Sequence[_Count]) -> list[RawBatch]:
        """Return the leading batches that fit into a step and do not have to wait for schemas."""
        waiting = {
            count.batch
            for count in counts
            if self._clock() - count.newest < self._patience
            and self._types.is_missing(count.schema_id)
        }
        most = bytes_to_collect(self._target.spark, BYTES_AT_ONCE)
        kept: list[RawBatch] = []
        size = 0
        for batch in batches:
            size += sum(count.size for count in counts if count.batch == batch.id)
            if batch.id in waiting:
                self.is_waiting = True
                break
            if kept and size > most:
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


def _after(base: StepPlan, kind: Kind, **more: Any) -> StepPlan:
    """Return a plan for the step after *base*, in which nothing of the raw table has changed."""
    return StepPlan(
        base.number + 1,
        kind,
        last=base.last,
        applied_seq=base.applied_seq,
        version=base.version,
        totals=base.totals,
        **more,
    )


def _is_named(names: Sequence[str] | None) -> Column:
    """Return the condition for rows of the events *names*; a row without a name may be of any."""
    name = f.coalesce(f.col("event_name"), f.lit(""))
    return f.lit(True) if names is None else name.isin("", *names)


def _check_read(batches: Sequence[RawBatch], counts: Sequence[_Count]) -> None:
    found = {count.batch for count in counts}
    empty = [batch.id for batch in batches if batch.id not in found]
    # Batches are never empty, so Spark skips unreadable files, or the batch was just removed.
    if empty:
        raise WriteError(
            f"reading raw batch {empty[0]} returned no rows, so nothing was written: "
            f"check that Spark does not ignore corrupt or missing files; if the rows were removed, "
            f"{CURE}"
        )
