"""Derived tables in Delta format: at a path or URL, or in a catalog.

Each commit has a number, which a table accepts once (formats/delta.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import WriteError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.delta import DeltaStore, delta_store
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.target import FACTS, TargetTable
from sfpubsub.spark.raw.frames import column_definitions, frame_of
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.runtimes import delta_settings
from sfpubsub.spark.runtime.sql import pairs_in_sql
from sfpubsub.spark.tables.logged_target import (
    LoggedTarget,
    LoggedTargetTable,
    note_of,
    number_in,
    step_of,
)

# Application id of this package's transactions in Delta.
APPLICATION = "sfpubsub:tables"

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

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        check_session(spark, "delta")
        super().__init__(spark, place, delta_settings(local=place.local is not None))

    def _open(self, name: str) -> TargetTable:
        return DeltaTargetTable(self, name)


class DeltaTargetTable(LoggedTargetTable):
    """One Delta table. See `TargetTable`."""

    _store: DeltaStore

    def __init__(self, target: LoggedTarget, name: str) -> None:
        place = target.place
        address = place.of(name)
        store = delta_store(
            target.spark,
            APPLICATION,
            number_of=number_in,
            frame=partial(frame_of, target.spark),
            table=address if place.in_catalog else None,
            path=None
            if place.in_catalog
            else address
            if place.local is None
            else str(place.local / name),
            is_local=place.local is not None,
        )
        super().__init__(target, name, store, store.in_sql)

    def _number(self) -> int:
        # Also 0 if Delta's log no longer tells.
        with self._errors("cannot be read"):
            return self._store.number() or 0

    def _append(self, rows: Sequence[pa.Table], number: int) -> bool:
        try:
            everything = pa.concat_tables(rows) if rows else None
            if self._store.append(everything, number, note_of(number)):
                return True
        except Conflict as error:
            raise WriteError(
                f"{self._address} was changed by another process at the same time: stop that "
                f"process ({error})"
            ) from error
        found = self._store.number()
        if found is not None and found < number:
            raise WriteError(
                f"{self._address} is still at step {step_of(found)} instead of {step_of(number)}"
            )
        return False

    def _insert(self, source: DataFrame, number: int) -> None:
        self._store.save(source, number, note_of(number))
        self._complete(number)

    def _change(self, statement: str, number: int) -> None:
        with self._target.settings(self._store.settings(number, note_of(number))):
            self._spark.sql(statement)
        self._complete(number)

    def _deletion(self, condition: str) -> str:
        return f"DELETE FROM {self._in_sql} WHERE {condition}"  # noqa: S608

    def _read(self) -> DataFrame:
        return self._store.read()

    def _complete(self, number: int) -> None:
        """Record a change for which Delta made no commit, because there was nothing to change.

        Raises:
            WriteError: The table has a later change.
        """
        found = self._store.number()
        if found is not None and found < number:
            self._append([], number)
            found = self._store.number()
        if found not in (None, number):
            raise WriteError(
                f"{self._address} is at step {step_of(found or 0)}, but this process expected step "
                f"{step_of(number)}, so another process is writing to it: stop that process"
            )

    def _widen(self, columns: StructType) -> None:
        if _lacking(self._store.columns().jsonValue(), columns.jsonValue()):
            self._store.widen(frame_of_rows(self._spark, [], columns))

    def _create(self, columns: pa.Schema, facts: str, *, merged: bool) -> None:
        properties = {
            FACTS: facts,
            "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
            "delta.dataSkippingStatsColumns": ",".join(n for n in _BOUNDED if n in columns.names),
            **({"delta.enableDeletionVectors": "true"} if merged else {}),
        }
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._in_sql} ({column_definitions(columns)}) "
            f"USING delta TBLPROPERTIES ({pairs_in_sql(properties)})"
        )


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
