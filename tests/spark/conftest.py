"""One Spark session for all tests of this directory; a test that uses it is marked ``spark``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small session: quick to compile, quick to start."""
    with spark_session(java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC") as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
