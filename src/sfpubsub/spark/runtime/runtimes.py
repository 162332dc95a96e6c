"""The jars that a table format needs for each PySpark version, and how a session obtains them.

`RUNTIMES` lists the combinations that were resolved from Maven Central and, where noted, tested.
For any other combination, `runtime_for` raises an error that names the supported ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.java import private_directory


@dataclass(frozen=True)
class Runtime:
    """The jars that one table format needs with one PySpark version."""

    format: str
    pyspark: str
    """The PySpark version that the jars are built for, as major and minor number."""
    coordinate: str
    """Maven coordinate, as used with ``--packages``."""
    tested: str | None
    """The PySpark version that the jars were tested with; None if they were only resolved."""
    modules: tuple[str, ...] = ()
    """Modules that the format needs and Spark does not include. Other dependencies are excluded."""


# Dependencies that Spark includes, mostly in newer versions. Without these exclusions a session
# would load 90 MB more.
_SPARK_HAS = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "io.airlift:*",
    "org.antlr:*",
    # Not all of Hadoop, because a file system such as hadoop-aws may be requested as well.
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
    # Only needed for tables in Unity Catalog.
    "io.unitycatalog:*",
)


_OF_DELTA_4_4 = (
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.13.5",
    "com.google.code.findbugs:jsr305:3.0.2",
)


def _delta(spark: str, coordinate: str, *others: str, tested: str | None) -> Runtime:
    return Runtime("delta", spark, coordinate, tested, (coordinate, *others))


def _iceberg(spark: str, scala: str, version: str, tested: str | None) -> Runtime:
    coordinate = f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{scala}:{version}"
    return Runtime("iceberg", spark, coordinate, tested, (coordinate,))


RUNTIMES = (
    _delta("4.2", "io.delta:delta-spark_4.2_2.13:4.4.0", *_OF_DELTA_4_4, tested="4.2.0"),
    _delta("4.1", "io.delta:delta-spark_4.1_2.13:4.4.0", *_OF_DELTA_4_4, tested=None),
    _delta(
        "4.0",
        "io.delta:delta-spark_2.13:4.0.1",
        "io.delta:delta-storage:4.0.1",
        tested=None,
    ),
    _delta(
        "3.5",
        "io.delta:delta-spark_2.12:3.3.3",
        "io.delta:delta-storage:3.3.3",
        tested="3.5.9",
    ),
    # There is no Iceberg runtime for 4.2 yet.
    _iceberg("4.1", "2.13", "1.12.0", tested="4.1.4"),
    _iceberg("4.0", "2.13", "1.10.1", tested=None),
    _iceberg("3.5", "2.12", "1.10.1", tested="3.5.9"),
)

# The settings that a session needs for a format.
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_SETTINGS = {
    "delta": {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
}
# How Delta writes its log on a local disk. The default class starts ten processes (readlink, chmod)
# per commit, because Hadoop resolves links with commands; `LocalLogStore` starts one process. Both
# commit by a rename, which is safe only if one process writes at a time, as our leases ensure.
_LOG_STORES = ("spark.delta.logStore.", "delta.logStore.")
_LOCAL_LOG_STORE = {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}


def runtime_for(format: str, version: str = pyspark.__version__) -> Runtime:  # noqa: A002
    """Return the jars that *format* needs with PySpark *version*.

    Raises:
        ConfigurationError: No jars of the format are known to work with this version.
    """
    known = [runtime for runtime in RUNTIMES if runtime.format == format]
    short = ".".join(version.split(".")[:2])
    for runtime in known:
        if runtime.pyspark == short:
            return runtime
    others = " or ".join(f"pyspark {r.pyspark} with {r.coordinate}" for r in known)
    raise ConfigurationError(
        f"format {format} has no jars for pyspark {version}; use {others}, in a separate "
        f"environment"
    )


def session_settings(format: str, settings: Mapping[str, str]) -> dict[str, str]:  # noqa: A002
    """Return the Spark settings that a new session needs to read and write *format*.

    When the session starts, Spark downloads the jars from Maven Central or the repositories that it
    is configured with, and caches them on disk. Later sessions read the cache and need no network.

    Args:
        format: One of `sfpubsub.spark.formats.FORMATS`.
        settings: The session's other settings. Those that are lists, such as ``spark.jars``, are
            extended.

    Raises:
        ConfigurationError: There are no jars of the format for this PySpark version, or there is no
            usable directory for the cache.
    """
    ivy = Path(settings.get("spark.jars.ivy") or private_directory() / "ivy")
    if format == "parquet":
        return {"spark.jars.ivy": str(ivy)} if "spark.jars.packages" in settings else {}
    runtime = runtime_for(format)
    jars = [ivy / "jars" / _file_name(module) for module in runtime.modules]
    lists = {"spark.sql.extensions": EXTENSIONS.get(format, "")}
    wanted = {**_SETTINGS.get(format, {})}
    if format == "delta" and not any(key.startswith(_LOG_STORES) for key in settings):
        wanted.update(_LOCAL_LOG_STORE)
    # Ivy does not copy jars atomically: a killed start may have left an incomplete one.
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
    """Return the settings for a session that writes small Delta commits.

    Args:
        local: Whether the tables are on a local disk.
    """
    settings = {
        # Number of tasks that read the log's checkpoint. The default of 50 is meant for tables with
        # millions of files, and adds 0.3 s to each commit of a small one.
        "spark.databricks.delta.snapshotPartitions": "2",
        # Stores the transaction numbers in the checksum file, so that reading ours needs no Spark
        # job.
        "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
    }
    if local:
        # Class that writes a commit's checksum file. The default starts ten processes, as for the
        # log (see `_LOCAL_LOG_STORE`).
        room = "" if pyspark.__version__.startswith(("3.", "4.0.")) else ".checkpointing"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            f"org.apache.spark.sql.execution.streaming{room}.FileSystemBasedCheckpointFileManager"
        )
    return settings


def configuration_of(format: str) -> str:  # noqa: A002
    """Return the settings that *format* needs, as options of spark-submit."""
    settings = dict(_SETTINGS.get(format, {}))
    if format in EXTENSIONS:
        settings["spark.sql.extensions"] = EXTENSIONS[format]
    return "".join(f" --conf {key}={value}" for key, value in settings.items())


def _file_name(module: str) -> str:
    """Return Ivy's file name for a module's jar."""
    group, artifact, version = module.split(":")
    return f"{group}_{artifact}-{version}.jar"
