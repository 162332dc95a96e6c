"""Iceberg tables, through what Spark and Iceberg document: SQL, DataFrames and metadata tables.

Each of our changes has a *note*, a text that is unique to it and that its snapshot keeps. A change
takes these steps, each of which is a commit to the table:

1. *Stage*: the change becomes a snapshot on a branch of its own. Iceberg never rejects an append
   because of a concurrent one, and never an SQL statement that only adds rows. It builds the
   snapshot on whatever is the newest one by then. So what it was built on is read again.
2. *Publish*: ``fast_forward`` makes the branch the main one, which fails unless the main branch is
   still at the snapshot that the change was built on. Then the change is staged again.
3. *Copy* the note to a table property, because the snapshot may expire after other programs have
   added newer ones.
4. *Drop* the branch.

A process can be killed between two steps. A branch that it leaves is never published, and the next
change drops it. A note that was published but not copied is found in its snapshot. Only if other
programs have then added snapshots and expired this one, it is not known whether it was published
(`History.in_doubt`).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema, sql_type
from sfpubsub.spark.formats.store import (
    DONE_BYTES,
    LARGE_BYTES,
    UNORDERED,
    Files,
    Notes,
    Sessions,
    TableStore,
    Told,
)
from sfpubsub.spark.runtime.arrow import arrow_schema, frame_of_rows
from sfpubsub.spark.runtime.paths import EXACT_PATHS, Location, is_object_store
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.runtime.sql import pairs_in_sql, quoted, sql_text

WAP_ID = "spark.wap.id"
"""Session setting that turns what an SQL statement commits into a snapshot on no branch. The
setting's value becomes a property of the snapshot.
"""

# Table property that enables `WAP_ID`.
_STAGING = {"write.wap.enabled": "true"}

# Other properties of tables that we create.
_PROPERTIES = {
    "format-version": "2",
    # Each change creates five metadata files: keep only the latest 100.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.distribution-mode": "none",
}

# Columns whose minimum and maximum in each file are not stored: those without a meaningful order,
# and those for which they would be useless.
_UNBOUNDED = (*UNORDERED, "event_id", "payload", "payload_json")

# For changes, mark rows as deleted and write new ones, instead of rewriting whole files.
_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("delete", "update", "merge")}

# Table property: a random id, because no query returns Iceberg's own.
IDENTITY = "sfpubsub.id"

# Table property: the snapshot whose note was copied last.
COPIED = "sfpubsub.snapshot"

# Begin the names of our properties, and the values of those that are encoded.
_OURS, _HEX = "sfpubsub.", "hex:"

_MAIN = "main"
_STAGED = "sfpubsub_"  # begins the name of a branch with a staged change
_CATALOG = "sfpubsub_"  # begins the name of our catalog for the tables in a directory

# Number of files with deletes of a data file's rows, from which on a compaction rewrites the file.
_MOST_DELETES = 10

# Attempts to publish. An attempt fails only if something else was committed within the same few
# tenths of a second.
_TRIES = 5


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that is in a table's metadata."""

    id: int
    parent: int | None
    """Id of the snapshot that it was built on, which may have expired."""
    note: str | None
    """Our note, or whatever another program has stored in the same place."""


@dataclass(frozen=True)
class History:
    """The snapshots of a table at one time."""

    snapshots: Mapping[int, Snapshot]
    refs: Mapping[str, int]
    """The newest snapshot of each branch, and that of each tag, by name."""

    @property
    def tip(self) -> int | None:
        """The newest snapshot of the main branch; None if there is none."""
        return self.refs.get(_MAIN)

    def main(self) -> Iterator[Snapshot]:
        """Yield the snapshots of the main branch, newest first, up to the first that expired."""
        id_ = self.tip
        while id_ is not None and id_ in self.snapshots:
            yield self.snapshots[id_]
            id_ = self.snapshots[id_].parent

    @property
    def left(self) -> list[Snapshot]:
        """The newest snapshots of branches that killed processes have left."""
        ids = {id_ for name, id_ in self.refs.items() if name.startswith(_STAGED)}
        return [self.snapshots[id_] for id_ in ids & self.snapshots.keys()]

    @property
    def in_doubt(self) -> list[Snapshot]:
        """Those of `left` of which it is not known whether they were published.

        That is so if those snapshots of the main branch have expired that would tell.
        """
        main = list(self.main())
        known = {snapshot.id for snapshot in main}
        if not main or main[-1].parent is None:
            return []
        return [found for found in self.left if known.isdisjoint((found.id, found.parent))]

    def staged(self, note: str) -> Snapshot | None:
        """Return the staged change with this note, if it was built on the tip."""
        for found in self.snapshots.values():
            if found.note == note and self.tip in (found.parent, None):
                return found
        return None


class IcebergStore(TableStore):
    """An Iceberg table. See `TableStore`."""

    def __init__(
        self,
        sessions: Sessions,
        place: Destination,
        notes: Notes,
        scratch: Callable[[], Path | None],
    ) -> None:
        super().__init__(sessions, place, notes, scratch)
        self._key = notes.key

    @property
    def _spark(self) -> SparkSession:
        return self._sessions.plain

    @cached_property
    def _path(self) -> tuple[str, ...]:
        if self._place.in_catalog:
            check_catalog(self._spark, self._place)
        return path_of(self._spark, self._place)

    @property
    def _name(self) -> str:
        return quoted(*self._path)

    def exists(self) -> bool:
        """See `TableStore`. A table of another format counts as one without our notes."""
        return bool(self._spark.catalog.tableExists(self._name))

    def read(self, spark: SparkSession | None = None, version: str | None = None) -> DataFrame:
        """See `TableStore`."""
        spark = spark or self._spark
        name = self.in_sql(spark)
        self._refresh(spark, name)
        if version is None:
            return spark.table(name)
        return spark.read.format("iceberg").option("versionAsOf", version).table(name)

    def properties(self) -> dict[str, str]:
        """See `TableStore`. Spark hides values of others that look like secrets."""
        self._refresh(self._spark, self._name)
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        return {row["key"]: _decoded(row["value"]) for row in rows}

    def history(self) -> History:
        """Return the snapshots of the table."""
        self._refresh(self._spark, self._name)
        key = sql_text(self._key)
        rows = self._spark.sql(
            f"SELECT name, snapshot_id, NULL AS parent_id, NULL AS note "  # noqa: S608
            f"FROM {self._name}.refs UNION ALL SELECT NULL, snapshot_id, parent_id, "
            f"coalesce(summary[{key}], "
            f"if(contains(summary['wap.id'], {key}), summary['wap.id'], NULL)) "
            f"FROM {self._name}.snapshots"
        ).collect()
        refs = {name: id_ for name, id_, _, _ in rows if name is not None}
        found = {id_: Snapshot(id_, parent, note) for name, id_, parent, note in rows if not name}
        history = History(found, refs)
        # The two were read one after the other.
        return history if history.tip is None or history.tip in found else self.history()

    def identity(self) -> str:
        """See `TableStore`.

        It is the property `IDENTITY`; a table that another program has created has only Iceberg's
        own id, which is in its metadata.
        """
        ours = self.properties().get(IDENTITY)
        if ours is not None:
            return ours
        (row,) = self._spark.sql(
            f"SELECT max_by(file, timestamp) "  # noqa: S608  # a quoted name
            f"FROM {self._name}.metadata_log_entries"
        ).collect()
        reader = self._spark.read.options(**EXACT_PATHS, multiLine="true")
        return str(reader.schema("`table-uuid` STRING").json(row[0]).collect()[0][0])

    def version(self) -> str:
        """See `TableStore`. It is the id of the snapshot; ``0`` for a table without snapshots."""
        return str(self.history().tip or 0)

    def is_restored_since(self, version: str) -> bool:
        """See `TableStore`. If the snapshot *version* has expired, the result is False."""
        history = self.history()
        if int(version) in (snapshot.id for snapshot in history.main()):
            return False
        return int(version) in history.snapshots

    def create(
        self,
        columns: StructType,
        properties: Mapping[str, str],
        *,
        partition: str | None = None,
        merged: bool = False,
    ) -> None:
        """See `TableStore`."""
        found = {
            **_PROPERTIES,
            **(_MERGED if merged else {}),
            **{
                f"write.metadata.metrics.column.{name}": "none"
                for name in _UNBOUNDED
                if name in columns.names
            },
            **self._encoded({**properties, IDENTITY: uuid.uuid4().hex}),
            **_STAGING,
        }
        nothing = frame_of_rows(self._spark, [], columns)
        creation = nothing.writeTo(self._name).using("iceberg")
        for key, text in found.items():
            creation = creation.tableProperty(key, text)
        if partition is not None:
            creation = creation.partitionedBy(nothing[partition])
        creation.create()

    def adopt(self) -> None:
        """See `TableStore`."""
        if IDENTITY not in self.properties():
            self.set({IDENTITY: uuid.uuid4().hex})

    def widen(self, columns: StructType) -> None:
        """See `TableStore`."""
        missing = list(_missing(self.columns(), columns))
        if missing:
            self.alter(f"ADD COLUMNS ({', '.join(missing)})")

    def alter(self, change: str) -> None:
        """Change the table, but not its rows, with a clause of ``ALTER TABLE``."""
        self._spark.sql(f"ALTER TABLE {self._name} {change}")

    def set(self, properties: Mapping[str, str]) -> None:
        """See `TableStore`."""
        given = self._encoded(properties)
        self.alter(f"SET TBLPROPERTIES ({pairs_in_sql(given)})")

    def _encoded(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Encode the values of our properties, in which Spark must not find a secret.

        Spark shows no value of a property that contains a word such as ``url`` or ``token``
        (spark.sql.redaction.options.regex, spark.redaction.regex), as names of fields do.
        """
        ours = {key for key in properties if key == self._key or key.startswith(_OURS)}
        return {
            key: f"{_HEX}{text.encode().hex()}" if key in ours else text
            for key, text in properties.items()
        }

    def number(self) -> int | None:
        """See `TableStore`."""
        history = self.history()
        found = self._newest(history)
        copied = self._copied()
        if found is None and any(
            (self._notes.number_of(each.note) or 0) > (copied or 0) for each in history.in_doubt
        ):
            raise WriteError(
                f"{self._place} was perhaps changed once more by a process that was killed before "
                f"it recorded that; the snapshots that would tell have expired: create the table "
                f"again"
            )
        return found or copied or 0

    def told(self) -> Told:
        """See `TableStore`. A rollback changes neither the copied note nor its snapshot."""
        history, properties = self.history(), self.properties()
        newest = next(filter(self._is_ours, (each.note for each in history.main())), None)
        copied = properties.get(self._key)
        there, told = self._notes.number_of(newest), self._notes.number_of(copied)
        if told is None or (there is not None and there >= told):
            return Told(newest, there or 0)
        id_ = int(properties.get(COPIED, 0))
        is_left = id_ in (each.id for each in history.left)
        is_restored = there is not None or (id_ in history.snapshots and not is_left)
        return Told(copied, told, is_restored, is_certain=is_restored)

    def files(self) -> Files:
        """See `TableStore`. Files with deletes count as well."""
        self._refresh(self._spark, self._name)
        ((count, size),) = self._spark.sql(
            f"SELECT count(*), coalesce(sum(file_size_in_bytes), 0) FROM {self._name}.files"  # noqa: S608
        ).collect()
        return Files(count, size)

    def compact(self, where: str | None = None) -> None:
        """See `TableStore`."""
        only = "" if where is None else f", where => {sql_text(where)}"
        self._call(
            "rewrite_data_files",
            f"options => map('min-input-files', '2', 'delete-file-threshold', '{_MOST_DELETES}', "
            f"'min-file-size-bytes', '{DONE_BYTES}', 'target-file-size-bytes', '{LARGE_BYTES}')"
            f"{only}",
        )

    def expire(self, age: float) -> None:
        """See `TableStore`.

        Our notes outlive their snapshots. What killed processes have left is dropped first, while
        the snapshots that tell what was published still exist.
        """
        self.number()  # raises an error if they do not
        history = self.history()
        newest = next((each for each in history.main() if self._is_ours(each.note)), None)
        if history.left and newest is not None:
            self._finish(newest, history.refs)
        elif history.left:
            self._drop(history.refs)
        oldest = datetime.now(UTC) - timedelta(seconds=age)
        text = oldest.strftime("%Y-%m-%d %H:%M:%S")
        self._call(
            "expire_snapshots", f"older_than => TIMESTAMP {sql_text(text)}, retain_last => 1"
        )

    def _call(self, procedure: str, arguments: str) -> Any:
        """Call one of Iceberg's procedures for the table, and return its only row."""
        catalog = self._path[0]
        # A table in Spark's own catalog is reached through the session's default.
        is_catalog = self._spark.conf.get(f"spark.sql.catalog.{catalog}", None) is not None
        name = f"{quoted(catalog)}.system" if is_catalog else "system"
        table = sql_text(self._name)
        return self._spark.sql(f"CALL {name}.{procedure}(table => {table}, {arguments})").first()

    def _is_ours(self, note: str | None) -> bool:
        return self._notes.number_of(note) is not None

    def _newest(self, history: History) -> int | None:
        """Return the number of the newest change that a snapshot of the main branch records."""
        numbers = (self._notes.number_of(each.note) for each in history.main())
        return next((number for number in numbers if number is not None), None)

    def _copied(self) -> int | None:
        return self._notes.number_of(self.properties().get(self._key))

    def append(
        self, rows: pa.Table | None, number: int, note: str, *, after: int | None = None
    ) -> bool:
        """See `TableStore`."""
        columns = arrow_schema(self.columns())
        complete = columns.empty_table() if rows is None else _completed(rows, columns)
        with self._frame(complete) as frame:

            def stage(branch: str, history: History) -> None:
                # On a table without snapshots, this creates an empty one on the new branch.
                version = "" if history.tip is None else f" AS OF VERSION {history.tip}"
                self.alter(f"CREATE OR REPLACE BRANCH {branch}{version}")
                writer = frame.writeTo(f"{self._name}.branch_{branch}")
                writer = writer.option(f"snapshot-property.{self._key}", note)
                writer.option("distribution-mode", "none").append()

            return self._commit(note, stage, partial(self._is_next, number, after))

    def insert(self, rows: DataFrame, number: int, note: str) -> bool:
        """See `TableStore`."""
        columns = ", ".join(map(quoted, rows.columns))
        table = self.in_sql(self._sessions.changing)
        with self._named(rows) as name:
            statement = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {name}"  # noqa: S608
            return self._change(statement, number, note)

    def delete(self, condition: str, number: int, note: str) -> bool:
        """See `TableStore`. SQL's DELETE ignores `WAP_ID` if it removes whole files."""
        return self._change(
            f"MERGE INTO {self.in_sql(self._sessions.changing)} USING (SELECT 1) ON {condition} "
            f"WHEN MATCHED THEN DELETE",
            number,
            note,
        )

    def _change(self, statement: str, number: int, note: str) -> bool:
        def stage(_branch: str, _history: History) -> None:
            if not _STAGING.items() <= self.properties().items():
                self.set(_STAGING)
            with self._sessions.settings({WAP_ID: note}) as spark:
                self._refresh(spark, self.in_sql(spark))  # appended to in another session
                spark.sql(statement)

        return self._commit(note, stage, partial(self._is_next, number, None))

    def _is_next(self, number: int, after: int | None, history: History) -> bool:
        """Return whether a change may be made to a table with this history."""
        newest = self._newest(history)
        if newest is None:
            newest = self._copied() or 0
        return newest < number if after is None else newest == after

    def _commit(
        self,
        note: str,
        stage: Callable[[str, History], object],
        is_next: Callable[[History], bool],
    ) -> bool:
        branch = f"{_STAGED}{uuid.uuid4().hex}"
        failed: Exception | None = None
        for _ in range(2 * _TRIES):
            history = self.history()
            published = next((found for found in history.main() if found.note == note), None)
            if published is not None:  # although Spark raised an error
                self._finish(published, history.refs)
                return True
            if not is_next(history):
                return False
            staged = history.staged(note)
            if staged is None:
                try:
                    stage(branch, history)
                except SPARK_ERRORS as error:
                    if not _is_conflict(error) and self.history().tip == history.tip:
                        raise
                    failed = error  # because of a change by another program
                continue
            try:
                previous = self._publish(staged, branch, history)
            except SPARK_ERRORS as error:
                failed = error
                continue
            self._finish(staged, {branch, *history.refs})
            if previous != history.tip:
                raise WriteError(
                    f"{self._name} was rolled back during a write, which has undone that: roll it "
                    f"back again"
                )
            return True
        raise Conflict("other programs keep committing to the table: stop them") from failed

    def _publish(self, staged: Snapshot, branch: str, history: History) -> int | None:
        """Publish a staged change, and return the tip of the main branch before that."""
        if history.refs.get(branch) != staged.id:
            self.alter(f"CREATE OR REPLACE BRANCH {branch} AS OF VERSION {staged.id}")
        arguments = f"branch => {sql_text(_MAIN)}, to => {sql_text(branch)}"
        row = self._call("fast_forward", arguments)
        previous = row["previous_ref"]
        return None if previous is None else int(previous)

    def _finish(self, published: Snapshot, refs: Iterable[str]) -> None:
        """Copy the note of a published snapshot, and drop those of *refs* that are our branches."""
        self.set({self._key: str(published.note), COPIED: str(published.id)})
        self._drop(refs)

    def _drop(self, refs: Iterable[str]) -> None:
        for name in refs:
            if name.startswith(_STAGED):
                with suppress(*SPARK_ERRORS):  # the next change drops it
                    self.alter(f"DROP BRANCH IF EXISTS {name}")

    def _refresh(self, spark: SparkSession, name: str) -> None:
        # Catalogs keep tables for 30 s, and do not notice commits of other programs. Ours does not.
        if self._place.in_catalog:
            spark.catalog.refreshTable(name)


def _decoded(text: str) -> str:
    return bytes.fromhex(text.removeprefix(_HEX)).decode() if text.startswith(_HEX) else text


def _is_conflict(error: Exception) -> bool:
    return "CommitFailedException" in first_line(error)  # py4j has no class for it


def path_of(spark: SparkSession, place: Location) -> tuple[str, ...]:
    """Return the parts of a table's name, after setting up a catalog for a table in a directory.

    Args:
        spark: A session of ours.
        place: The table.
    """
    if place.in_catalog:
        return tuple(place.address.split("."))
    directory, _, name = place.url.rpartition("/")
    catalog = _CATALOG + hashlib.sha256(directory.encode()).hexdigest()[:16]
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": directory,
        ".cache-enabled": "false",
    }
    for key, text in settings.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", text)
    return catalog, name


def check_catalog(spark: SparkSession, place: Location) -> None:
    """Check that the catalog can swap a table's metadata atomically.

    Raises:
        ConfigurationError: The catalog relies on renames in an object store, which are not atomic.
    """
    catalog = f"spark.sql.catalog.{place.address.split('.')[0]}"
    kind = str(spark.conf.get(f"{catalog}.type", ""))
    made_by = str(spark.conf.get(f"{catalog}.catalog-impl", ""))
    warehouse = str(spark.conf.get(f"{catalog}.warehouse", ""))
    if (kind == "hadoop" or made_by.endswith("HadoopCatalog")) and is_object_store(warehouse):
        raise ConfigurationError(
            f"the catalog of {place} is of type hadoop, which relies on atomic renames that never "
            f"overwrite a file. {warehouse.split(':')[0]} does not support them, so commits could "
            f"be lost: use a catalog of type jdbc or rest"
        )


def _completed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with exactly these columns: those that are missing are null, at every depth."""
    kinds = {field.name: field.dataType.simpleString() for field in spark_schema(rows.schema)}
    completed = []
    for field, wanted in zip(columns, spark_schema(columns), strict=True):
        if field.name not in kinds:
            completed.append(pa.nulls(len(rows), field.type))
        elif kinds[field.name] == wanted.dataType.simpleString():
            completed.append(rows[field.name].cast(field.type))
        else:  # casts of pyarrow 18 add no fields
            completed.append(pa.array(rows[field.name].to_pylist(), field.type))
    return pa.table(completed, columns)


def _missing(there: StructType, wanted: StructType, *path: str) -> Iterator[str]:
    """Yield the definitions in SQL of the columns, and fields at every depth, that are missing."""
    for field in wanted:
        if field.name in there.names:
            yield from _missing_in(there[field.name].dataType, field.dataType, *path, field.name)
        else:
            comment = field.metadata.get("comment")
            said = f" COMMENT {sql_text(comment)}" if comment else ""
            yield f"{quoted(*path, field.name)} {sql_type(field.dataType)}{said}"


def _missing_in(there: DataType, wanted: DataType, *path: str) -> Iterator[str]:
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        yield from _missing(there, wanted, *path)
    elif isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        yield from _missing_in(there.elementType, wanted.elementType, *path, "element")
    elif isinstance(there, MapType) and isinstance(wanted, MapType):
        yield from _missing_in(there.valueType, wanted.valueType, *path, "value")


def store_of(
    sessions: Sessions, place: Destination, notes: Notes, scratch: Callable[[], Path | None]
) -> IcebergStore:
    """Return the store of an Iceberg table; see `TableStore` for the arguments."""
    return IcebergStore(sessions, place, notes, scratch)
