"""A server of Spark Connect: a process of its own, as on a cluster, which outlives its clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from sfpubsub.spark.runtime import runtimes
from sfpubsub.spark.runtime.java import find_java_home
from tests import java

# Longest time in which a server starts, in seconds. The first one may download jars.
_PATIENCE = 300.0

_POLL_S = 0.2

# A server logs each call; this configuration has it log nothing.
_LOG = Path(runtimes.__file__).with_name("log4j2.properties")


class ConnectServer:
    """A server with the jars of a table format, on a free port of the loopback interface.

    Attributes:
        url: Its URL, for `SparkSession.builder.remote` or ``SPARK_REMOTE``. It stays the same when
            the server is restarted.
    """

    def __init__(self, format: str, directory: Path) -> None:  # noqa: A002
        self._log = directory / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"sc://127.0.0.1:{self._port}"
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": f"file://{directory}/warehouse",
        }
        settings |= runtimes.session_settings(format, settings)
        self._command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2]"),
            *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
        ]
        # No SFPUBSUB_ variable: the server has neither credentials nor the address of the org.
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SFPUBSUB_") and name != "SPARK_REMOTE"
        }
        self._environment |= {
            "JAVA_HOME": str(find_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            **java.environment(),
        }
        self._process = self._started()

    def close(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill the server, and start another one at the same URL."""
        self.close()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                said = self._log.read_text().splitlines()[-15:]
                raise RuntimeError("\n".join(["Spark Connect's server did not start:", *said]))
            time.sleep(_POLL_S)
        return process

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
        except OSError:
            return False
        return True
