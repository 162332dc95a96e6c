"""Store the plans of steps (records/step.py) in the table `_steps`, before they are executed."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as f

from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.target import Target, parquet_of
from sfpubsub.spark.records.step import StepPlan

STEPS_NAME = "_steps"

# The table keeps the plans of at least the newest _KEPT steps, for people who look into it. Older
# ones are removed every _TRIM_EVERY steps: a removal takes as long as some dozens of steps, and a
# start reads at most the sum of both, one row per file, and one row for each subject.
_KEPT = 100
_TRIM_EVERY = 500

# What to do about tables that cannot be continued, for error messages.
CURE = "build the tables again with sfpubsub tables rebuild"

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


class StepTable:
    """Stores the steps of one target as rows of its table ``_steps``. Not thread-safe.

    The table contains the plans of the newest steps, and the newest plan of each
    `StepPlan.subject`, so a start reads a limited number of rows and files. Before a step is added,
    old plans may be removed as its first part. The newest plan is always kept, so the next process
    finds it wherever a removal is killed.
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
        number = self._table.step() or self._in_rows()
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
        if not self._table.append([file], plan.number):
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
        self._table.delete(condition, number, 0)
