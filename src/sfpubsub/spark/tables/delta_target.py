"""Derived tables in Delta format: at a path or URL, or in a catalog.

Each commit has the number of its step (steps.py), which a table accepts once (formats/delta.py).
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.delta import delta_store
from sfpubsub.spark.raw.frames import column_definitions, frame_of, spark_schema
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.runtimes import delta_settings
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables.logged_target import LoggedTarget, LoggedTargetTable
from sfpubsub.spark.tables.target import Place, TargetTable

# Application id of this package's transactions in Delta.
APPLICATION = "sfpubsub:tables"

# Table property that marks a table as created by this package and stores its facts.
_FACTS = "sfpubsub.facts"

# Key of the step in the note of a commit.
_STEP = "sfpubsub.step"

# Columns, mostly of times, whose minimum and maximum in each file are stored, so that readers can
# skip files. By default, Delta stores them for the first 32 columns, which include replay ids.
_BOUNDED = (
    "record_id",
    "step",
    "event_time",
    "received_at",
    "ingest_seq",
    "commit_timestamp",
    "batch",
    "_piece",
)

# Commits between checkpoints of the log, each of which costs Spark six jobs. Delta's default of 10
# is too frequent for tables with a small commit every few seconds. A new reader reads at most this
# many small log files.
_CHECKPOINT_COMMITS = 50


class DeltaTarget(LoggedTarget):
    """A target for tables in Delta format. See `Target`."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        check_session(spark, "delta")
        super().__init__(spark, place, delta_settings(local=place.local is not None))

    def _open(self, name: str) -> TargetTable:
        return DeltaTargetTable(self, name)


class DeltaTargetTable(LoggedTargetTable):
    """One Delta table. See `TargetTable`."""

    def __init__(self, target: LoggedTarget, name: str) -> None:
        super().__init__(target, name)
        place = target.place
        self._store = delta_store(
            target.spark,
            APPLICATION,
            number_of=_step_in,
            frame=partial(frame_of, target.spark),
            table=self._address if place.in_catalog else None,
            path=None
            if place.in_catalog
            else self._address
            if place.local is None
            else str(place.local / name),
            is_local=place.local is not None,
        )
        self._exists = False

    def exists(self) -> bool:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if not self._exists and self._store.exists():
                if _FACTS not in self._store.properties():
                    raise ConfigurationError(
                        f"{self._address} is a Delta table that sfpubsub did not create: choose "
                        f"another target"
                    )
                self._exists = True
        return self._exists

    def step(self) -> int:
        """See `TargetTable`. Also 0 if Delta's log no longer tells (`DeltaStore.number`)."""
        return self._step() or 0

    def _step(self) -> int | None:
        if not self.exists():
            return 0
        with self._errors("cannot be read"):
            return self._store.number()

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self._store.properties()[_FACTS]))

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return list(self._store.columns().fieldNames())

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`."""
        there = self.exists()
        # Hold the lock of the settings, because these commits would otherwise use the number that
        # another thread may have set for its table.
        with self._errors("cannot be created"), self._target.settings({}):
            if not there:
                self._create(columns, facts or {}, merged=merged)
                return
            schema = spark_schema(columns)
            if _lacking(self._store.columns().jsonValue(), schema.jsonValue()):
                self._store.widen(frame_of_rows(self._spark, [], schema))
            if facts is not None and dict(facts) != self.facts():
                self._spark.sql(
                    f"ALTER TABLE {self._store.in_sql} SET TBLPROPERTIES "
                    f"({sql_text(_FACTS)} = {sql_text(json.dumps(dict(facts)))})"
                )

    def append(self, files: Sequence[bytes], step: int) -> bool:
        """See `TargetTable`."""
        with self._errors("was not written"):
            rows = [pq.read_table(io.BytesIO(file)) for file in files]
            return self._append(pa.concat_tables(rows) if rows else None, step)

    def _append(self, rows: pa.Table | None, step: int) -> bool:
        try:
            if self._store.append(rows, step, _note(step)):
                return True
        except Conflict as error:
            raise WriteError(
                f"{self._address} was changed by another process at the same time: stop that "
                f"process ({error})"
            ) from error
        found = self._store.number()
        if found is not None and found < step:
            raise WriteError(f"{self._address} is still at step {found} instead of {step}")
        return False

    def merge(
        self,
        source: DataFrame,
        on: Sequence[str],
        step: int,
        *,
        replaced: Sequence[str] | None = None,
    ) -> None:
        """See `TargetTable`."""
        condition = " AND ".join(f"{quoted('t', name)} = {quoted('s', name)}" for name in on)
        new = ", ".join(
            f"{quoted('t', name)} = {quoted('s', name)}" for name in replaced or source.columns
        )
        columns = ", ".join(map(quoted, source.columns))
        values = ", ".join(quoted("s", name) for name in source.columns)
        with self._errors("was not changed"), self._named(source) as name:
            self._run(
                f"MERGE INTO {self._store.in_sql} t USING {name} s ON {condition} "  # noqa: S608
                f"WHEN MATCHED THEN UPDATE SET {new} "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})",
                step,
            )
        self._complete(step)

    def insert(self, source: DataFrame, step: int) -> None:
        """See `TargetTable`."""
        with self._errors("was not written"):
            self._store.save(source, step, _note(step))
        self._complete(step)

    def delete(self, condition: str, step: int) -> None:
        """See `TargetTable`."""
        with self._errors("was not changed"):
            self._run(f"DELETE FROM {self._store.in_sql} WHERE {condition}", step)  # noqa: S608
        self._complete(step)

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            return self._store.read()

    def _run(self, statement: str, step: int) -> None:
        with self._target.settings(self._store.settings(step, _note(step))):
            self._spark.sql(statement)

    def _complete(self, step: int) -> None:
        """Record a step for which Delta made no commit, because there was nothing to change.

        Raises:
            WriteError: The table has a later step.
        """
        found = self._step()
        if found is not None and found < step:
            with self._errors("was not changed"):
                self._append(None, step)
            found = self._step()
        if found not in (None, step):
            raise WriteError(
                f"{self._address} is at step {found}, but this process expected step {step}, so "
                f"another process is writing to it: stop that process"
            )

    def _create(self, columns: pa.Schema, facts: Mapping[str, str], *, merged: bool) -> None:
        properties = {
            _FACTS: json.dumps(dict(facts)),
            "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
            "delta.dataSkippingStatsColumns": ",".join(n for n in _BOUNDED if n in columns.names),
            **({"delta.enableDeletionVectors": "true"} if merged else {}),
        }
        pairs = ", ".join(f"{sql_text(k)} = {sql_text(v)}" for k, v in properties.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._store.in_sql} ({column_definitions(columns)}) "
            f"USING delta TBLPROPERTIES ({pairs})"
        )
        self._exists = True


def _lacking(there: Any, wanted: Any) -> bool:
    """Return whether the type *there* lacks fields of the type *wanted*, at any depth.

    Both types are in Spark's JSON form.
    """
    if not isinstance(wanted, dict) or not isinstance(there, dict):
        return False
    if wanted["type"] == "struct":
        fields = {field["name"].lower(): field["type"] for field in there["fields"]}
        return any(
            field["name"].lower() not in fields
            or _lacking(fields[field["name"].lower()], field["type"])
            for field in wanted["fields"]
        )
    return any(_lacking(there.get(part), wanted.get(part)) for part in ("elementType", "valueType"))


def _note(step: int) -> str:
    return json.dumps({_STEP: step, "attempt": uuid.uuid4().hex})


def _step_in(note: str) -> int | None:
    try:
        return int(json.loads(note)[_STEP])
    except (ValueError, KeyError, TypeError):
        return None  # another program's
