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

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import WriteError
from sfpubsub.spark.runtime.paths import EXACT_PATHS
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
}

# Table property: a random id, because no query returns Iceberg's own.
IDENTITY = "sfpubsub.id"

# Table property: the snapshot whose note was copied last.
COPIED = "sfpubsub.snapshot"

# Begin the names of our properties, and the values of those that are encoded.
_OURS, _HEX = "sfpubsub.", "hex:"

_MAIN = "main"
_STAGED = "sfpubsub_"  # begins the name of a branch with a staged change
_CATALOG = "sfpubsub"

# Attempts to publish. An attempt fails only if something else was committed within the same few
# tenths of a second.
_TRIES = 5


class Busy(Exception):  # noqa: N818  # never leaves the package; not a user error
    """Raised if other programs keep committing to the table, so that nothing was published."""

    def __init__(self) -> None:
        super().__init__("other programs keep committing to the table: stop them")


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


class Iceberg:
    """One Iceberg table, which need not exist.

    Args:
        spark: The session for everything but the statements of `change`. It must not have the
            setting `WAP_ID`.
        name: The parts of the table's name.
        key: Name of the property of snapshots and of the table that contains the notes.
    """

    def __init__(self, spark: SparkSession, name: Sequence[str], key: str) -> None:
        self._spark = spark
        self._name = quoted(*name)
        is_catalog = spark.conf.get(f"spark.sql.catalog.{name[0]}", None) is not None
        self._catalog = f"{quoted(name[0])}." if is_catalog else ""
        self._is_cached = name[0] != _CATALOG
        self._key = key

    def exists(self) -> bool:
        """Return whether the table exists, in any format."""
        return bool(self._spark.catalog.tableExists(self._name))

    def read(self) -> DataFrame:
        """Return the table's current rows."""
        self._refresh()
        return self._spark.table(self._name)

    def columns(self) -> StructType:
        """Return the table's columns."""
        return self.read().schema

    def properties(self) -> dict[str, str]:
        """Return the table's properties. Spark hides values of others that look like secrets."""
        self._refresh()
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        return {row["key"]: _decoded(row["value"]) for row in rows}

    def history(self) -> History:
        """Return the snapshots of the table."""
        self._refresh()
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
        """Return the id of the table; moving the table keeps it.

        It is the property `IDENTITY`; a table of an earlier version has only Iceberg's own id,
        which is in its metadata.
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
        """Return the id of the current snapshot; ``0`` for a table without snapshots."""
        return str(self.history().tip or 0)

    def is_restored_since(self, version: str) -> bool:
        """Return whether the table was rolled back to before the snapshot *version*.

        If that snapshot has expired, it is not known, and the result is False.
        """
        history = self.history()
        if int(version) in (snapshot.id for snapshot in history.main()):
            return False
        return int(version) in history.snapshots

    def create(
        self, columns: DataFrame, properties: Mapping[str, str], partition: str | None = None
    ) -> None:
        """Create the table with the columns of an empty DataFrame, and some more properties."""
        creation = columns.writeTo(self._name).using("iceberg")
        for key, text in {**_PROPERTIES, **self._encoded(properties), **_STAGING}.items():
            creation = creation.tableProperty(key, text)
        if partition is not None:
            creation = creation.partitionedBy(columns[partition])
        creation.create()

    def alter(self, change: str) -> None:
        """Change the table, but not its rows, with a clause of ``ALTER TABLE``."""
        self._spark.sql(f"ALTER TABLE {self._name} {change}")

    def set(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""
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

    def append(self, rows: DataFrame, note: str, is_next: Callable[[History], bool]) -> bool:
        """Append rows, which must have all columns of the table, as a change with a note.

        Args:
            rows: The rows, which may be none.
            note: The note.
            is_next: Whether the change may be made to a table with this history.

        Returns:
            Whether the change is in the table; False if *is_next* returned False.

        Raises:
            Busy: Other programs keep changing the table.
        """

        def stage(branch: str, history: History) -> None:
            # On a table without snapshots, this creates an empty one on the new branch.
            version = "" if history.tip is None else f" AS OF VERSION {history.tip}"
            self.alter(f"CREATE OR REPLACE BRANCH {branch}{version}")
            writer = rows.writeTo(f"{self._name}.branch_{branch}")
            writer = writer.option(f"snapshot-property.{self._key}", note)
            writer.option("distribution-mode", "none").append()

        return self._commit(note, stage, is_next)

    def change(
        self, run: Callable[[], object], note: str, is_next: Callable[[History], bool]
    ) -> bool:
        """Change the table by an SQL statement, as a change with a note.

        Args:
            run: Executes the statement in a session in which `WAP_ID` is the note. It must not be
                DELETE, which ignores that setting if it removes whole files.
            note: See `append`. It must contain the text `key`.
            is_next: See `append`.

        Returns:
            See `append`.

        Raises:
            Busy: See `append`.
        """

        def stage(_branch: str, _history: History) -> None:
            if not _STAGING.items() <= self.properties().items():
                self.set(_STAGING)
            run()

        return self._commit(note, stage, is_next)

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
        raise Busy from failed

    def _publish(self, staged: Snapshot, branch: str, history: History) -> int | None:
        """Publish a staged change, and return the tip of the main branch before that."""
        if history.refs.get(branch) != staged.id:
            self.alter(f"CREATE OR REPLACE BRANCH {branch} AS OF VERSION {staged.id}")
        (row,) = self._spark.sql(
            f"CALL {self._catalog}system.fast_forward(table => {sql_text(self._name)}, "
            f"branch => {sql_text(_MAIN)}, to => {sql_text(branch)})"
        ).collect()
        previous = row["previous_ref"]
        return None if previous is None else int(previous)

    def _finish(self, published: Snapshot, refs: Iterable[str]) -> None:
        """Copy the note of a published snapshot, and drop those of *refs* that are our branches."""
        self.set({self._key: str(published.note), COPIED: str(published.id)})
        for name in refs:
            if name.startswith(_STAGED):
                with suppress(*SPARK_ERRORS):  # the next change drops it
                    self.alter(f"DROP BRANCH IF EXISTS {name}")

    def _refresh(self) -> None:
        # Catalogs keep tables for 30 s, and do not notice commits of other programs. Ours does not.
        if self._is_cached:
            self._spark.catalog.refreshTable(self._name)


def _decoded(text: str) -> str:
    return bytes.fromhex(text.removeprefix(_HEX)).decode() if text.startswith(_HEX) else text


def _is_conflict(error: Exception) -> bool:
    return "CommitFailedException" in first_line(error)  # py4j has no class for it


def in_directory(spark: SparkSession, url: str, catalog: str = _CATALOG) -> tuple[str, str]:
    """Return the parts of a path-based table's name, after setting up a catalog for its directory.

    Args:
        spark: A session of ours. All path-based tables whose names it uses with the same *catalog*
            must be in the same directory.
        url: URL of the table.
        catalog: Name of the catalog.
    """
    directory, _, name = url.rpartition("/")
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": directory,
        ".cache-enabled": "false",
    }
    for key, text in settings.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", text)
    return catalog, name
