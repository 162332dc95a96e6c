"""The steps of the engine (engine.py), whose plans are recorded before they are executed.

A step is one unit of work on the tables of a target, such as adding the rows of some raw batches;
see `StepPlan.kind`. Steps are numbered consecutively. A step's plan contains everything that the
outcome depends on, and is durable before any table is written. Then the tables are changed one by
one, each with the step's number. After a crash, a step is repeated from its plan: tables that have
the number are skipped, and the others receive exactly the same changes. The next step is planned
only when all tables have the changes of the current one.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.batches import RawBatch
from sfpubsub.spark.tables.target import Target, parquet_of

STEPS_NAME = "_steps"

# The table keeps the plans of at least the newest _KEPT steps, for people who look into it. Older
# ones are removed every _TRIM_EVERY steps: a removal takes as long as some dozens of steps, and a
# start reads at most the sum of both, one row per file, and one row for each subject.
_KEPT = 100
_TRIM_EVERY = 500

# Version of the plan's format and of the table layout that it implies.
_LAYOUT = 1

# What to do about tables that cannot be continued, for error messages.
CURE = "build the tables again with sfpubsub tables rebuild"

Kind = Literal["rows", "forget", "again", "rebuild", "beside"]

_COLUMNS = pa.schema(
    [
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("first_batch", pa.string()),
        ("last_batch", pa.string()),
        ("rows", pa.int64()),
        ("planned_at", pa.timestamp("us", tz="UTC")),
        ("subject", pa.string()),
        ("plan", pa.string()),
    ]
)


@dataclass(frozen=True)
class StepPlan:
    """Everything that the outcome of a step depends on, except for the rows of the raw table."""

    number: int
    kind: Kind
    """``rows``: add the rows of raw batches. ``forget``: remove the rows from `_undecodable` whose
    missing schemas are now available; ``again``, the step after it: add these rows to their tables.
    ``rebuild``: remove all rows and start over with the first raw batch; for a mirror: leave out
    all earlier batches, and read all objects again. ``beside``: leave the typed tables unchanged;
    `note` contains instructions for followers.
    """
    batches: tuple[RawBatch, ...] = ()
    """Batches whose rows are added or removed."""
    names: tuple[str, ...] | None = None
    """Names of the events whose rows the step adds; None means all. Stored with the step, because
    the target may have more objects by the time that the step is repeated.
    """
    last: RawBatch | None = None
    """The last raw batch whose rows have been added, including this step's."""
    applied_seq: int = -1
    """Highest ``ingest_seq`` of the raw rows up to this step, of any event; -1 before the first.
    Stored with the step, because old rows may be deleted from the raw table.
    """
    version: str | None = None
    """Version of the raw table in which the batches were found."""
    schema_ids: tuple[str, ...] = ()
    """Ids of the available schemas of the rows; for ``forget`` and ``again``, only of those rows
    whose schemas were missing before.
    """
    types: tuple[str, ...] = ()
    """Event types whose tables the step changes."""
    rows: int = 0
    """Number of raw rows that the step adds, including undecodable ones."""
    size: int = 0
    """Total size of the rows' payloads, in bytes."""
    undecodable: bool = False
    """Whether the schemas of some rows are missing or not valid."""
    note: dict[str, Any] = field(default_factory=dict)
    """For ``beside``: instructions for followers, as a JSON value."""
    subject: str | None = None
    """For ``beside``: what the note is about. The newest plan of each subject is never removed,
    because followers read from it what was done (`StepTable`).
    """
    totals: dict[str, Any] = field(default_factory=dict)
    """What followers have counted over all steps so far, as a JSON value."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Random id that distinguishes the plans of two engines with the same step number."""

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps({"v": _LAYOUT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str, where: str) -> StepPlan:
        """Parse the output of `to_json`.

        Args:
            text: The plan as JSON.
            where: Name of the target, for error messages.

        Raises:
            ConfigurationError: The plan is damaged or was written by an incompatible version.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            if (layout := found.pop("v")) != _LAYOUT:
                found["layout"] = layout  # an unknown name, so that `cls` raises TypeError
            found["batches"] = tuple(RawBatch(**batch) for batch in found["batches"])
            found["last"] = RawBatch(**found["last"]) if found["last"] else None
            found["names"] = None if found["names"] is None else tuple(found["names"])
            found["schema_ids"] = tuple(found["schema_ids"])
            found["types"] = tuple(found["types"])
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the steps of {where} cannot be read ({error}): build the tables in another target"
            ) from error


class Step(Protocol):
    """A step in progress, as passed to `Follower.follow`."""

    @property
    def plan(self) -> StepPlan:
        """The recorded plan, from which the step can be repeated."""
        ...

    @property
    def target(self) -> Target:
        """The target that contains the tables."""
        ...

    def rows(self, event_type: str) -> DataFrame:
        """Return the step's rows in the typed table of *event_type*, one of `StepPlan.types`.

        These are the rows that the step added. If the step is repeated, they are the same. They
        are unordered; ``ingest_seq`` is the order of arrival.
        """
        ...

    def decoding(self, event_type: str) -> Plan:
        """Return the decoding plan of an event type: its schemas so far, and its columns."""
        ...


class Follower(Protocol):
    """Builds further tables from the typed rows of each step. Not thread-safe."""

    def follow(self, step: Step) -> None:
        """Apply the step to all tables that do not have its number yet.

        Called for each step: after its rows have been added to the typed tables or, if it removes
        rows, before they are removed. After a restart of the engine, the last step is repeated
        first.

        Raises:
            WriteError: A table could not be written. The engine calls this again for the same step.
        """
        ...


class StepTable:
    """Stores the steps of one target as rows of its table ``_steps``. Not thread-safe.

    The table contains the plans of the newest steps, and the newest plan of each
    `StepPlan.subject`, so a start reads a limited number of rows and files. Step N is added as
    version 2 * N of the table; before it, old plans may be removed as version 2 * N - 1. The newest
    plan is always kept, so the next process finds it wherever a removal is killed.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._table = target.table(STEPS_NAME)
        self._newest_of: dict[str, int] | None = None
        """Number of the newest step of each subject; None until it is needed."""

    def identity(self) -> dict[str, Any]:
        """Return the identity recorded by `claim`; empty for a new target."""
        facts = self._table.facts()
        return dict(json.loads(facts["identity"])) if facts else {}

    def claim(self, identity: dict[str, Any]) -> None:
        """Record the identity of the tables, replacing the previous one."""
        self._table.make(_COLUMNS, {"kind": "steps", "identity": json.dumps(identity)})

    def newest(self, *, may_be_lost: bool = False) -> StepPlan | None:
        """Return the plan of the newest step; None before the first step.

        Args:
            may_be_lost: Whether to return an empty plan, with only the number of the newest step,
                if its plan was removed.

        Raises:
            WriteError: The plan was removed.
        """
        number = self._table.step() // 2 or self._in_rows()
        if number == 0:
            return None
        found = self._table.read().where(f.col("step") == number).select("plan").head(1)
        if not found:
            if may_be_lost:
                return StepPlan(number, "rebuild")
            raise WriteError(
                f"the plan of step {number} was removed from {STEPS_NAME} of "
                f"{self._target.place}: {CURE}"
            )
        return StepPlan.from_json(found[0]["plan"], str(self._target.place))

    def _in_rows(self) -> int:
        """Return the highest number of a step among the plans; 0 if there are none.

        It is needed if the table's log no longer has the number (`DeltaStore.number`).
        """
        if not self._table.exists():
            return 0
        return int(self._table.read().agg(f.max("step")).collect()[0][0] or 0)

    def add(self, plan: StepPlan) -> None:
        """Store a plan durably.

        Raises:
            WriteError: The plan could not be stored, or another process has planned a step with the
                same number.
        """
        if plan.number % _TRIM_EVERY == 0:
            self._trim(plan.number)
        row = {
            "step": plan.number,
            "kind": plan.kind,
            "first_batch": plan.batches[0].id if plan.batches else None,
            "last_batch": plan.batches[-1].id if plan.batches else None,
            "rows": plan.rows,
            "planned_at": time.time_ns() // 1000,
            "subject": plan.subject,
            "plan": plan.to_json(),
        }
        file = parquet_of(pa.Table.from_pylist([row], _COLUMNS))
        if not self._table.append([file], 2 * plan.number):
            raise WriteError(
                f"step {plan.number} of {self._target.place} was planned by another process: run "
                f"only one process per target"
            )
        if self._newest_of is not None and plan.subject is not None:
            self._newest_of[plan.subject] = plan.number

    def _trim(self, number: int) -> None:
        """Remove the plans of old steps, before step *number* is added."""
        if self._newest_of is None:
            rows = self._table.read().where("subject IS NOT NULL").groupBy("subject")
            found = rows.agg(f.max("step").alias("step")).collect()
            self._newest_of = {row["subject"]: row["step"] for row in found}
        oldest = number - _KEPT
        condition = f"step < {oldest}"
        kept = sorted(step for step in self._newest_of.values() if step < oldest)
        if kept:
            condition += f" AND step NOT IN ({', '.join(map(str, kept))})"
        self._table.delete(condition, 2 * number - 1)
