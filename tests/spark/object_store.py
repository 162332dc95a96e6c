"""An object store with the API of S3, in a process of its own, and what Spark is told to use it.

The server is moto's: it is a package of Python like everything else that the tests need, takes no
Java beside Spark's, and knows conditional writes, which an emulation on a file system does not.
Spark gets Hadoop's own client for it, with the SDK that it was built with, from Maven Central: a
download of 700 MB, once. Hence these tests run only when they are asked for (scripts/test_s3.sh).
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
from pathlib import Path

import pyspark

from sfpubsub.spark.runtime.java import private_directory

# Set to anything: tests of the object store run, and the session of `spark` can reach it.
ASKED_FOR = "TEST_OBJECT_STORE"

BUCKET = "lake"

# Looked for in whatever is printed or logged.
SECRET = "planted-object-store-secret"

# Of the Hadoop that Spark brings, and for Iceberg the driver of its catalog's database.
_HADOOP = {"4.1": "3.4.2", "4.2": "3.5.0"}[pyspark.__version__[:3]]
PACKAGES = (f"org.apache.hadoop:hadoop-aws:{_HADOOP}", "org.xerial:sqlite-jdbc:3.50.3.0")

# Seconds.
_START = 60.0


class ObjectStore:
    """One server with one bucket, and a catalog of Iceberg tables in it.

    Args:
        port: Where the server listens, on loopback.
        directory: For the catalog's database.
    """

    def __init__(self, port: int, directory: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._database = directory / "catalog.sqlite"

    def url(self, name: str) -> str:
        """Return the URL of a directory of the bucket."""
        return f"s3a://{BUCKET}/{name}"

    @property
    def settings(self) -> dict[str, str]:
        """What a session is told."""
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
        """What a command is told."""
        return [part for pair in self.settings.items() for part in ("--conf", "=".join(pair))]

    @property
    def storage_options(self) -> dict[str, str]:
        """What a plain reader is told."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
        }


def _jars() -> dict[str, str]:
    """Return what brings the jars: those that were fetched before as a class path, which is quick.

    Spark copies jars that it is given in any other way, and these are large.
    """
    jars = private_directory() / "ivy" / "jars"
    wanted = [_file(jars, package) for package in PACKAGES]
    sdk = sorted(jars.glob("software.amazon.awssdk_bundle-*.jar"))
    more = sorted(jars.glob("software.amazon.s3.analyticsaccelerator_*.jar"))
    if not sdk or not more or not all(zipfile.is_zipfile(path) for path in [*wanted, *sdk]):
        return {"spark.jars.packages": ",".join(PACKAGES)}
    found = [*wanted, sdk[-1] if _HADOOP == "3.5.0" else sdk[0], *more[-1:]]
    return {"spark.driver.extraClassPath": ":".join(map(str, found))}


def _file(jars: Path, package: str) -> Path:
    group, artifact, version = package.split(":")
    return jars / f"{group}_{artifact}-{version}.jar"


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Run a server; it ends with the block, and what it holds with it."""
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
    """Wait until it listens, and return where."""
    until = time.monotonic() + _START
    while time.monotonic() < until and server.poll() is None:
        said = log.read_text()
        if "Running on http://127.0.0.1:" in said:
            return int(said.rpartition("Running on http://127.0.0.1:")[2].split()[0])
        time.sleep(0.05)
    raise AssertionError(f"the object store did not start: {log.read_text()}")
