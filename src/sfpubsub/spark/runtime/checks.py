"""Check that a session can write a table format, and use a file system, before it is needed.

Both are tried, because nothing documented tells: reading a path that does not exist fails in one
way if Spark knows the format and the file system, and in another way if it does not.
"""

from __future__ import annotations

from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.runtimes import EXTENSIONS, configuration_of, runtime_for
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.runtime.sql import quoted

# The package that implements the file system of a URL scheme. Its version must be that of Spark's
# Hadoop.
_FILE_SYSTEMS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "wasb": "org.apache.hadoop:hadoop-azure",
    "wasbs": "org.apache.hadoop:hadoop-azure",
}

# Errors of a session without the jars of a file system.
_NO_FILE_SYSTEM = ("UnsupportedFileSystemException", "ClassNotFoundException")

# Name of a file that does not exist.
_NOTHING = "sfpubsub-nothing"


def check_file_system(spark: SparkSession, url: str) -> None:
    """Check that the session can look up files at a URL.

    Raises:
        ConfigurationError: The session lacks the jars of the file system, or cannot use it.
    """
    try:
        spark.read.format("binaryFile").load(f"{url}/{_NOTHING}")
    except SPARK_ERRORS as error:
        if "[PATH_NOT_FOUND]" in str(error):
            return
        scheme = url.partition(":")[0]
        reason = first_line(error)
        if not any(name in str(error) for name in _NO_FILE_SYSTEM):
            raise ConfigurationError(f"Spark cannot use the file system of {url}: {reason}") from (
                error
            )
        artifact = _FILE_SYSTEMS.get(scheme)
        jars = f"--packages {artifact}:{_hadoop_version()}" if artifact else "--packages"
        raise ConfigurationError(
            f"Spark has no file system for {scheme} ({reason}): use the option {jars} with its "
            f"jars, or set spark.jars.packages in your own session"
        ) from error


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Return whether the session has the jars of the file system of a scheme, such as ``s3a``.

    The URL has no host, so no server is asked.
    """
    try:
        spark.read.format("binaryFile").load(f"{scheme}:///{_NOTHING}")
    except SPARK_ERRORS as error:
        return not any(name in str(error) for name in _NO_FILE_SYSTEM)
    return True


def _hadoop_version() -> str:
    """Return the version of the Hadoop jars in PySpark; ``VERSION`` if it has none."""
    prefix = "hadoop-client-api-"
    jars = Path(pyspark.__file__).parent.glob(f"jars/{prefix}*.jar")
    return next((jar.stem.removeprefix(prefix) for jar in jars), "VERSION")


def check_session(spark: SparkSession, format: str) -> None:  # noqa: A002
    """Check that the session can write *format*.

    Raises:
        ConfigurationError: The session lacks the jars, or the settings that they need.
    """
    try:
        spark.read.format(format).load(f"file:///{_NOTHING}")
    except SPARK_ERRORS as error:
        if "[DATA_SOURCE_NOT_FOUND]" in str(error):
            runtime = runtime_for(format)
            raise ConfigurationError(
                f"this Spark session cannot write {format}: start it with spark_session(format="
                f"{format!r}), or start spark-submit or Spark Connect's server with --packages "
                f"{runtime.coordinate}{configuration_of(format)}"
            ) from error
    missing = EXTENSIONS.get(format, "")
    has_it = missing in str(spark.conf.get("spark.sql.extensions", "") or "")
    if not has_it and not (format == "delta" and _has_delta_sql(spark)):
        raise ConfigurationError(
            f"this Spark session has the jars of {format} but lacks its settings: start it with "
            f"spark_session(format={format!r}), or start spark-submit or Spark Connect's server "
            f"with{configuration_of(format)}"
        )


def _has_delta_sql(spark: SparkSession) -> bool:
    """Return whether Delta is built into the session, as on Databricks, without the setting."""
    try:
        spark.sql(f"DESCRIBE DETAIL {quoted('delta', f'file:///{_NOTHING}')}")
    except SPARK_ERRORS as error:
        return quoted("DETAIL") not in str(error)  # without Delta, a table of this name
    return True
