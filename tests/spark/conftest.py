"""One Spark session for the tests of this directory; a test that uses it is marked ``spark``.

It has the jars of the one table format that there is for the PySpark at hand: Delta with 4.2,
Iceberg with 4.1, in an environment of its own (scripts/test_iceberg.sh).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.runtime.session import spark_session
from tests import java
from tests.spark.object_store import ASKED_FOR, ObjectStore
from tests.spark.object_store import object_store as serve_objects

TABLE_FORMAT = "iceberg" if pyspark.__version__.startswith("4.1.") else "delta"


def lake_settings(directory: Path) -> dict[str, str]:
    """A file system that is not ``file:``, in a directory, and a catalog of tables in another."""
    return {
        "spark.hadoop.fs.viewfs.mounttable.lake.link./tables": f"file://{directory}",
        "spark.sql.catalog.shop": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.shop.type": "hadoop",
        "spark.sql.catalog.shop.warehouse": f"file://{directory}/warehouse",
        # Not the working directory, where a run that is killed would leave it.
        "spark.sql.warehouse.dir": f"file://{directory}/spark-warehouse",
    }


def jobs_begun(spark: SparkSession) -> int:
    """Return how many jobs Spark has begun: of those that it shows it keeps only the newest, and
    learns of them later."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> Iterator[None]:
    """Start the Java of the session, and that of commands, as all of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in java.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is at ``viewfs://lake/tables``."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A server with the API of S3, which the session of `spark` can reach. For tests that are slow.

    Jars cannot be added to a Java that runs: so the tests are run by themselves.
    """
    if ASKED_FOR not in os.environ:
        pytest.skip("run by scripts/test_s3.sh")
    with serve_objects(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture(scope="session")
def spark(lake: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A small session."""
    settings = lake_settings(lake)
    if ASKED_FOR in os.environ:
        settings |= request.getfixturevalue("object_store").settings
    with spark_session(format=TABLE_FORMAT, settings=settings) as session:
        yield session


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """Begin each test with its session active: one before may have made frames in another."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what uses the session.

    Where tests run side by side, two workers have a session each, for half of the work; a third
    would cost more in Java's start than it brings.
    """
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
        half = "tables" if item.path.parent.name in ("raw", "tables") else "ingest"
        item.add_marker(pytest.mark.xdist_group(f"spark-{half}"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side, begin with the session's: the longest first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("spark") is None)
