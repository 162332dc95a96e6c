"""List files through Spark, on any file system that the session can use."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sfpubsub.spark.runtime.session import SPARK_ERRORS


def paths_of_files(spark: SparkSession, url: str, *, most: int | None = None) -> list[str]:
    """Return the URLs of the files below a URL, without empty ones and those with hidden names.

    Their contents are not read.

    Args:
        spark: A session that can use the file system.
        url: URL of a directory that may not exist, or a pattern for the paths of files.
        most: Maximum number of URLs to return.
    """
    try:
        found = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(url)
    except SPARK_ERRORS as error:
        if "[PATH_NOT_FOUND]" in str(error):
            return []
        raise
    paths = found.select("path")
    rows = paths.collect() if most is None else paths.limit(most).collect()
    return [str(path) for (path,) in rows]
