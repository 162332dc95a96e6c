"""Java options that speed up tests: less JIT compilation, and a class data sharing archive.

Two thirds of Spark's start time are spent on loading and checking about 20,000 classes. With an
archive of loaded classes (Java's class data sharing), a start with a small write takes 8 s of CPU
time instead of 15 s. ``python -m tests.java`` creates the archive in the Python environment that
contains PySpark, unless it exists for this Java version. Without the archive, tests are slower.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from sfpubsub.spark.runtime.java import find_java_home

# For runs of a few seconds, the second compiler and a parallel garbage collector do not pay off.
# With one compiler, the default code cache is 48 MB, which a test session fills: a tenth of its
# time was spent on evicting code, and more on compiling it again.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"

# Java prints a line to stdout if it rejects the archive of another class path or version. Spark's
# scripts would read that line.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"

# Default Spark settings for tests. Code generation does not pay off, because each query of the
# tests is new and would have to be compiled. Small tables need few tasks.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The default timeout for Python to connect to Java is 15 s, too short for a busy machine.
    "spark.python.authenticate.socketTimeout": "600s",
}

# Operations of every session, so that their classes are in the archive. With a merge and a stream,
# creating it would take 86 s of CPU time instead of 55 s, for 5 % more classes.
_EXERCISE = """
import sys
from sfpubsub.spark import spark_session

archive = "-XX:ArchiveClassesAtExit=" + sys.argv[2]
with spark_session(format="delta", java_options=archive) as spark:
    for format in ("delta", "parquet"):
        place = sys.argv[1] + "/" + format
        frame = spark.range(3).selectExpr("id", "cast(id as string) as name", "id % 2 as part")
        frame.write.format(format).partitionBy("part").save(place)
        spark.read.format(format).load(place).orderBy("name").collect()
"""

# Longest time for creating the archive, in seconds; it takes about 55 s of CPU time. The archive
# only makes tests faster, so a test run does not wait longer for it.
_PATIENCE = 300.0


@functools.cache
def archive() -> Path:
    """Return the path, for this Java and PySpark version, of the archive of Spark's classes.

    The archive may not exist yet.
    """
    java = find_java_home()
    build = java / "release"
    of = build.read_bytes() if build.exists() else str(java).encode()
    build_hash = hashlib.sha256(of).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-classes-{version('pyspark')}-{build_hash}.jsa"


def options() -> str:
    """Return the Java options for tests, including the class data sharing archive if it exists."""
    found = archive()
    if not found.exists():
        return _OPTIONS  # naming a missing archive would also disable Java's default archive
    return f"{_OPTIONS} -XX:SharedArchiveFile={found} {_QUIET}"


def environment() -> dict[str, str]:
    """Return environment variables that make every Java process use the options for tests."""
    settings = [f"-D{name}={value}" for name, value in _SETTINGS.items()]
    return {"JDK_JAVA_OPTIONS": " ".join([options(), *settings])}


def make() -> None:
    """Create the archive of Spark's classes unless it exists.

    Give up after `_PATIENCE` seconds, because the archive is optional.
    """
    place = archive()
    if place.exists():
        return
    new = place.with_suffix(".new")
    how = {"JDK_JAVA_OPTIONS": f"{_OPTIONS} {_QUIET}"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        # A new session, so that Java can be killed with it. The output ends when Java exits,
        # after it has written the archive.
        process = subprocess.Popen(
            [sys.executable, "-c", _EXERCISE, directory, str(new)],
            env={**os.environ, **how},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            new.unlink(missing_ok=True)
            print(f"the archive was not created within {_PATIENCE:.0f} s: tests run without it")
            return
    if process.returncode:
        sys.exit(f"the archive could not be created:\n{output}")
    new.replace(place)


if __name__ == "__main__":
    make()
