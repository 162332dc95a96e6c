"""The raw table in Delta format.

Each of our transactions is a Delta commit. Its note is the `State`, and its number is the state's
(formats/delta.py). Delta commits nothing if the table already has the same or a higher number, and
rejects a commit if a concurrent one has changed the number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.delta import DeltaStore, delta_store
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.frames import column_definitions, columns_that_differ, frame_of
from sfpubsub.spark.raw.layout import PARTITION, STORED
from sfpubsub.spark.raw.logged import LoggedTable
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.state import APPLICATION, State
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.runtimes import delta_settings
from sfpubsub.spark.runtime.sql import pairs_in_sql


def delta_table(
    spark: SparkSession,
    place: Destination,
    frame: Callable[[pa.Table], AbstractContextManager[DataFrame]] | None = None,
) -> DeltaStore:
    """Return the store of a raw table. Without *frame*, it is only for reading."""

    def number_of(note: str) -> int | None:
        state = State.from_json(note, str(place))
        return None if state is None else state.number

    return delta_store(
        spark,
        APPLICATION,
        number_of=number_of,
        frame=frame or partial(frame_of, spark),
        table=place.in_sql if place.in_catalog else None,
        path=None if place.in_catalog else str(place.local or place.url),
        is_local=place.local is not None,
    )


class DeltaTable(LoggedTable):
    """A raw table in Delta format, at a path or URL or in a catalog. See `LoggedTable`."""

    def __init__(
        self,
        spark: SparkSession,
        place: Destination,
        sources: tuple[Source, ...],
        properties: Mapping[str, str] | None = None,
        org_id: str | None = None,
    ) -> None:
        check_session(spark, "delta")
        super().__init__(spark, place, sources, properties, org_id)
        self._exists = False
        for name, value in delta_settings(local=place.local is not None).items():
            self._spark.conf.set(name, value)
        # Store no minimum and maximum: they imply an order, which replay ids do not have.
        self._spark.conf.set("parquet.column.statistics.enabled#replay_id", "false")
        self._store = delta_table(self._spark, place, self._frame)

    def _load(self) -> State | None:
        self._exists = self._store.exists()
        if not self._exists:
            return None
        self._is_restored = False
        for commit in self._store.commits():
            state = State.from_json(commit.note, str(self.place))
            if state is not None:
                return state if not self._is_restored else self._from_rows(state)
            # A restore invalidates our commits before it.
            self._is_restored = self._is_restored or commit.operation == "RESTORE"
        # The log keeps a commit for 30 days (delta.logRetentionDuration), and its number forever.
        number = self._store.number()
        if number == 0:
            return self._adopted(self._rows())
        if number is None:
            # Above any count of transactions, and above the time of an earlier loss.
            number = time.time_ns() // 1000
            misfits = columns_that_differ(self._rows().schema, STORED)
            if misfits:
                raise ConfigurationError(
                    f"{self.place} is not an sfpubsub table ({'; '.join(misfits)}): choose another "
                    f"destination"
                )
        return self._from_rows(replace(State.first(self._sources, self._writer), number=number))

    def _create(self) -> None:
        """Create an empty catalog table, unless it already exists."""
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.place.in_sql} ({column_definitions(STORED)}) "
            f"USING delta PARTITIONED BY ({PARTITION})"
            + (f" TBLPROPERTIES ({pairs_in_sql(self._properties)})" if self._properties else "")
        )

    def _set_properties(self) -> None:
        """Set the table's properties in SQL, unless the commit that created the table set them all.

        For a table that is not in a catalog, that commit ignores properties whose names do not
        begin with ``delta.``.
        """
        if not all(key.startswith("delta.") for key in self._properties):
            self._store.set(self._properties)

    def _write_rows(self, rows: pa.Table | None, state: State) -> None:
        if self._exists or self.place.in_catalog:
            if not self._exists:
                self._create()
            is_done = self._store.append(rows, state.number, state.to_json())
        else:
            super()._write_rows(rows, state)
            is_done = self._store.has(state.number, state.to_json())
        self._exists = True
        if not is_done:
            raise Conflict(
                f"Delta wrote no rows, because the table already has transaction {state.number}: "
                f"use only one writer for each table"
            )

    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        # The first commit creates the table: SQL cannot create one in an existing directory.
        self._store.save(
            frame,
            state.number,
            state.to_json(),
            partition=PARTITION,
            properties=self._properties,
        )
        self._set_properties()

    def _rows(self) -> DataFrame:
        return self._store.read()
