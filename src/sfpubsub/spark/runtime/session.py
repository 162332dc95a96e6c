"""Starts a Spark session for an ingest job: quiet, on loopback, with a Java that fits.

No credential goes to Spark: neither into its configuration nor into the JVM's environment.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.runtime.java import find_java_home
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.process import Process
from sfpubsub.spark.runtime.runtimes import check_session, session_settings

# One core writes (a batch is one file), one is left for the driver's own work.
DEFAULT_MASTER = "local[2]"

# Set by spark-submit, which has started the JVM already.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


# Settings whose values Spark itself does not show (its default of spark.redaction.regex), and keys
# of accounts.
_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|account[.]?key|credential")

# What a failing Spark raises: its own errors, py4j's, and those of the sockets between Python and
# a JVM that went away.
SPARK_ERRORS = (PySparkException, Py4JError, OSError, EOFError)


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make *spark* the thread's active session: some of what the formats do looks for it there."""
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def frame_of_rows(
    spark: SparkSession, rows: pa.Table | list[Any], schema: StructType | None = None
) -> DataFrame:
    """Return a frame as `createDataFrame` does, which would leave *spark* as the active session."""
    with active_session(spark):
        return spark.createDataFrame(rows, schema)


@contextmanager
def spark_session(
    master: str | None = None,
    *,
    format: str = "parquet",  # noqa: A002  # Spark's own word
    app_name: str = "sfpubsub",
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start a session, or take the one of spark-submit, and stop it at the end.

    Start it before anything of gRPC: the JVM is started by a fork, which a process with gRPC's
    threads in it may not survive.

    Args:
        master: Spark's master URL; ``local[2]`` by default, spark-submit's own under spark-submit.
        format: The table format that is going to be written: ``parquet`` needs nothing, for
            ``delta`` and ``iceberg`` the session gets their jars (runtimes.py). Under spark-submit
            they are an option of it.
        app_name: The application's name in Spark.
        java_options: Further options for the driver's JVM.
        settings: Further Spark settings; they win over those made here.

    Raises:
        ConfigurationError: No Java, or the JVM or the master could not be reached; or there are no
            jars of *format* for this PySpark, or they could not be obtained.
    """
    # py4j logs every lost connection with a traceback, part of it on the root logger itself; each
    # reaches us as an exception as well.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger().addFilter(_not_of_py4j)
    submitted = _SUBMITTED in os.environ
    if master is None and not submitted:
        master = DEFAULT_MASTER
    given = dict(settings or {})
    wanted = {**_settings(master, java_options), **given}
    if "spark.driver.extraJavaOptions" in given:  # added to ours, which make the log quiet
        ours = _settings(master, java_options)["spark.driver.extraJavaOptions"]
        wanted["spark.driver.extraJavaOptions"] = (
            f"{ours} {given['spark.driver.extraJavaOptions']}".strip()
        )
    if not submitted:
        wanted.update(session_settings(format, wanted))
    builder = SparkSession.builder.appName(app_name).config(map=dict(wanted))
    if master is not None:
        builder = builder.master(master)
    environment = {} if submitted else {"JAVA_HOME": str(find_java_home())}
    if master is not None and master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Executors of this machine run our Python; Spark's default is the first one on the PATH.
        environment["PYSPARK_PYTHON"] = sys.executable
    try:
        with _environment(environment):
            _start_java(wanted)
            spark = builder.getOrCreate()
    except SPARK_ERRORS as error:
        reason = _without_secrets(first_line(error), wanted)
        if "spark.jars.packages" in wanted:
            raise ConfigurationError(
                f"spark did not start (master {master}): {reason}; check that the jars of "
                f"{wanted['spark.jars.packages']} can be fetched: they come from Maven Central "
                f"once, and are kept in {wanted.get('spark.jars.ivy', 'the Ivy cache')}"
            ) from error
        java = environment.get("JAVA_HOME", "spark-submit's")
        raise ConfigurationError(
            f"spark did not start (master {master}, java {java}): {reason}"
        ) from error
    try:
        if format != "parquet":
            check_session(spark, format)
        if format == "delta":
            _leave_out_checksum_files(spark)
        yield spark
    finally:
        _stop(spark)


def _leave_out_checksum_files(spark: SparkSession) -> None:
    """Have the JVM write no ``.crc`` file beside each file on a disk of this machine.

    Delta's log does without them anyway; and Hadoop starts a process (chmod) for every file, so
    they are half the cost of a small commit.
    """
    files = java_class(spark, "org.apache.hadoop.fs.FileSystem")
    local = files.getLocal(spark._jsparkSession.sessionState().newHadoopConf())
    local.setWriteChecksum(False)


def _start_java(settings: Mapping[str, str]) -> None:
    """Start the JVM without the settings that are secret.

    PySpark would put all of them on its command line, which every user of the machine can read. The
    session gets them afterwards, through the socket.
    """
    conf = SparkConf()
    for key, value in settings.items():
        if not _SECRET.search(key):
            conf.set(key, value)
    SparkContext._ensure_initialized(conf=conf)


def _without_secrets(text: str, settings: Mapping[str, str]) -> str:
    for key, value in settings.items():
        if value and _SECRET.search(key):
            text = text.replace(value, "…")
    return text


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def first_line(error: BaseException) -> str:
    """Return what an error of Spark says first, without the stack trace of the JVM."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        try:
            return str(cause.toString()).splitlines()[0]
        except (Py4JError, OSError):  # the exception lived in a JVM that is gone
            pass
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _settings(master: str | None, java_options: str) -> dict[str, str]:
    options = [java_options] if java_options else []
    if "SPARK_CONF_DIR" not in os.environ:
        log = Path(__file__).with_name("log4j2.properties")
        options.append(f'"-Dlog4j2.configurationFile={log.as_uri()}"')
    settings = {
        "spark.ui.enabled": "false",  # a port that nobody asked for
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(options),
    }
    if master is not None and master.startswith("local"):
        # Executors of another machine must reach the driver; here nobody else may.
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Start the JVM with *changes*, and without the credentials that our own settings carry."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        del os.environ[name]
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
        os.environ.update(before)


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except SPARK_ERRORS:
        # The JVM is gone: what was wrong with it has been raised where it was used.
        logging.getLogger("sfpubsub.spark").debug("spark had ended before it was stopped")


# Of sessions of our own. What is persisted comes in partitions by its size, as elsewhere: few rows
# would have one for each of `spark.sql.shuffle.partitions`, which is 200, and then as many files.
_OWN = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}


def own_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session of the same JVM that takes times as UTC; its settings are nobody else's."""
    own = spark.newSession()
    for name, value in {**_OWN, **(settings or {})}.items():
        own.conf.set(name, value)
    return own


def jvm_of(spark: SparkSession) -> Process:
    """Return the JVM that writes for this process.

    Raises:
        ConfigurationError: The session is one of Spark Connect, or has been stopped.
        WriteError: The JVM has ended.
    """
    try:
        jvm = spark.sparkContext._jvm
    except PySparkException as error:  # Spark Connect: its driver is another's process
        raise ConfigurationError(
            "the writer needs a Spark session whose driver this process started, not Spark "
            "Connect: leave out .remote(…)"
        ) from error
    if jvm is None:
        raise ConfigurationError("the Spark session has been stopped: start another one")
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    process = Process.of(pid)
    if process is None:
        raise WriteError(f"spark's JVM (pid {pid}) has ended")
    return process
