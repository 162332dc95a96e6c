"""The raw table in Delta format.

Each of our transactions is a Delta commit. Its user metadata is the `State`, and its ``txnVersion``
for our application id is the state's number. If the table already has the same or a higher number,
Delta skips the commit without an error. So each commit is verified by reading it from the log.
Delta rejects a transaction if a concurrent commit has changed the number that it has read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.frames import column_definitions
from sfpubsub.spark.raw.layout import PARTITION, STORED
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.state import APPLICATION, State
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.runtimes import check_session, delta_settings
from sfpubsub.spark.runtime.session import SPARK_ERRORS, active_session, first_line
from sfpubsub.spark.runtime.sql import quoted, sql_text


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
        self._url = place.url
        """Location of the table; for a catalog table, valid once the table exists."""
        self._exists = False
        self._jvm: Any = self._spark._jvm
        for name, value in delta_settings(local=place.local is not None).items():
            self._spark.conf.set(name, value)
        # Store no minimum and maximum: they imply an order, which replay ids do not have.
        self._spark.conf.set("parquet.column.statistics.enabled#replay_id", "false")

    def _load(self) -> State | None:
        self._exists = self._find()
        if not self._exists:
            return None
        log = self._log()
        snapshot = log.unsafeVolatileSnapshot()
        self._is_restored = False
        for commit in self._commits(log, snapshot.version()):
            state = self._state_of(commit)
            if state is not None:
                return state if not self._is_restored else self._from_rows(state)
            # A restore invalidates our commits before it.
            self._is_restored = self._is_restored or commit.get("operation") == "RESTORE"
        # The log keeps a commit for 30 days (delta.logRetentionDuration), and its number forever.
        with active_session(self._spark):  # reading the numbers may run Spark jobs
            numbers = snapshot.transactions()
            names = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(numbers)
        if not any(str(name) == APPLICATION for name in names):
            return self._adopted(self._rows())
        number = int(numbers.get(APPLICATION).get())
        return self._from_rows(replace(State.first(self._sources, self._writer), number=number))

    def _find(self) -> bool:
        """Return whether the table exists; for a catalog table, also find its location.

        Raises:
            ConfigurationError: The catalog's table has another format.
        """
        if not self.place.in_catalog:
            java = self._jvm.io.delta.tables.DeltaTable
            return bool(java.isDeltaTable(self._spark._jsparkSession, self._url))
        if not self._spark.catalog.tableExists(self.place.in_sql):
            return False
        try:
            (found,) = self._spark.sql(f"DESCRIBE DETAIL {self.place.in_sql}").collect()
        except AnalysisException as error:
            raise ConfigurationError(
                f"{self.place} is not a table of format delta: {first_line(error)}"
            ) from error
        if found["format"] != "delta":
            raise ConfigurationError(
                f"{self.place} is a table of format {found['format']}: choose another destination, "
                f"or write in the table's format"
            )
        self._url = str(found["location"])
        return True

    def _create(self) -> None:
        """Create an empty catalog table, unless it already exists, and find its location."""
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.place.in_sql} ({column_definitions(STORED)}) "
            f"USING delta PARTITIONED BY ({PARTITION})"
            + (f" TBLPROPERTIES ({self._pairs})" if self._properties else "")
        )
        self._find()

    def _set_properties(self) -> None:
        """Set the table's properties in SQL, unless the commit that created the table set them all.

        For a table that is not in a catalog, that commit ignores properties whose names do not
        begin with ``delta.``.
        """
        if not all(key.startswith("delta.") for key in self._properties):
            name = quoted("delta", self._url)
            self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({self._pairs})")

    @property
    def _pairs(self) -> str:
        return ", ".join(f"{sql_text(k)} = {sql_text(v)}" for k, v in self._properties.items())

    def _log(self) -> Any:
        """Return Delta's log of the table, updated to the newest version."""
        spark = self._spark._jsparkSession
        none = self._jvm.scala.Option.empty()
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark, self._url)
        log.update(False, none, none)
        return log

    def _commits(self, log: Any, version: int) -> Iterator[dict[str, Any]]:
        """Yield the ``commitInfo`` of each commit, from *version* backwards.

        Stop at the first commit whose file is no longer in the log.
        """
        io = self._jvm.java.io
        directory = log.logPath()
        files = directory.getFileSystem(log.newDeltaHadoopConf())
        while version >= 0:
            path = self._jvm.org.apache.hadoop.fs.Path(directory, f"{version:020d}.json")
            if not files.exists(path):
                return
            lines = io.BufferedReader(io.InputStreamReader(files.open(path), "UTF-8"))
            try:
                yield _commit_info(iter(lines.readLine, None))
            finally:
                lines.close()
            version -= 1

    def _state_of(self, commit: dict[str, Any]) -> State | None:
        return State.from_json(commit.get("userMetadata"), str(self.place))

    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        try:
            is_new = not self._exists
            if is_new and self.place.in_catalog:
                self._create()
            writer = frame.write.format("delta").mode("append").options(**self._options(state))
            if self.place.in_catalog:
                writer.saveAsTable(self.place.in_sql)
            # The first commit creates the table: SQL cannot create one in an existing directory.
            elif is_new:
                writer = writer.partitionBy(PARTITION).options(**self._properties)
                writer.save(self._url)
                self._set_properties()
            else:
                self._add(frame, state)
            self._exists = True
        except SPARK_ERRORS as error:
            if _is_conflict(error):
                raise Conflict(first_line(error)) from error
            raise
        log = self._log()
        for commit in self._commits(log, log.unsafeVolatileSnapshot().version()):
            found = self._state_of(commit)
            if found is not None and found.attempt == state.attempt:
                return
            if found is not None and found.number <= state.number:
                break
        raise Conflict(
            f"Delta wrote no rows, because the table already has transaction {state.number}: "
            f"use only one writer for each table"
        )

    def _add(self, frame: DataFrame, state: State) -> None:
        """Commit the transaction, unless the table already has its number or a higher one.

        This has the same result as Delta's own writer, but is faster. Delta's writer looks up the
        number in the complete state of the table. After each commit, Delta recomputes that state
        with three Spark jobs, whereas the write itself needs only one job.
        """
        spark = self._spark
        delta = "org.apache.spark.sql.delta"
        nothing = java_class(spark, "scala.Option").empty()
        empty = java_class(spark, "scala.Predef").Map().empty()
        append = java_class(spark, "org.apache.spark.sql.SaveMode").Append
        with active_session(spark):
            log, session = self._log(), spark._jsparkSession
            transaction = log.startTransaction()
            if transaction_number(spark, transaction.snapshot(), APPLICATION) >= state.number:
                return
            # Register the read of the number, as Delta's writer does. Then a concurrent commit with
            # this application id is a conflict.
            transaction.readTxn().addOne(APPLICATION)
            given = empty
            for name, value in self._options(state).items():
                given = given.updated(name, value)
            options = java_class(spark, f"{delta}.DeltaOptions")(
                given, session.sessionState().conf()
            )
            # No partition columns or properties are passed, so those of the table apply.
            write = java_class(spark, f"{delta}.commands.WriteIntoDelta")(
                log, append, options, empty.keys().toSeq(), empty, frame._jdf, *[nothing] * 2, False
            )
            actions = write.write(transaction, session, nothing, False)
            operation = java_class(spark, f"{delta}.DeltaOperations$Write")(
                append, nothing, nothing, options.userMetadata(), *[nothing] * 5
            )
            transaction.commit(actions, operation)

    def _options(self, state: State) -> dict[str, str]:
        return {
            "userMetadata": state.to_json(),
            "txnAppId": APPLICATION,
            "txnVersion": str(state.number),
        }

    def _rows(self) -> DataFrame:
        if self.place.in_catalog:
            return self._spark.read.table(self.place.in_sql)
        return self._spark.read.format("delta").load(self._url)


def transaction_number(spark: SparkSession, snapshot: Any, application: str) -> int:
    """Return an application's latest transaction number in a snapshot of the log; 0 if it has none.

    The number is read from the checksum file in the log if possible; otherwise Delta computes the
    table's state, with three Spark jobs.
    """
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if known.isDefined():
        converters = java_class(spark, "scala.jdk.javaapi.CollectionConverters")
        for transaction in converters.asJava(known.get()):
            if transaction.appId() == application:
                return int(transaction.version())
    number = snapshot.transactions().get(application)
    return int(number.get()) if number.isDefined() else 0


def _commit_info(lines: Iterator[str]) -> dict[str, Any]:
    """Return the ``commitInfo`` among the lines of a commit's log file; empty if it is missing.

    Delta usually writes it as the first line.
    """
    for line in lines:
        if '"commitInfo"' in line:
            found = json.loads(line).get("commitInfo")
            if found is not None:
                return dict(found)
    return {}


def _is_conflict(error: BaseException) -> bool:
    java = getattr(error, "java_exception", None)
    try:
        return java is not None and "io.delta.exceptions.Concurrent" in java.getClass().getName()
    except (Py4JError, OSError):  # the exception is an object of a JVM that has exited
        return False
