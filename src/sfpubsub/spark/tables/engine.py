"""Build query tables from a raw table, step by step: one typed table per event type.

This module combines the parts: the next step is planned (planning.py) and recorded (steps.py), its
rows are decoded in one Spark job (decode.py), and each table stores its rows with the step's number
(target.py). Invariant: the raw table's rows and the plans determine the content of the tables, even
if processes were killed.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.avro.columns import BATCH, UNDECODABLE
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import LocalProtocolError, WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.destination import check_raw_table, format_of
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.raw.schema import with_comments
from sfpubsub.spark.records.follower import RecordTables
from sfpubsub.spark.records.step import UNDECODABLE_NAME, Follower, StepPlan
from sfpubsub.spark.records.table import Describe
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.runtime.sql import sql_text
from sfpubsub.spark.tables import open_target
from sfpubsub.spark.tables.decode import Decoded, decode
from sfpubsub.spark.tables.identity import Identity, check_apart, event_names, schemas_of
from sfpubsub.spark.tables.maintenance import Upkeep
from sfpubsub.spark.tables.planning import Planner
from sfpubsub.spark.tables.steps import CURE, StepTable
from sfpubsub.spark.tables.types import EventTypes
from sfpubsub.stores.schema_store import SchemaStore

_log = logging.getLogger("sfpubsub.spark")

# Seconds that a row waits for its schema, counted from the row's arrival. The writer makes a schema
# durable before its rows, so this only needs to exceed the time that a file system takes to make a
# file visible to another machine.
SCHEMA_PATIENCE = 60.0

# Seconds between checks of the raw table when following it (by default a job writes a batch every
# ten seconds), and when waiting for a schema.
LOOK_EVERY = 10.0
_LOOK_FOR_SCHEMA_EVERY = 1.0

# Number of tables written in parallel. A commit mostly waits for the disk or the network.
_COMMITS_AT_ONCE = 4


@dataclass(frozen=True)
class StepReport:
    """What one or more completed steps did, and how long they took."""

    batches: int = 0
    """Number of raw batches whose rows were added."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of rows added, by event type."""
    undecodable: int = 0
    """Number of rows that could not be decoded. The table `_undecodable` contains the reasons."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of undecodable rows by reason."""
    seconds: float = field(default=0.0, compare=False)
    """Duration of the steps, in seconds."""

    def __add__(self, other: StepReport) -> StepReport:
        return StepReport(
            self.batches + other.batches,
            dict(Counter(self.rows) + Counter(other.rows)),
            self.undecodable + other.undecodable,
            dict(Counter(self.reasons) + Counter(other.reasons)),
            self.seconds + other.seconds,
        )


class EventTables:
    """Builds the tables of one target. A context manager; not thread-safe.

    No other process may write to the target, but the raw table may be written to at the same time.
    The engine needs no credentials and no network service, because schemas come from the raw
    table's store.

    Args:
        spark: A session with the formats' jars (`spark_session`), classic or of Spark Connect.
        raw: The raw table's path, URL, or name in a catalog, as for `EventWriter`.
        to: A directory, written with a slash (``./tables``) or as a `Path`; a URL; or
            ``catalog.schema``. A name without a slash or a dot is refused.
        format: Format of the tables: ``delta`` or ``iceberg``.
        raw_format: Format of the raw table; by default detected for a local path, otherwise the
            same as *format*.
        objects: Objects and event types to build tables for, such as ``Account`` or
            ``Order_Event__e``; all by default. Stored with the tables.
        current: Whether to build current tables, with one row per record, and the queue `_reread`.
            Existing current tables are always maintained.
        history: Whether to build history tables, with one row per version, in addition to current
            tables.
        schemas: Store of the raw table's schemas; by default its own sidecar.
        schema_patience: Seconds that a row waits for its schema, counted from the row's arrival.
            After that, the row is undecodable until the schema arrives.
        describe: Requests the describe result of an object from the org. With it, current and
            history tables have the columns and types of a mirror; otherwise those of the events.
        followers: Functions that each create a `steps.Follower`, which builds further tables.
        mirror: Whether one of the followers belongs to a mirror, which maintains its own current
            tables. In that case, *objects* may add objects at each start, and need not list earlier
            objects.
        maintain: Whether `run`, when it has nothing else to do, rewrites many small files of a
            table as a few larger ones, as `sfpubsub.spark.maintain` does.
        for_rebuild: Whether to open the tables even if their newest step is unknown, because the
            caller will call `rebuild`.
        org_id: Id of the org whose events the raw table contains; None if it is not known. The
            target remembers it, or else the org of the rows, and rejects rows of another org.
        clock: Returns the time in seconds since the epoch.

    Raises:
        ConfigurationError: The raw table does not exist, *to* is not a valid target or contains
            other tables, or another process is writing to it.
        OtherOrgError: The target contains tables of another org.
        WriteError: The tables cannot be read, or an interrupted step cannot be finished.
    """

    def __init__(
        self,
        spark: SparkSession,
        raw: str | os.PathLike[str],
        to: str | os.PathLike[str],
        *,
        format: str = "delta",  # noqa: A002  # named as in Spark
        raw_format: str | None = None,
        objects: Sequence[str] = (),
        current: bool = False,
        history: bool = False,
        schemas: SchemaStore | None = None,
        schema_patience: float = SCHEMA_PATIENCE,
        describe: Describe | None = None,
        followers: Sequence[Callable[[Target], Follower]] = (),
        mirror: bool = False,
        maintain: bool = True,
        for_rebuild: bool = False,
        org_id: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        source = Destination.parse(raw, raw_format or format_of(raw, format))
        place = Destination.of_tables(to, format)
        check_raw_table(source)
        check_apart(source, place)
        with ExitStack() as unless_done:
            self.target: Target = unless_done.enter_context(open_target(spark, to, format))
            self._raw = RawBatches(self.target.spark, source)
            self._steps = StepTable(self.target)
            self._newest = self._steps.newest(may_be_lost=for_rebuild)
            self._mirror = mirror
            self._objects: tuple[str, ...] = tuple(objects)
            self._org_id: str | None = None
            self._claim(source, sorted(set(objects)), org_id)
            self._types = EventTypes(self.target, schemas or schemas_of(spark, source))
            self._planner = Planner(
                self._raw,
                self.target,
                self._types,
                names=event_names(self._objects) if self._objects else None,
                org_id=self._org_id,
                patience=schema_patience,
                clock=clock,
            )
            records = None
            if not mirror:
                records = RecordTables.of(
                    self.target, current=current, history=history, describe=describe
                )
            self._followers: list[Follower] = [records] if records is not None else []
            self._followers += [make(self.target) for make in followers]
            self._upkeep = Upkeep(self.target, self._number) if maintain else None
            self._unfinished = self._newest is not None
            self._clock = clock
            self._since: float | None = None
            self.on_step: Callable[[StepReport], None] | None = None
            """Called with the report of each new step."""
            unless_done.pop_all()

    @property
    def is_waiting(self) -> bool:
        """Whether the last `step` left out rows that are waiting for their schemas."""
        return self._planner.is_waiting

    def step(self) -> StepReport | None:
        """Perform the next step.

        A step that failed, or that an earlier process left unfinished, is completed first.

        Returns:
            The report of the next step, or None if there is nothing to do now. A step that was only
            completed is not reported.

        Raises:
            WriteError: The step failed. The next call, or the next process, completes it.
            ConfigurationError: The step cannot be performed; the message names what is missing.
        """
        with self._under_way():
            if self._unfinished and self._newest is not None:
                self._do(self._newest, is_new=False)
                self._unfinished = False
            with self._errors("the raw table cannot be read"):
                plan = self._planner.next(self._newest)
            self._remember_org()
            return None if plan is None else self._begin(plan)

    def maintain(self) -> bool:
        """Compact the next table if that is due. Call it when `step` has found nothing to do.

        A table that cannot be compacted is only logged, because it stays correct.

        Returns:
            Whether a table was due.
        """
        if self._upkeep is None or self.is_between:
            return False
        try:
            return self._upkeep.next(self._number)
        except WriteError as error:
            _log.warning("%s; the job goes on", error)
            return True

    def step_seconds(self) -> float | None:
        """Return the seconds since the current step began; None if no step is in progress.

        Thread-safe.
        """
        since = self._since
        return None if since is None else max(0.0, self._clock() - since)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._since = self._clock()
        try:
            yield
        finally:
            self._since = None

    @property
    def objects(self) -> tuple[str, ...]:
        """Objects and event types that have tables; empty means all."""
        return self._objects

    def add(self, name: str) -> None:
        """Start building tables for another object of a mirror, beginning with the next step.

        Raises:
            WriteError: The new object could not be recorded.
        """
        record = self._steps.identity()
        self._objects = tuple(sorted({*self._objects, name}))
        self._steps.claim({**record, "objects": list(self._objects)})
        self._planner.names = event_names(self._objects)

    def remove(self, name: str) -> None:
        """Stop building tables for an object of a mirror. Its tables stay as they are.

        Raises:
            WriteError: The removal could not be recorded.
        """
        record = self._steps.identity()
        self._objects = tuple(each for each in self._objects if each != name)
        self._steps.claim({**record, "objects": list(self._objects)})
        self._planner.names = event_names(self._objects)

    @property
    def newest(self) -> StepPlan | None:
        """The plan of the newest step, which may be unfinished; None before the first step."""
        return self._newest

    @property
    def _number(self) -> int:
        return 0 if self._newest is None else self._newest.number

    @property
    def is_between(self) -> bool:
        """Whether the newest step is unfinished, or must be followed by another one immediately."""
        is_half = self._newest is not None and self._newest.kind == "unpark"
        return self._unfinished or is_half

    def instruct(self, note: dict[str, Any], subject: str, totals: dict[str, Any]) -> None:
        """Perform a step that processes no raw rows, and pass *note* to each `Follower`.

        Call it only while `is_between` is false.

        Args:
            note: JSON object that tells each `Follower` what to do; stored in the step's plan.
            subject: What the note is about; see `StepPlan.subject`.
            totals: See `StepPlan.totals`.

        Raises:
            WriteError: The step failed. The next `step`, or the next process, completes it.
            LocalProtocolError: `is_between` is true.
        """
        if self.is_between:
            raise LocalProtocolError(
                "the newest step is not finished: call step() first, and then instruct() again"
            )
        with self._under_way():
            self._begin(self._planner.instruct(self._newest, note, subject, totals))

    def applied_seq(self) -> int:
        """Return the highest ``ingest_seq`` of the raw rows processed so far; -1 before the first.

        The rows of a step that is not finished count as processed.
        """
        return -1 if self._newest is None else self._newest.applied_seq

    def unapplied(self) -> list[tuple[str, int, float]]:
        """Return which rows of the raw table are not in the tables, by event type.

        This reads the unapplied rows, so it is meant for the start of a process.

        Returns:
            For each event type its name, the highest ``ingest_seq``, and when the oldest row was
            received, in seconds since the epoch.

        Raises:
            WriteError: The raw table cannot be read.
        """
        newest = self._newest
        with self._errors("the raw table cannot be read"):
            version = self._raw.version()
            batches = list(self._raw.after(None if newest is None else newest.last, version))
            if newest is not None:
                batches += newest.batches if self.is_between else ()
            if not batches:
                return []
            rows = self._raw.rows(batches, version).groupBy("event_name")
            oldest = f.min(f.unix_micros("received_at")).alias("oldest")
            found = rows.agg(f.max("ingest_seq").alias("seq"), oldest).collect()
        return [(row["event_name"] or "", row["seq"], row["oldest"] / 1e6) for row in found]

    def rebuild(self) -> None:
        """Empty all tables, so that the next steps build them again from the first raw batch.

        Readers see the empty tables immediately. An unfinished step is abandoned.

        The tables of a mirror are not emptied. Instead, all their rows are marked, all raw batches
        so far are left out, and the mirror reads all its objects again.

        Raises:
            WriteError: Not all tables were emptied. Call `rebuild` again, or `step`, which
                completes it.
        """
        with self._under_way():
            make = self._planner.leave_out if self._mirror else self._planner.rebuild
            with self._errors("the raw table cannot be read"):
                plan = make(self._newest)
            self._begin(plan)

    def run(
        self, *, follow: bool = False, stopping: threading.Event | None = None
    ) -> Iterator[StepReport]:
        """Perform steps until there is nothing left to do or, with *follow*, until stopped.

        Unless it is stopped, this does not end while rows are waiting for their schemas.

        Args:
            follow: Whether to keep processing new batches of the raw table.
            stopping: Event that another thread or a signal handler sets to stop after the current
                step.

        Yields:
            A report after each step.

        Raises:
            WriteError: See `step`.
            ConfigurationError: See `step`.
        """
        stopping = stopping or threading.Event()
        while not stopping.is_set():
            report = self.step()
            if report is not None:
                yield report
            elif self.maintain():
                pass  # the next table, or a step
            elif self.is_waiting:
                stopping.wait(_LOOK_FOR_SCHEMA_EVERY)
            elif follow:
                stopping.wait(LOOK_EVERY)
            else:
                return

    def close(self) -> None:
        """Release the target for other processes. Can be called repeatedly."""
        self.target.close()

    def __enter__(self) -> EventTables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, plan: StepPlan) -> StepReport:
        self._steps.add(plan)
        self._newest, self._unfinished = plan, True
        report = self._do(plan, is_new=True)
        self._unfinished = False
        report = replace(report, seconds=self.step_seconds() or 0.0)
        if self.on_step is not None:
            self.on_step(report)
        return report

    def _do(self, plan: StepPlan, *, is_new: bool) -> StepReport:
        """Apply a step to every table that does not have it yet."""
        step = _Step(plan, self.target, self._types)
        with self._errors(f"step {plan.number} of {self.target.place} failed"):
            if plan.kind in ("rows", "redecode"):
                report = StepReport() if not is_new and self._is_added(plan) else self._add(plan)
                self._notify_followers(step)
            elif plan.kind == "instruction":
                self._notify_followers(step)
                report = StepReport()
            else:
                self._notify_followers(step)
                report = self._remove(plan)
            self.target.finish(plan.number)
        return report

    def _notify_followers(self, step: _Step) -> None:
        for follower in self._followers:
            follower.follow(step)

    def _is_added(self, plan: StepPlan) -> bool:
        """Return whether all tables already contain the rows of a step."""
        names = [*plan.types, *([UNDECODABLE_NAME] if plan.undecodable else [])]
        return all(self.target.table(name).step() >= plan.number for name in names)

    def _add(self, plan: StepPlan) -> StepReport:
        """Add the rows of a step to the typed tables.

        1. Create missing tables, and add missing columns to existing ones.
        2. Decode the rows, and check that none is missing.
        3. Write the undecodable rows. They are written first, so that a step is complete once the
           tables of all its types are written.
        4. Write the rows of each type to its table.
        """
        if plan.rows == 0:  # no rows of the requested objects
            return StepReport(len(plan.batches))
        decoded = self._decoded(plan, self._types.plans(plan.schema_ids))
        if UNDECODABLE_NAME in decoded.files:
            undecodable = self.target.table(UNDECODABLE_NAME)
            columns = with_comments(pa.schema([*UNDECODABLE, *BATCH]))
            undecodable.make(columns, {"kind": "undecodable"})
            undecodable.append(decoded.files[UNDECODABLE_NAME], plan.number)
        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as pool:
            done = [
                pool.submit(
                    self.target.table(name).append, decoded.files.get(name, ()), plan.number
                )
                for name in plan.types
            ]
        for future in done:
            future.result()
        rows = {name: count for name, count in decoded.rows.items() if name != UNDECODABLE_NAME}
        return StepReport(
            len(plan.batches),
            rows,
            decoded.rows.get(UNDECODABLE_NAME, 0),
            _reasons(decoded.files.get(UNDECODABLE_NAME, ())),
        )

    def _decoded(self, plan: StepPlan, plans: Mapping[str, Plan]) -> Decoded:
        decoded = decode(self._planner.rows(plan), plans, plan.size)
        found = sum(decoded.rows.values())
        if found != plan.rows:
            raise WriteError(
                f"expected {plan.rows} rows in raw batches {plan.batches[0].id} to "
                f"{plan.batches[-1].id}, but found {found}; nothing was written: if rows were "
                f"removed from the raw table before they were processed, or if it was restored to "
                f"an earlier version, {CURE}"
            )
        return decoded

    def _remove(self, plan: StepPlan) -> StepReport:
        if plan.kind == "rebuild" and self._mirror:
            return StepReport()
        condition = "true"
        if plan.kind == "unpark":
            batches = _is_one_of("batch", [batch.id for batch in plan.batches])
            condition = f"{batches} AND {_is_one_of('schema_id', plan.schema_ids)}"
        for name in (*plan.types, UNDECODABLE_NAME):
            table = self.target.table(name)
            if table.exists():
                table.delete(condition, plan.number)
        return StepReport()

    def _claim(self, source: Destination, objects: list[str], org_id: str | None) -> None:
        """Check that existing tables were built from this raw table, for these objects and org.

        Then record the raw table, the objects and the org as the identity of the target.
        """
        found = self._steps.identity()
        known = Identity.from_record(found, self.target.place) if found else None
        if self._mirror and known is not None:
            objects = sorted({*objects, *known.objects})
        recorded = known.org_id if known is not None and self._newest is not None else None
        self._org_id = one_org(recorded, org_id, self.target.place)
        self._objects = tuple(objects)
        raw_id = self._raw.identity()
        identity = Identity(source.format, source.address, raw_id, self._objects, self._org_id)
        last = self._newest.last if self._newest is not None else None
        if known is not None and self._newest is not None:
            known.check(
                identity,
                lambda: last is None or bool(self._raw.named([last.id])),
                may_grow=self._mirror,
            )
        if found != identity.record():
            self._steps.claim(identity.record())

    def _remember_org(self) -> None:
        """Record the org that the rows of the next step revealed."""
        if self._org_id != self._planner.org_id:
            self._org_id = self._planner.org_id
            self._steps.claim({**self._steps.identity(), "org_id": self._org_id})

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (*SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{what}: {first_line(error)}") from error


class _Step:
    """See `sfpubsub.spark.tables.steps.Step`."""

    def __init__(self, plan: StepPlan, target: Target, types: EventTypes) -> None:
        self.plan = plan
        self.target = target
        self._types = types

    def rows(self, event_type: str) -> DataFrame:
        """See `sfpubsub.spark.tables.steps.Step`."""
        rows = self.target.table(event_type).read()
        rows = rows.where(f.col("batch").isin(*(batch.id for batch in self.plan.batches)))
        if self.plan.kind == "redecode":
            rows = rows.where(f.col("schema_id").isin(*self.plan.schema_ids))
        return rows

    def decoding(self, event_type: str) -> Plan:
        """See `sfpubsub.spark.tables.steps.Step`."""
        return self._types.plan(event_type)


def _is_one_of(column: str, texts: Sequence[str]) -> str:
    """Return the SQL condition that *column* is one of *texts*; ``false`` if *texts* is empty."""
    quoted = ", ".join(map(sql_text, texts))
    return f"{column} IN ({quoted})" if texts else "false"


def _reasons(files: Sequence[bytes]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for content in files:
        found.update(pq.read_table(io.BytesIO(content), columns=["reason"])["reason"].to_pylist())
    return dict(found)
