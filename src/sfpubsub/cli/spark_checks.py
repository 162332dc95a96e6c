"""What ``sfpubsub doctor --spark`` tells about Spark: what works in a session, and what does not.

A session is opened, as a command would do it; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from sfpubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Schemes of the file systems of common clouds and clusters.
_SCHEMES = ("s3a", "abfss", "gs", "hdfs")

# The first PySpark version in which a Python data source can read a stream as needed here.
_STREAMS = (4, 2)

Finding = tuple[str, Literal["ok", "warning", "failed"], str]


def spark_findings(master: str | None) -> Iterator[Finding]:
    """Open a session, and yield what was found: the name of a check, its result, and details.

    Args:
        master: See `sfpubsub.spark.spark_session`.

    Raises:
        ConfigurationError: No session can be opened.
    """
    import pyspark

    from sfpubsub.spark.runtime.session import is_connect, spark_session

    with spark_session(master, app_name="sfpubsub doctor") as spark:
        kind = "Spark Connect" if is_connect(spark) else "a classic session"
        yield "spark", "ok", f"PySpark {pyspark.__version__}, Spark {spark.version}, {kind}"
        yield from _java(spark)
        yield from _formats(spark)
        yield from _file_systems(spark)
        yield from _sessions(spark)
        yield from _streaming(spark)


def _java(spark: SparkSession) -> Iterator[Finding]:
    from sfpubsub.spark.runtime.java import MINIMUM_JAVA, find_java_home
    from sfpubsub.spark.runtime.session import driver_of, is_connect

    if not is_connect(spark):
        yield "java", "ok", f"{find_java_home()} is {MINIMUM_JAVA} or newer"
    elif driver_of(spark) is None:
        yield (
            "java",
            "warning",
            "the driver is on another machine: local directories cannot be used",
        )
    else:
        yield "java", "ok", "the driver is on this machine"


def _formats(spark: SparkSession) -> Iterator[Finding]:
    from sfpubsub.spark.formats import TARGET_FORMATS
    from sfpubsub.spark.runtime.checks import check_session
    from sfpubsub.spark.runtime.runtimes import runtime_for
    from sfpubsub.spark.runtime.session import is_connect

    for format_ in TARGET_FORMATS:
        try:
            check_session(spark, format_)
        except ConfigurationError as error:
            reason = str(error)
        else:
            yield f"format {format_}", "ok", "works in this session"
            continue
        try:
            runtime = runtime_for(format_)
        except ConfigurationError as error:
            yield f"format {format_}", "warning", str(error)
            continue
        if is_connect(spark):
            yield f"format {format_}", "warning", reason
        else:
            yield (
                f"format {format_}",
                "ok",
                f"jobs fetch {runtime.coordinate} when they start Spark",
            )


def _file_systems(spark: SparkSession) -> Iterator[Finding]:
    from sfpubsub.spark.runtime.checks import has_file_system

    for scheme in _SCHEMES:
        if has_file_system(spark, scheme):
            yield f"file system {scheme}", "ok", "Spark has its jars; access was not tried"
        else:
            yield f"file system {scheme}", "warning", "Spark has no jars of it: see --packages"


def _sessions(spark: SparkSession) -> Iterator[Finding]:
    from sfpubsub.spark.runtime.session import own_session

    try:
        own_session(spark)
    except ConfigurationError as error:
        yield "own session", "failed", str(error)
    else:
        yield "own session", "ok", "jobs can write in a session of their own"


def _streaming(spark: SparkSession) -> Iterator[Finding]:
    from sfpubsub.spark.runtime.session import is_connect

    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < _STREAMS:
        yield "streaming source", "warning", "needs PySpark 4.2: use sfpubsub ingest"
    elif is_connect(spark):
        yield "streaming source", "ok", "works, but not with ForeachBatchWriter (Spark Connect)"
    else:
        yield "streaming source", "ok", "works, also with ForeachBatchWriter"
