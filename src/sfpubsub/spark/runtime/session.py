"""Start Spark sessions that log little, use a suitable Java and, if local, listen only on loopback.

No Salesforce credentials are passed to Spark, neither in its configuration nor in the JVM's
environment.
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
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.java import find_java_home
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.process import Process, jvm_ended, running_jvm
from sfpubsub.spark.runtime.runtimes import check_session, session_settings
from sfpubsub.spark.runtime.sql import READING

# One core writes, because a batch is one file. The other core is for the driver's own work.
DEFAULT_MASTER = "local[2]"

# Environment variable of a process started by spark-submit, which has already started the JVM.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


# Names of settings that Spark redacts (its default of spark.redaction.regex), and of account keys.
_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|account[.]?key|credential")

# Exceptions raised when Spark fails: its own, py4j's, and those of the sockets between Python and a
# JVM that has exited.
SPARK_ERRORS = (PySparkException, Py4JError, OSError, EOFError)


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make *spark* the thread's active session within the block, because some formats use it."""
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
    """Create a DataFrame with `createDataFrame`, but do not leave *spark* as the active session."""
    with active_session(spark):
        return spark.createDataFrame(rows, schema)


@contextmanager
def spark_session(
    master: str | None = None,
    *,
    format: str = "parquet",  # noqa: A002  # named as in Spark
    app_name: str = "sfpubsub",
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start a Spark session, and stop it at the end of the block.

    If the process has a session already, that one is used, and left running.

    Under spark-submit, the session uses the JVM that spark-submit has started.

    Start the session before using gRPC, because starting the JVM forks the process, and a process
    with gRPC threads may not survive a fork.

    Args:
        master: Spark's master URL. By default, ``local[2]`` or, under spark-submit, its master.
        format: The table format to write. ``parquet`` needs no jars; for ``delta`` and ``iceberg``
            the session gets their jars (runtimes.py). Under spark-submit, pass the jars with
            ``--packages``.
        app_name: The application's name in Spark.
        java_options: Further options for the driver's JVM.
        settings: Further Spark settings, which override the defaults of this function. Lists, such
            as ``spark.jars`` and the driver's Java options, are combined with the defaults.

    Raises:
        ConfigurationError: No suitable Java was found, the JVM did not start, the master could not
            be reached, or the jars of *format* do not exist for this PySpark version or could not
            be downloaded.
    """
    # py4j logs every lost connection with a traceback, partly on the root logger. Each is also
    # raised as an exception.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger().addFilter(_not_of_py4j)
    submitted = _SUBMITTED in os.environ
    if master is None and not submitted:
        master = DEFAULT_MASTER
    given = dict(settings or {})
    wanted = {**_settings(master, java_options), **given}
    if "spark.driver.extraJavaOptions" in given:  # appended to our own, which silence the log
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
        # Local executors use this Python; Spark's default is the first one on the PATH.
        environment["PYSPARK_PYTHON"] = sys.executable
    is_ours = SparkContext._active_spark_context is None
    try:
        with _environment(environment):
            _start_java(wanted)
            spark = builder.getOrCreate()
    except SPARK_ERRORS as error:
        reason = _without_secrets(first_line(error), wanted)
        if "spark.jars.packages" in wanted:
            raise ConfigurationError(
                f"Spark did not start (master {master}): {reason}; check that the jars of "
                f"{wanted['spark.jars.packages']} can be downloaded: they are fetched once from "
                f"Maven Central and cached in {wanted.get('spark.jars.ivy', 'the Ivy cache')}"
            ) from error
        java = environment.get("JAVA_HOME", "spark-submit's")
        raise ConfigurationError(
            f"Spark did not start (master {master}, Java {java}): {reason}"
        ) from error
    try:
        if format != "parquet":
            check_session(spark, format)
        if format == "delta" and is_ours:
            _leave_out_checksum_files(spark)
        yield spark
    finally:
        if is_ours:
            _stop(spark)


def is_java_running() -> bool:
    """Return whether this process has started Spark's JVM."""
    return SparkContext._gateway is not None


def _leave_out_checksum_files(spark: SparkSession) -> None:
    """Stop the JVM from writing a ``.crc`` file for each file on a local disk.

    Delta's log does not use these files, and Hadoop starts a process (chmod) for each of them.
    Starting these processes accounts for half the duration of a small commit.
    """
    files = java_class(spark, "org.apache.hadoop.fs.FileSystem")
    local = files.getLocal(spark._jsparkSession.sessionState().newHadoopConf())
    local.setWriteChecksum(False)


def _start_java(settings: Mapping[str, str]) -> None:
    """Start the JVM without the secret settings.

    PySpark would put all settings on the JVM's command line, which every user of the machine can
    read. The secret ones are passed when the session is created, over py4j's connection to the JVM.
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
    """Return the first line of a Spark error, without the JVM's stack trace."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        try:
            return str(cause.toString()).splitlines()[0]
        except (Py4JError, OSError):  # the exception is an object of a JVM that has exited
            pass
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    # Only the connection to the JVM fails in these ways. What the JVM answers has a trace; a call
    # without an answer is a plain Py4JError without one.
    is_unanswered = type(error) is Py4JError and "Trace:" not in str(error)
    if is_unanswered or isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)):
        return jvm_ended(text)
    return text


def _settings(master: str | None, java_options: str) -> dict[str, str]:
    options = [java_options] if java_options else []
    if "SPARK_CONF_DIR" not in os.environ:
        log = Path(__file__).with_name("log4j2.properties")
        options.append(f'"-Dlog4j2.configurationFile={log.as_uri()}"')
    settings = {
        "spark.ui.enabled": "false",  # would open a port
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(options),
    }
    if master is not None and master.startswith("local"):
        # With a local master, nothing outside this machine may connect to the driver.
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment variables within the block, in which the JVM is started.

    Apply *changes*, and remove the ``SFPUBSUB_`` variables, which may contain credentials. All
    variables are restored afterwards.
    """
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
        # The JVM has exited. Its failure was already raised where it was used.
        logging.getLogger("sfpubsub.spark").debug("Spark had exited before it was stopped")


# Settings of our own sessions. The second makes the number of partitions of a persisted DataFrame
# depend on its size. Otherwise even a few rows would have `spark.sql.shuffle.partitions` (200)
# partitions, and the same number of files.
_OWN = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    **READING,
}


def own_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a new session of the same JVM with its own settings and with UTC as its time zone."""
    own = spark.newSession()
    for name, value in {**_OWN, **(settings or {})}.items():
        own.conf.set(name, value)
    return own


def jvm_of(spark: SparkSession) -> Process:
    """Return the process of the JVM used by this session.

    Raises:
        ConfigurationError: The session uses Spark Connect, or was stopped.
        WriteError: The JVM has exited.
    """
    try:
        jvm = spark.sparkContext._jvm
    except PySparkException as error:  # Spark Connect: its driver is a remote process
        raise ConfigurationError(
            "the writer needs a Spark session whose driver this process started, not Spark "
            "Connect: leave out .remote(…)"
        ) from error
    if jvm is None:
        raise ConfigurationError("the Spark session has been stopped: start another one")
    return running_jvm(int(jvm.java.lang.ProcessHandle.current().pid()))
