"""A Spark session for all tests in this directory. Tests that use it are marked ``spark``.

The session has the jars of one table format: Delta with PySpark 4.2, or Iceberg with PySpark 4.1 in
a separate environment (scripts/test_iceberg.sh).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import java
from tests.spark.object_store import ASKED_FOR, ObjectStore
from tests.spark.object_store import object_store as serve_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark is not installed in the environment of scripts/quick.sh.
HAS_SPARK = find_spec("pyspark") is not None

TABLE_FORMAT = "iceberg" if HAS_SPARK and version("pyspark").startswith("4.1.") else "delta"


def lake_settings(directory: Path) -> dict[str, str]:
    """Return Spark settings for a ``viewfs:`` file system and an Iceberg catalog in *directory*."""
    return {
        "spark.hadoop.fs.viewfs.mounttable.lake.link./tables": f"file://{directory}",
        "spark.sql.catalog.shop": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.shop.type": "hadoop",
        "spark.sql.catalog.shop.warehouse": f"file://{directory}/warehouse",
        # Outside of the working directory, where a killed run would leave it behind.
        "spark.sql.warehouse.dir": f"file://{directory}/spark-warehouse",
    }


def jobs_begun(spark: SparkSession) -> int:
    """Return the number of jobs that Spark has started, as counted by its scheduler.

    Spark's status API can miss jobs and lags behind.
    """
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> Iterator[None]:
    """Set the Java options for tests as environment variables.

    They apply to the Spark session and to the commands that tests start.
    """
    if not HAS_SPARK:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in java.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory behind ``viewfs://lake/tables``."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 server that the session `spark` can access, for slow tests.

    These tests run separately, because jars cannot be added to a running JVM.
    """
    if ASKED_FOR not in os.environ:
        pytest.skip("run by scripts/test_s3.sh")
    with serve_objects(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture(scope="session")
def spark(lake: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A Spark session with the jars of `TABLE_FORMAT`."""
    from sfpubsub.spark.runtime.session import spark_session

    settings = lake_settings(lake)
    if ASKED_FOR in os.environ:
        settings |= request.getfixturevalue("object_store").settings
    with spark_session(format=TABLE_FORMAT, settings=settings) as session:
        yield session


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """Activate the session before each test that uses it; other tests may activate another."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that use the session, and assign them to one of two groups.

    In parallel runs, two workers have a session each. A third session would take longer to start
    than it saves.
    """
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
        half = "tables" if item.path.parent.name in ("raw", "records", "tables") else "ingest"
        item.add_marker(pytest.mark.xdist_group(f"spark-{half}"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In parallel runs, start with the tests that use the session, because they take longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("spark") is None)
