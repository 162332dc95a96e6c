"""Start Spark sessions that log little, use a suitable Java and, if local, listen only on loopback.

No Salesforce credentials are passed to Spark, neither in its configuration nor in the JVM's
environment.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.runtime.java import find_java_home
from sfpubsub.spark.runtime.process import Process, jvm_ended
from sfpubsub.spark.runtime.runtimes import session_settings
from sfpubsub.spark.runtime.sql import READING

# One core writes, because a batch is one file. The other core is for the driver's own work.
DEFAULT_MASTER = "local[2]"

# Environment variable of a process started by spark-submit, which has already started the JVM.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


# Begins the URL of a Spark Connect server.
_CONNECT = "sc://"

# Names of settings that Spark redacts (its default of spark.redaction.regex), and of account keys.
_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|account[.]?key|credential")

# Exceptions raised when Spark fails: its own, py4j's, and those of the sockets between Python and a
# JVM that has exited.
SPARK_ERRORS = (PySparkException, Py4JError, OSError, EOFError)


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
        master: Spark's master URL, or that of a Spark Connect server (``sc://…``), for which
            *format* and *java_options* are not used. By default, the environment variable
            ``SPARK_REMOTE``, or else ``local[2]`` or, under spark-submit, its master.
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
    is_ours = SparkContext._active_spark_context is None
    if is_ours and not submitted:
        url = os.environ.get("SPARK_REMOTE") if master is None else master
        if url is not None and url.startswith(_CONNECT):
            with _remote_session(url, app_name, settings or {}) as spark:
                yield spark
            return
        _check_is_not_remote_only()
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
        if format == "delta" and is_ours:
            _leave_out_checksum_files(spark)
        yield spark
    finally:
        if is_ours:
            _stop(spark)


@contextmanager
def _remote_session(url: str, name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open a session of a Spark Connect server, and release it at the end of the block."""
    shown = url.partition(";")[0]  # parameters of the URL may be secret
    spark: Any
    try:
        spark = SparkSession.builder.remote(url).appName(name).config(map=dict(settings)).create()
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"Spark Connect's server {shown} cannot be used: {first_line(error)}; check its "
            f"address, and that it allows the settings"
        ) from error
    try:
        yield spark
    except BaseException:
        # The server may have ended, and PySpark would keep asking it to release the session. One
        # that still runs releases sessions that are not used.
        spark.release_session_on_close = False
        raise
    finally:
        _stop(spark)


def _check_is_not_remote_only() -> None:
    """Check that Spark can be started here, and not only used on a cluster of Databricks.

    Raises:
        ConfigurationError: databricks-connect is installed instead of PySpark.
    """
    if find_spec("pyspark.dbconnect_version") is not None:
        raise ConfigurationError(
            "databricks-connect is installed, so Spark runs on a cluster and cannot be started "
            "here: pass the session of DatabricksSession.builder.getOrCreate() to the job "
            "(spark=), or set SPARK_REMOTE to the cluster's URL"
        )


def is_java_running() -> bool:
    """Return whether this process has started Spark's JVM, or needs none (Spark Connect)."""
    return SparkContext._gateway is not None or is_remote()


def _leave_out_checksum_files(spark: SparkSession) -> None:
    """Stop the JVM from writing a ``.crc`` file for each file on a local disk.

    Delta's log does not use these files, and Hadoop starts a process (chmod) for each of them.
    Starting these processes accounts for half the duration of a small commit.
    """
    jvm: Any = spark._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


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


def is_connect(spark: object) -> bool:
    """Return whether a session uses Spark Connect, so that its driver may be anywhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_session(given: object) -> TypeGuard[SparkSession]:
    """Return whether an object is a session; those of Spark Connect have a class of their own."""
    return isinstance(given, SparkSession) or is_connect(given)


def own_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a new session of the same driver with its own settings and with UTC as its time zone.

    Over Spark Connect, it begins with the settings of *spark*.

    Raises:
        ConfigurationError: This version of Spark Connect cannot open a second session.
    """
    own: SparkSession
    if is_connect(spark):
        own = _connected_session(spark)
        # Otherwise gRPC may wait for ever when Python, at its exit, deletes the session.
        atexit.register(own.client.close)
    else:
        own = spark.newSession()
    for name, value in {**_OWN, **(settings or {})}.items():
        own.conf.set(name, value)
    return own


def _connected_session(spark: SparkSession) -> Any:
    clone = getattr(spark, "cloneSession", None)
    if clone is not None:
        return clone()
    # PySpark 4.0 cannot clone a session, nor tell the URL of its server.
    url = os.environ.get("SPARK_REMOTE", "local")
    if not url.startswith("sc://"):
        if "SPARK_LOCAL_REMOTE" not in os.environ:  # PySpark's mark of a server that it has started
            raise ConfigurationError(
                "PySpark 4.0 cannot open a second session of a Spark Connect server whose URL it "
                "does not know: set the environment variable SPARK_REMOTE to the URL, or use "
                "PySpark 4.1 or newer"
            )
        url = "sc://localhost"
    return SparkSession.builder.remote(url).create()


# Java's own name of the current process is its pid. Spark computes it in the driver, because the
# rows are given in the query.
_PID = "SELECT java_method('java.lang.ProcessHandle', 'current') FROM VALUES (1)"


def driver_of(spark: SparkSession) -> Process | None:
    """Return the process of the session's driver; None if it is on another machine.

    Raises:
        WriteError: It has exited, or the session was stopped.
    """
    try:
        # A new session is refused in words if Spark was stopped.
        asked = spark if is_connect(spark) else spark.newSession()
        ((pid,),) = asked.sql(_PID).collect()
    except SPARK_ERRORS as error:
        if is_connect(spark):  # a service may refuse to run Java methods
            return None
        raise WriteError(f"Spark cannot be used: {first_line(error)}; start another session") from (
            error
        )
    return Process.of(int(pid))


def driver_at(spark: SparkSession, directory: Path) -> Process:
    """Return the process of the session's driver, which uses *directory* on this machine's disk.

    Raises:
        ConfigurationError: The driver is on another machine, or has other disks.
        WriteError: See `driver_of`.
    """
    driver = driver_of(spark)
    if driver is None or (is_connect(spark) and not _is_shared(spark, directory)):
        raise ConfigurationError(
            f"{directory} is a local directory, but Spark Connect's server is on another machine: "
            f"name a URL or a table in a catalog"
        )
    return driver


def _is_shared(spark: SparkSession, directory: Path) -> bool:
    # Table formats ignore names that begin with an underscore.
    with tempfile.TemporaryDirectory(prefix="_sfpubsub-", dir=directory) as inner:
        probe, text = Path(inner, "probe"), uuid.uuid4().hex
        probe.write_text(text, encoding="ascii")
        try:
            return [tuple(row) for row in spark.read.text(f"file://{probe}").collect()] == [(text,)]
        except SPARK_ERRORS:
            return False
