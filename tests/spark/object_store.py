"""An object store with the S3 API, in a separate process, and the Spark settings to use it.

The server is moto: it is a Python package, needs no additional JVM, and supports conditional
writes, unlike an emulation on a file system. Spark uses Hadoop's S3 client and its SDK, which are
downloaded from Maven Central once (700 MB). So these tests run only on request
(scripts/test_s3.sh).
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from sfpubsub.spark.runtime.java import private_directory

# If this variable is set, the object store tests run, and the session `spark` can access the store.
ASKED_FOR = "TEST_OBJECT_STORE"

BUCKET = "lake"

# Tests check that this secret is never printed or logged.
SECRET = "planted-object-store-secret"

# Spark's Hadoop version, by version of PySpark.
_HADOOP = {"4.1": "3.4.2", "4.2": "3.5.0"}

# The database driver of Iceberg's catalog.
_SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"

# Longest wait for the server to start, in seconds.
_START = 60.0


class ObjectStore:
    """A running server with one bucket, and an Iceberg catalog in it.

    Args:
        port: Port of the server on loopback.
        directory: Directory of the catalog's database.
    """

    def __init__(self, port: int, directory: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._database = directory / "catalog.sqlite"

    def url(self, name: str) -> str:
        """Return the URL of a directory in the bucket."""
        return f"s3a://{BUCKET}/{name}"

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings for a session that uses the store."""
        access = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": "test",
            "secret.key": SECRET,
        }
        catalog = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": f"jdbc:sqlite:{self._database}",
            ".warehouse": self.url("warehouse"),
            ".jdbc.schema-version": "V1",
        }
        return {
            **{f"spark.hadoop.fs.s3a.{key}": value for key, value in access.items()},
            **{f"spark.sql.catalog.depot{key}": value for key, value in catalog.items()},
            **_jars(),
        }

    @property
    def options(self) -> list[str]:
        """Options of ``sfpubsub`` commands that use the store."""
        return [part for pair in self.settings.items() for part in ("--conf", "=".join(pair))]

    @property
    def storage_options(self) -> dict[str, str]:
        """Storage options of delta-rs, which reads without Spark."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
        }


def _jars() -> dict[str, str]:
    """Return the Spark setting that provides the jars for Hadoop's S3 client and Iceberg's catalog.

    Jars that are already downloaded go on the class path, because any other setting would make
    Spark copy these large files.
    """
    jars = private_directory() / "ivy" / "jars"
    hadoop = _HADOOP[version("pyspark")[:3]]
    packages = (f"org.apache.hadoop:hadoop-aws:{hadoop}", _SQLITE)
    wanted = [_file(jars, package) for package in packages]
    sdk = sorted(jars.glob("software.amazon.awssdk_bundle-*.jar"))
    more = sorted(jars.glob("software.amazon.s3.analyticsaccelerator_*.jar"))
    if not sdk or not more or not all(zipfile.is_zipfile(path) for path in [*wanted, *sdk]):
        return {"spark.jars.packages": ",".join(packages)}
    found = [*wanted, sdk[-1] if hadoop == "3.5.0" else sdk[0], *more[-1:]]
    return {"spark.driver.extraClassPath": ":".join(map(str, found))}


def _file(jars: Path, package: str) -> Path:
    group, artifact, version = package.split(":")
    return jars / f"{group}_{artifact}-{version}.jar"


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Run an object store for the duration of a `with` block, then discard its contents."""
    log = directory / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        store = ObjectStore(_port(server, log), directory)
        request = urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=_START).close()
        yield store
    finally:
        server.terminate()
        server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the server listens, and return its port."""
    until = time.monotonic() + _START
    while time.monotonic() < until and server.poll() is None:
        said = log.read_text()
        if "Running on http://127.0.0.1:" in said:
            return int(said.rpartition("Running on http://127.0.0.1:")[2].split()[0])
        time.sleep(0.05)
    raise AssertionError(f"the object store did not start: {log.read_text()}")
