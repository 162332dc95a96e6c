"""Which jars a table format needs, for which PySpark; and how a session gets them.

The table is data: what was resolved from Maven Central and tried. A pair that is not in it is
refused with both versions and the coordinate to use, unless the session has jars of its own.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JJavaError

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.java import private_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Runtime:
    """What one table format needs with one PySpark."""

    format: str
    pyspark: str
    """The PySpark that it is made for: its first two numbers."""
    coordinate: str
    """Of Maven: what ``--packages`` takes."""
    tested: str | None
    """The PySpark that it was tested with; None if it was only resolved."""
    modules: tuple[str, ...] = ()
    """What it brings that Spark does not have itself; all else of what it asks for is left out."""


# Dependencies that Spark itself brings, most of them newer. Without these a session would load
# 90 MB more.
_SPARK_HAS = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "io.airlift:*",
    # Not all of Hadoop: a file system such as hadoop-aws may be asked for as well.
    "org.apache.hadoop:hadoop-client",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-common",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
    "commons-logging:*",
    "commons-pool:*",
    "javax.annotation:*",
    # Only for tables that are in Unity Catalog.
    "io.unitycatalog:*",
)


def _delta(spark: str, tested: str | None) -> Runtime:
    coordinate = f"io.delta:delta-spark_{spark}_2.13:4.4.0"
    return Runtime(
        "delta",
        spark,
        coordinate,
        tested,
        (
            coordinate,
            "io.delta:delta-storage:4.4.0",
            "io.delta:delta-kernel-api:4.4.0",
            "io.delta:delta-kernel-defaults:4.4.0",
            "io.delta:delta-kernel-unitycatalog:4.4.0",
            "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.13.5",
            "com.google.code.findbugs:jsr305:3.0.2",
        ),
    )


def _iceberg(spark: str, version: str, tested: str | None) -> Runtime:
    coordinate = f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{version}"
    return Runtime("iceberg", spark, coordinate, tested, (coordinate,))


RUNTIMES = (
    _delta("4.2", tested="4.2.0"),
    _delta("4.1", tested=None),
    # There is no Iceberg runtime for 4.2 yet.
    _iceberg("4.1", "1.12.0", tested="4.1.4"),
)

# The settings that a session needs for a format, and a class that shows that it has the jars.
_EXTENSIONS = {"delta": "io.delta.sql.DeltaSparkSessionExtension"}
_SETTINGS = {
    "delta": {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
}
# How Delta writes its log on a disk of this machine. Its default starts ten processes (readlink,
# chmod) for a commit, because Hadoop asks for links by command; this one starts one. Both make a
# commit by a rename, which one process at a time may do: the leases of our tables see to that.
_LOG_STORES = ("spark.delta.logStore.", "delta.logStore.")
_LOCAL_LOG_STORE = {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}
_CLASSES = {
    "delta": "io.delta.tables.DeltaTable",
    "iceberg": "org.apache.iceberg.spark.source.IcebergSource",
}


# The package with the file system of a URL scheme; its version is that of Spark's own Hadoop.
_FILE_SYSTEMS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "wasb": "org.apache.hadoop:hadoop-azure",
    "wasbs": "org.apache.hadoop:hadoop-azure",
}


def runtime_for(format: str, version: str = pyspark.__version__) -> Runtime:  # noqa: A002
    """Return what *format* needs with this PySpark.

    Raises:
        ConfigurationError: Nothing is known to work.
    """
    known = [runtime for runtime in RUNTIMES if runtime.format == format]
    short = ".".join(version.split(".")[:2])
    for runtime in known:
        if runtime.pyspark == short:
            return runtime
    others = " or ".join(f"pyspark {r.pyspark} with {r.coordinate}" for r in known)
    raise ConfigurationError(
        f"format {format} has no jars for pyspark {version}; use {others}, in an environment of "
        f"its own"
    )


def session_settings(format: str, settings: Mapping[str, str]) -> dict[str, str]:  # noqa: A002
    """Return the Spark settings with which a new session can read and write *format*.

    The jars come from Maven Central, or the repositories that Spark is set up with, and are kept;
    a later session takes them from the disk and asks nobody.

    Args:
        format: One of `sfpubsub.spark.raw.ownership.FORMATS`.
        settings: Those that the session gets otherwise; lists among them are added to.

    Raises:
        ConfigurationError: There are no jars of the format for this PySpark.
    """
    ivy = Path(settings.get("spark.jars.ivy") or private_directory() / "ivy")
    if format == "parquet":
        return {"spark.jars.ivy": str(ivy)} if "spark.jars.packages" in settings else {}
    runtime = runtime_for(format)
    jars = [ivy / "jars" / _file_name(module) for module in runtime.modules]
    lists = {"spark.sql.extensions": _EXTENSIONS.get(format, "")}
    wanted = {**_SETTINGS.get(format, {})}
    if format == "delta" and not any(key.startswith(_LOG_STORES) for key in settings):
        wanted.update(_LOCAL_LOG_STORE)
    # Ivy does not copy a jar by one step: what a start that was killed left may be a part of one.
    if all(zipfile.is_zipfile(jar) for jar in jars):
        lists["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
        if "spark.jars.packages" in settings:
            wanted["spark.jars.ivy"] = str(ivy)
    else:
        lists["spark.jars.packages"] = runtime.coordinate
        lists["spark.jars.excludes"] = ",".join(_SPARK_HAS)
        wanted["spark.jars.ivy"] = str(ivy)
    for key, text in lists.items():
        if text:
            wanted[key] = ",".join(filter(None, [settings.get(key), text]))
    return wanted


def delta_settings(*, local: bool) -> dict[str, str]:
    """Return the settings of a session that writes small Delta commits.

    Args:
        local: Whether the tables are on a disk of this machine.
    """
    settings = {
        # Tasks that read the log's checkpoint. The default of 50 is for tables of millions of
        # files, and costs each commit of a small one 0.3 s.
        "spark.databricks.delta.snapshotPartitions": "2",
        # Keeps the numbers of transactions in the checksum, so that reading ours is no job.
        "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
    }
    if local:
        # What writes the checksum beside a commit; the default starts ten processes, as above.
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager"
        )
    return settings


def check_file_system(spark: SparkSession, url: str) -> None:
    """Make sure that the session knows the file system of a URL.

    Raises:
        ConfigurationError: It lacks the jars of it.
    """
    jvm: Any = spark._jvm
    scheme = url.partition(":")[0]
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JJavaError as error:
        artifact = _FILE_SYSTEMS.get(scheme)
        version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        jars = f"--packages {artifact}:{version}" if artifact else "--packages with its jars"
        raise ConfigurationError(
            f"spark has no file system for {scheme}: ({error.java_exception.toString()}): add "
            f"{jars}, or the setting spark.jars.packages to a session of your own"
        ) from error


def check_session(spark: SparkSession, format: str) -> None:  # noqa: A002
    """Make sure that the session can write *format*.

    Raises:
        ConfigurationError: It lacks the jars, or the settings that they need.
    """
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_CLASSES[format])
    except Py4JJavaError as error:
        runtime = runtime_for(format)
        raise ConfigurationError(
            f"this Spark session cannot write {format}: start it with spark_session(format="
            f"{format!r}), or give spark-submit --packages {runtime.coordinate}"
            f"{_configuration(format)}"
        ) from error
    missing = _EXTENSIONS.get(format, "")
    if missing not in str(spark.conf.get("spark.sql.extensions", "")):
        raise ConfigurationError(
            f"this Spark session has the jars of {format} and is not set up for it: start it with "
            f"spark_session(format={format!r}), or add{_configuration(format)}"
        )


def _configuration(format: str) -> str:  # noqa: A002
    settings = dict(_SETTINGS.get(format, {}))
    if format in _EXTENSIONS:
        settings["spark.sql.extensions"] = _EXTENSIONS[format]
    return "".join(f" --conf {key}={value}" for key, value in settings.items())


def _file_name(module: str) -> str:
    """Return what Ivy calls a module's jar."""
    group, artifact, version = module.split(":")
    return f"{group}_{artifact}-{version}.jar"
