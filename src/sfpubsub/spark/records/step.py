"""The steps of the engine (tables/engine.py), as the tables of records see them.

A step is one unit of work on the tables of a target, such as adding the rows of some raw batches;
see `StepPlan.kind`. Steps are numbered consecutively. A step's plan contains everything that the
outcome depends on, and is durable before any table is written. Then the tables are changed one by
one, each with the step's number. After a crash, a step is repeated from its plan: tables that have
the number are skipped, and the others receive exactly the same changes. The next step is planned
only when all tables have the changes of the current one.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from pyspark.sql import DataFrame

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.batches import RawBatch

# Name of the table with the rows that could not be decoded.
UNDECODABLE_NAME = "_undecodable"

# Version of the plan's format and of the table layout that it implies.
_LAYOUT = 1

Kind = Literal["rows", "unpark", "redecode", "rebuild", "instruction"]


@dataclass(frozen=True)
class StepPlan:
    """Everything that the outcome of a step depends on, except for the rows of the raw table."""

    number: int
    kind: Kind
    """``rows``: add the rows of raw batches. ``unpark``: remove the rows from `_undecodable` whose
    missing schemas are now available; ``redecode``, the step after it: add these rows to their
    tables. ``rebuild``: remove all rows and start over with the first raw batch; for a mirror:
    leave out all earlier batches, and read all objects again. ``instruction``: leave the typed
    tables unchanged; `note` tells followers what to do.
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
    """Ids of the available schemas of the rows; for ``unpark`` and ``redecode``, only of those rows
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
    """For ``instruction``: instructions for followers, as a JSON value."""
    subject: str | None = None
    """For ``instruction``: what the note is about. The newest plan of each subject is never
    removed, because followers read from it what was done.
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
