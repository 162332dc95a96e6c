"""Access classes of Spark's JVM by their fully qualified names.

With ``spark._jvm.org.apache…``, py4j asks the JVM about each part of a name. The JVM searches all
its jars for a class ``org``, then ``org.apache`` and so on, which takes about 10 ms of CPU time for
each use of a class. py4j also asks the JVM about a static method every time it is used, so the
classes here cache their static methods.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from pyspark.sql import SparkSession


class _Class(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A Java class that caches its static methods. Its static fields are read each time."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM. A missing class is detected only when it is used.

    This function and the returned class are thread-safe.

    Args:
        spark: A classic Spark session.
        name: Fully qualified name; nested classes are separated by ``$``.
    """
    jvm: Any = spark._jvm
    return _class(jvm._gateway_client, name)


@lru_cache(maxsize=64)  # more classes than this package uses
def _class(client: Any, name: str) -> Any:
    return _Class(name, client)
