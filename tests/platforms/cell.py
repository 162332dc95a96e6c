"""One cell of the table of platforms: ``python -m tests.platforms.cell KIND FORMAT…``.

With the PySpark of this Python environment, a raw table of each format is written by processes of
which some are killed (``--kills``), and tables are built from it, except with ``--raw-only``. They
are compared with what the emulator has published. Prints a line per format; the exit code is 0 if
all are as they must be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests import java
from tests.platforms.job import ACCOUNTS, ORDERS
from tests.platforms.server import ConnectServer

KILLS = 10

# Orders that are published before each process starts, and again before it is killed.
_ORDERS = 60

# Longest time of one process, in seconds.
_PATIENCE = 600.0

# The longest time after a batch at which a process is killed, in seconds: by then, the next one has
# been written.
_WITHIN = 1.2

# With Spark Connect, each kill of this number is one of the server instead of its client.
_OF_THE_SERVER = 3


class Cell:
    """One format of a cell.

    Args:
        kind: ``classic``, or ``connect`` for a server of Spark Connect that this object starts.
        format: The table format.
        directory: An empty directory.
        rng: The source of the random times.
    """

    def __init__(self, kind: str, format: str, directory: Path, rng: random.Random) -> None:  # noqa: A002
        self._format = format
        self._directory = directory
        self._rng = rng
        self._server = ConnectServer(format, directory) if kind == "connect" else None

    def run(self, kills: int, what: str) -> str:
        """Write the tables, and compare them with what was published.

        Args:
            kills: How many processes are killed.
            what: ``raw`` or ``all``, see `tests.platforms.job`.

        Returns:
            What was found, as text.

        Raises:
            RuntimeError: A process failed.
            AssertionError: A table is not as it must be.
        """
        settings = Settings(keepalive_s=0.5)  # by which a job that runs once knows that it is over
        with EmulatorServer(data_dir=self._directory / "emulator", settings=settings) as emulator:
            published: list[str] = []

            def publish() -> None:
                orders = [{"Order_Number__c": f"order-{number}"} for number in range(_ORDERS)]
                published.extend(event.event_id for event in emulator.publish(ORDERS, orders))

            user = emulator.accounts.holder("")
            names = [f"Account {number}" for number in range(12)]
            ids = [emulator.records.create("Account", {"Name": name}, user) for name in names]
            emulator.records.update("Account", ids[0], {"Name": "Renamed"}, user)
            emulator.records.delete("Account", ids[1], user)
            live = sorted(
                [str(row["Id"]), str(row["Name"])]
                for row in emulator.records.query("SELECT Id, Name FROM Account", user).rows
            )
            given = self._environment(emulator)
            done: Counter[str] = Counter()
            for number in range(1, kills + 1):
                server = self._server if number % _OF_THE_SERVER == 0 else None
                self._kill_one(given, publish, server)
                done["processes" if server is None else "servers"] += 1
            publish()
            found = self._finish(what, given)
        orders = [event_id for topic, event_id in found["raw"] if topic == ORDERS]
        changes = [event_id for topic, event_id in found["raw"] if topic == ACCOUNTS]
        assert differences(published, orders) == "", f"raw orders: {differences(published, orders)}"
        assert len(changes) == len(set(changes)) == len(names) + 2, (
            "raw changes: lost or duplicated"
        )
        if "typed" in found:
            assert sorted(orders) == [event_id for (event_id,) in found["typed"]], "typed"
            assert [[record_id] for record_id, _ in live] == found["current"], "current"
            assert live == found["mirrored"], "mirrored"
        client, spark = found["versions"]
        said = f"PySpark {client}, Spark {spark}: {len(found['raw'])} raw rows, killed: "
        return said + (", ".join(f"{done[each]} {each}" for each in sorted(done)) or "none")

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.close()

    def _environment(self, emulator: EmulatorServer) -> dict[str, str]:
        return {
            **os.environ,
            **java.environment(),
            **({"SPARK_REMOTE": self._server.url} if self._server else {}),
            "PYSPARK_PYTHON": sys.executable,
            "SFPUBSUB_ENDPOINT": emulator.grpc_target,
            "SFPUBSUB_INSECURE": "1",
            "SFPUBSUB_ACCESS_TOKEN": emulator.access_token,
            "SFPUBSUB_INSTANCE_URL": emulator.instance_url,
            "SFPUBSUB_TENANT_ID": emulator.tenant_id,
        }

    def _start(self, what: str, given: dict[str, str]) -> subprocess.Popen[str]:
        with (self._directory / "stderr.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.platforms.job", what, self._format,
                 str(self._directory)],
                env=given,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )  # fmt: skip

    def _kill_one(
        self, given: dict[str, str], publish: Callable[[], None], server: ConnectServer | None
    ) -> None:
        """Start a process, and kill it or *server* in a batch that is not its first."""
        publish()
        with self._start("ingest", given) as process:
            for line in process.stdout or ():
                if line == "written\n":
                    publish()
                    time.sleep(self._rng.uniform(0, _WITHIN))  # a random moment of the next batch
                    if server is None:
                        process.kill()
                    else:
                        server.restart()  # until it is there again, its client waits for it
                    break
            try:
                process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeError("the process did not end, although its server did") from None
        if process.returncode == 0 or (server is None and process.returncode > 0):
            raise self._failure()

    def _finish(self, what: str, given: dict[str, str]) -> dict[str, Any]:
        with self._start(what, given) as process:
            try:
                output, _ = process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeError(f"the process did not end within {_PATIENCE} s") from None
        if process.returncode:
            raise self._failure()
        return dict(json.loads(output.splitlines()[-1]))

    def _failure(self) -> RuntimeError:
        lines = (self._directory / "stderr.txt").read_text().splitlines()
        return RuntimeError("\n".join(lines[-25:]) or "the process ended without a word")


def differences(published: Iterable[str], written: Iterable[str]) -> str:
    """Return how many events were lost and how many are duplicates; an empty text if none are."""
    wanted, found = Counter(published), Counter(written)
    lost, more = (wanted - found).total(), (found - wanted).total()
    return f"{lost} lost, {more} too many" if lost or more else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["classic", "connect"])
    parser.add_argument("formats", nargs="+", choices=["delta", "iceberg", "parquet"])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--raw-only", action="store_true")
    options = parser.parse_args()
    seed = random.randrange(1 << 31)
    failed = False
    for format_ in options.formats:
        with tempfile.TemporaryDirectory(prefix="sfpubsub-cell-") as directory:
            began = time.monotonic()
            try:
                cell = Cell(options.kind, format_, Path(directory), random.Random(seed))
                with closing(cell):
                    found = cell.run(options.kills, "raw" if options.raw_only else "all")
                said = f"ok: {found}"
            except (RuntimeError, AssertionError) as error:
                failed, said = True, f"FAILED: {error}"
            seconds = time.monotonic() - began
            print(f"{options.kind} {format_}: {said} ({seconds:.0f} s, seed {seed})", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
