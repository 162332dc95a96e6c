"""Steps: what the engine is going to do, written down before it does it.

A step has a number, one more than the one before. Its plan is durable before any table is written,
and says all that the outcome depends on; the tables then take it one by one, each with the step's
number. So a step that died is done again from its plan: tables that have the number are left out,
and the others get exactly what they would have got. A step is over when all tables have it; only
then is the next one planned.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.durable import replace_file
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.batches import RawBatch
from sfpubsub.spark.tables.parquet_target import IDENTITY_FILE, STEPS_FILE, ParquetTarget
from sfpubsub.spark.tables.target import Target, parquet_of

STEPS_NAME = "_steps"

# Version of the plan, and of the layout of tables that it stands for.
_LAYOUT = 1

Kind = Literal["rows", "forget", "again", "restored", "rebuild", "beside"]

_COLUMNS = pa.schema(
    [
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("first_batch", pa.string()),
        ("last_batch", pa.string()),
        ("rows", pa.int64()),
        ("planned_at", pa.timestamp("us", tz="UTC")),
        ("plan", pa.string()),
    ]
)


@dataclass(frozen=True)
class StepPlan:
    """All that the outcome of a step depends on, beside the rows of the raw table."""

    number: int
    kind: Kind
    """``rows``: rows of raw batches are added. ``forget``: rows that could not be decoded for lack
    of schemas are taken out of `_undecodable`, because the schemas have come; ``again``, the next
    step: these rows are added. ``restored``: rows of batches that have vanished from the raw table
    are removed. ``rebuild``: all rows are removed, and raw batches begin anew. ``beside``: nothing
    for typed tables; `note` tells followers what to do."""
    batches: tuple[RawBatch, ...] = ()
    """Those whose rows are added, or removed."""
    last: RawBatch | None = None
    """The raw batch up to which rows have been added, this step's included."""
    version: str | None = None
    """The raw table's, at which the batches were seen."""
    schema_ids: tuple[str, ...] = ()
    """Of the rows' schemas, those that were known; with ``forget`` and ``again`` of which the rows
    are."""
    types: tuple[str, ...] = ()
    """Event types of which there are rows."""
    rows: int = 0
    """How many rows there are in the batches."""
    size: int = 0
    """Bytes of their payloads."""
    undecodable: bool = False
    """Whether rows are of a schema that was not known."""
    pending: tuple[RawBatch, ...] = ()
    """Batches that came back into the raw table, for the next steps."""
    note: dict[str, Any] = field(default_factory=dict)
    """With ``beside``: what followers are to do, as JSON has it."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """By which two engines that plan at the same moment are distinguished."""

    def to_json(self) -> str:
        """Return the plan as it is kept."""
        return json.dumps({"v": _LAYOUT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str, where: str) -> StepPlan:
        """Return the plan that *text* is.

        Raises:
            ConfigurationError: It was written by another version, or is damaged.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            if (layout := found.pop("v")) != _LAYOUT:
                found["layout"] = layout  # which no plan has
            for name in ("batches", "pending"):
                found[name] = tuple(RawBatch(**batch) for batch in found[name])
            found["last"] = RawBatch(**found["last"]) if found["last"] else None
            found["schema_ids"] = tuple(found["schema_ids"])
            found["types"] = tuple(found["types"])
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the steps of {where} cannot be read ({error}): make the tables anew in another "
                f"place"
            ) from error


class Step(Protocol):
    """A step that is being done, as those who make further tables of its rows see it."""

    @property
    def plan(self) -> StepPlan:
        """What is to be done. Its number is what tables take."""
        ...

    @property
    def target(self) -> Target:
        """Where the tables are."""
        ...

    def rows(self, event_type: str) -> DataFrame:
        """Return the typed rows of the step, of one of `StepPlan.types`.

        Those that it has added, or, for ``restored``, those that it is going to remove. Read from
        the typed table: the same rows each time, also when the step is done again. In no order;
        ``ingest_seq`` is the order of arrival.
        """
        ...

    def decoding(self, event_type: str) -> Plan:
        """Return how rows of an event type are decoded: its schemas so far, and its columns."""
        ...


class Follower(Protocol):
    """Makes further tables out of the typed rows of each step. Not thread-safe."""

    def follow(self, step: Step) -> None:
        """Bring the tables to the step, all of them; those that have its number are left alone.

        Called for each step: after the typed tables have taken it, where it adds rows, and before
        where it removes some. Called again with the last step when an engine starts.

        Raises:
            WriteError: It was not done. It is called again with the same step.
        """
        ...


class StepLog(ABC):
    """The steps of one target, the newest of which counts. Not thread-safe."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what the tables are made of, as `claim` was told; empty for a new target."""

    @abstractmethod
    def claim(self, identity: dict[str, Any]) -> None:
        """Write down what the tables are made of."""

    @abstractmethod
    def newest(self) -> StepPlan | None:
        """Return the newest plan; None if there is none yet."""

    @abstractmethod
    def add(self, plan: StepPlan) -> None:
        """Make a plan durable.

        Raises:
            WriteError: It could not be, or another process has planned a step with its number.
        """


class StepTable(StepLog):
    """Steps as rows of a table of the target: ``_steps``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._table = target.table(STEPS_NAME)

    def identity(self) -> dict[str, Any]:
        """See `StepLog`."""
        facts = self._table.facts()
        return dict(json.loads(facts["identity"])) if facts else {}

    def claim(self, identity: dict[str, Any]) -> None:
        """See `StepLog`."""
        self._table.make(_COLUMNS, {"kind": "steps", "identity": json.dumps(identity)})

    def newest(self) -> StepPlan | None:
        """See `StepLog`."""
        number = self._table.step()
        if number == 0:
            return None
        found = self._table.read().where(f.col("step") == number).select("plan").collect()
        if len(found) != 1:
            raise WriteError(
                f"step {number} is {len(found)} times in {STEPS_NAME} of {self._target.place}: "
                f"make the tables anew with sfpubsub tables rebuild"
            )
        return StepPlan.from_json(found[0]["plan"], str(self._target.place))

    def add(self, plan: StepPlan) -> None:
        """See `StepLog`."""
        row = {
            "step": plan.number,
            "kind": plan.kind,
            "first_batch": plan.batches[0].id if plan.batches else None,
            "last_batch": plan.batches[-1].id if plan.batches else None,
            "rows": plan.rows,
            "planned_at": time.time_ns() // 1000,
            "plan": plan.to_json(),
        }
        if not self._table.append([parquet_of(pa.Table.from_pylist([row], _COLUMNS))], plan.number):
            raise WriteError(
                f"step {plan.number} of {self._target.place} was planned by another process: run "
                f"one for each target"
            )


class StepFile(StepLog):
    """The newest step of a Parquet target, in a file."""

    def __init__(self, target: ParquetTarget) -> None:
        self._path = target.path

    def identity(self) -> dict[str, Any]:
        """See `StepLog`."""
        text = self._read(IDENTITY_FILE)
        try:
            return {} if text is None else dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self._path / IDENTITY_FILE} cannot be read: {error}"
            ) from error

    def claim(self, identity: dict[str, Any]) -> None:
        """See `StepLog`."""
        self._write(IDENTITY_FILE, json.dumps(identity))

    def newest(self) -> StepPlan | None:
        """See `StepLog`."""
        text = self._read(STEPS_FILE)
        return None if text is None else StepPlan.from_json(text, str(self._path))

    def add(self, plan: StepPlan) -> None:
        """See `StepLog`."""
        self._write(STEPS_FILE, plan.to_json())

    def _read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WriteError(f"{self._path / name} cannot be read: {error}") from error

    def _write(self, name: str, text: str) -> None:
        try:
            replace_file(self._path / name, text)
        except OSError as error:
            raise WriteError(f"{self._path / name} was not written: {error.strerror}") from error


def steps_of(target: Target) -> StepLog:
    """Return the steps of a target."""
    return StepFile(target) if isinstance(target, ParquetTarget) else StepTable(target)
