"""Reaches classes of Spark's JVM by their names.

With ``spark._jvm.org.apache…`` py4j asks the JVM what each part of a name is, and the JVM searches
all its jars for a class ``org``, one ``org.apache`` and so on: some 10 ms of a processor for each
use of a class.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM; the JVM is asked when the class is used.

    Args:
        spark: A classic session.
        name: In full; a class within another one with ``$``.
    """
    jvm: Any = spark._jvm
    return JavaClass(name, jvm._gateway_client)
