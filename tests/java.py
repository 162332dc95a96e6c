"""How the tests start Java: with little compilation, and with Spark's classes from an archive.

Two thirds of a Spark's start go into loading and checking some 20,000 classes. From an archive of
loaded classes (Java's class data sharing) a start with a small write takes 8 s of the processor
instead of 15. ``python -m tests.java`` makes the archive beside the Python that has this PySpark,
unless the Java at hand has one. Without it everything runs as well, only slower.
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

# Code that runs for seconds is not worth the second compiler, nor a collector with threads. With
# one compiler alone, Java keeps no more than 48 MB of compiled code, which a session of the tests
# fills: a tenth of its time went into throwing code away, and more into compiling it again.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"

# An archive that another class path or Java made is refused: a line on stdout, and some of that is
# read by scripts of Spark.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"

# Settings that a Spark takes unless it is told others: code that is made for a query is compiled
# for it, and each query of the tests is new; and a small table needs few tasks.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Its own limit for a Python that connects to Java is 15 s, too short for a busy machine.
    "spark.python.authenticate.socketTimeout": "600s",
}

# What every session does, so that its classes are in the archive. With a merge and a stream it
# would take 86 s of the processor to make instead of 55, and have a twentieth more classes.
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

# Seconds for all of that and for writing the archive, which takes about 55 s of CPU time. A run of
# the tests does not wait longer for what only makes it faster.
_PATIENCE = 300.0


@functools.cache
def archive() -> Path:
    """Return where the archive for this Java and this PySpark is, or would be."""
    java = find_java_home()
    build = java / "release"
    of = build.read_bytes() if build.exists() else str(java).encode()
    build_hash = hashlib.sha256(of).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-classes-{version('pyspark')}-{build_hash}.jsa"


def options() -> str:
    """Return the options for a Java of the tests."""
    found = archive()
    if not found.exists():
        return _OPTIONS  # named and absent, not even Java's own archive is used
    return f"{_OPTIONS} -XX:SharedArchiveFile={found} {_QUIET}"


def environment() -> dict[str, str]:
    """Return what makes each Java that is started with it a Java of the tests."""
    settings = [f"-D{name}={value}" for name, value in _SETTINGS.items()]
    return {"JDK_JAVA_OPTIONS": " ".join([options(), *settings])}


def make() -> None:
    """Make the archive unless it exists. Give up after `_PATIENCE`: no test needs it."""
    place = archive()
    if place.exists():
        return
    new = place.with_suffix(".new")
    how = {"JDK_JAVA_OPTIONS": f"{_OPTIONS} {_QUIET}"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        # A session of its own, so that Java ends with it. The output ends when Java does, which
        # writes the archive last.
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
            print(f"no archive after {_PATIENCE:.0f} s: the tests start Java without it")
            return
    if process.returncode:
        sys.exit(f"the archive was not made:\n{output}")
    new.replace(place)


if __name__ == "__main__":
    make()
