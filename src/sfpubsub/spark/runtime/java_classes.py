"""Access classes of Spark's JVM by their fully qualified names.

With ``spark._jvm.org.apache…`` py4j asks the JVM about each part of a name, and the JVM searches
all its jars for a class ``org``, then ``org.apache`` and so on: about 10 ms of CPU time for each
use of a class.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM. A missing class is detected only when it is used.

    Args:
        spark: A classic Spark session.
        name: Fully qualified name; nested classes are separated by ``$``.
    """
    jvm: Any = spark._jvm
    return JavaClass(name, jvm._gateway_client)
