"""The raw table in Delta format.

A transaction of ours is a Delta commit: its user metadata is the `State`, and its ``txnVersion``,
for an application id of ours, is the state's number. Delta makes a commit with a number
only if the table has none that is as high, and refuses one that read an older number than another
commit has made meanwhile. A commit that it leaves out for that reason raises nothing there, so each
one is read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Destination, Source
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from sfpubsub.spark.raw.state import APPLICATION, State
from sfpubsub.spark.runtime.runtimes import check_session
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line


class DeltaTable(LoggedTable):
    """A raw table in Delta format, at a path or URL. See `LoggedTable`."""

    def __init__(
        self, spark: SparkSession, place: Destination, sources: tuple[Source, ...]
    ) -> None:
        check_session(spark, "delta")
        super().__init__(spark, place, sources)
        self._url = place.url
        self._jvm: Any = self._spark._jvm
        # Tasks that read the log's checkpoint. The default of 50 is for tables of millions of
        # files, and costs each commit of a small one 0.3 s.
        self._spark.conf.set("spark.databricks.delta.snapshotPartitions", "2")
        # A minimum and a maximum would be an order, and replay ids have none.
        self._spark.conf.set("parquet.column.statistics.enabled#replay_id", "false")

    def _load(self) -> State | None:
        java = self._jvm.io.delta.tables.DeltaTable
        if not java.isDeltaTable(self._spark._jsparkSession, self._url):
            return None
        log = self._log()
        snapshot = log.unsafeVolatileSnapshot()
        restored = False
        for commit in self._commits(log, snapshot.version()):
            state = self._state_of(commit)
            if state is not None:
                return state if not restored else self._from_rows(state)
            # What our newest commit says is no longer so.
            restored = restored or commit.get("operation") == "RESTORE"
        # The log keeps a commit for 30 days (delta.logRetentionDuration), and its number for good.
        with self._active_session():  # what is not in the newest commit, Spark computes
            numbers = snapshot.transactions()
            names = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(numbers)
            ours = [str(name) for name in names if str(name).startswith(APPLICATION)]
        if not ours:
            raise ConfigurationError(
                f"{self.place} is a delta table of somebody else's: name another destination"
            )
        application = min(ours)
        number = int(numbers.get(application).get())
        first = State.first(self._sources, self._writer)
        return self._from_rows(replace(first, number=number, application=application))

    def _log(self) -> Any:
        """Return the table's log, as it is now."""
        spark = self._spark._jsparkSession
        none = self._jvm.scala.Option.empty()
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark, self._url)
        log.update(False, none, none)
        return log

    def _commits(self, log: Any, version: int) -> Iterator[dict[str, Any]]:
        """Yield what each commit says of itself, from *version* backwards, as far as it is kept."""
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
        options = {
            "userMetadata": state.to_json(),
            "txnAppId": state.application,
            "txnVersion": str(state.number),
        }
        try:
            (
                frame.write.format("delta")
                .mode("append")
                .partitionBy("ingest_hour")
                .options(**options)
                .save(self._url)
            )
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
        raise Conflict(f"delta left the commit out: number {state.number} is taken")

    def _rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._url)


def _commit_info(lines: Iterator[str]) -> dict[str, Any]:
    """Return what a commit says of itself; it is the first line where Spark wrote it."""
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
    except (Py4JError, OSError):  # the exception lived in a JVM that is gone
        return False
