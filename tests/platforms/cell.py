"""One cell of the table of platforms: ``python -m tests.platforms.cell KIND FORMAT…``.

With ``--short`` before the kind, only the raw table is written, and no process is killed.

With the PySpark of this Python environment, a raw table of each format is written by processes of
which two are killed, and tables are built from it. They are compared with what the emulator has
published. Prints a line per format; the exit code is 0 if all are as they must be.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.platforms.job import ACCOUNTS, ORDERS

EVENTS = 300
KILLS = 2

# Longest time of one process, in seconds.
_PATIENCE = 600.0

# The longest time after a batch at which a process is killed: writing the next one takes longer.
_WITHIN = 0.3


def run(
    kind: str,
    format: str,  # noqa: A002
    directory: Path,
    rng: random.Random,
    *,
    kills: int = KILLS,
    what: str = "all",
) -> str:
    """Run one format of a cell in a new directory.

    Returns:
        What was found, as text.

    Raises:
        RuntimeError: A process failed.
        AssertionError: A table is not as it must be.
    """
    settings = Settings(keepalive_s=0.5)  # by which a job that runs once knows that it is over
    with EmulatorServer(data_dir=directory / "emulator", settings=settings) as emulator:
        published = {ORDERS: [e.event_id for e in emulator.publish(ORDERS, _orders(EVENTS))]}
        user = emulator.accounts.holder("")
        names = [f"Account {number}" for number in range(12)]
        ids = [emulator.records.create("Account", {"Name": name}, user) for name in names]
        emulator.records.update("Account", ids[0], {"Name": "Renamed"}, user)
        emulator.records.delete("Account", ids[1], user)
        live = sorted(
            [str(row["Id"]), str(row["Name"])]
            for row in emulator.records.query("SELECT Id, Name FROM Account", user).rows
        )
        given = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SFPUBSUB_ENDPOINT": emulator.grpc_target,
            "SFPUBSUB_INSECURE": "1",
            "SFPUBSUB_ACCESS_TOKEN": emulator.access_token,
            "SFPUBSUB_INSTANCE_URL": emulator.instance_url,
            "SFPUBSUB_TENANT_ID": emulator.tenant_id,
        }
        done = [_killed(kind, format, directory, given, rng) for _ in range(kills)]
        found = _finished(what, kind, format, directory, given)
    orders = [event_id for topic, event_id in found["raw"] if topic == ORDERS]
    changes = [event_id for topic, event_id in found["raw"] if topic == ACCOUNTS]
    assert sorted(orders) == sorted(published[ORDERS]), "raw: lost or duplicated orders"
    assert len(changes) == len(set(changes)) == len(names) + 2, "raw: lost or duplicated changes"
    if "typed" in found:
        assert sorted(orders) == [event_id for (event_id,) in found["typed"]], "typed"
        assert [[record_id] for record_id, _ in live] == found["current"], "current"
        assert live == found["mirrored"], "mirrored"
    client, server = found["versions"]
    return f"PySpark {client}, Spark {server}: {len(found['raw'])} raw rows, kills {done}"


def _orders(count: int) -> list[dict[str, Any]]:
    return [{"Order_Number__c": f"order-{number}"} for number in range(count)]


def _start(what: str, kind: str, format: str, directory: Path, given: dict[str, str]) -> Any:  # noqa: A002
    return subprocess.Popen(
        [sys.executable, "-m", "tests.platforms.job", what, format, kind, str(directory)],
        env=given,
        stdout=subprocess.PIPE,
        stderr=(directory / "stderr.txt").open("a"),
        text=True,
    )


def _killed(
    kind: str,
    format: str,  # noqa: A002
    directory: Path,
    given: dict[str, str],
    rng: random.Random,
) -> str:
    """Start a process, and kill it soon after a batch. Return how many batches it had written."""
    with _start("ingest", kind, format, directory, given) as process:
        written = 0
        for line in process.stdout:
            written += line == "written\n"
            if written:
                time.sleep(rng.uniform(0, _WITHIN))  # a random moment within the next batch
                process.kill()
                break
        process.stdout.read()
    if process.returncode > 0:
        raise _failure(directory)
    return f"after {written}"


def _finished(
    what: str,
    kind: str,
    format: str,  # noqa: A002
    directory: Path,
    given: dict[str, str],
) -> dict[str, Any]:
    with _start(what, kind, format, directory, given) as process:
        output, _ = process.communicate(timeout=_PATIENCE)
    if process.returncode:
        raise _failure(directory)
    return dict(json.loads(output.splitlines()[-1]))


def _failure(directory: Path) -> RuntimeError:
    lines = (directory / "stderr.txt").read_text().splitlines()
    return RuntimeError("\n".join(lines[-25:]) or "the process ended without a word")


def main() -> None:
    kind, *formats = sys.argv[1:]
    what, kills = "all", KILLS
    if kind == "--short":
        kind, *formats = formats
        what, kills = "raw", 0
    seed = random.randrange(1 << 31)
    failed = False
    for format_ in formats:
        with tempfile.TemporaryDirectory(prefix="sfpubsub-cell-") as directory:
            began = time.monotonic()
            try:
                rng = random.Random(seed)
                said = f"ok: {run(kind, format_, Path(directory), rng, kills=kills, what=what)}"
            except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as error:
                failed, said = True, f"FAILED: {error}"
            seconds = time.monotonic() - began
            print(f"{kind} {format_}: {said} ({seconds:.0f} s, seed {seed})", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
