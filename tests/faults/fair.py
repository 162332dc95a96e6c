"""Measures whether a mirror still reads while events arrive without a pause.

A writer changes records of Account all the time, while ``sfpubsub mirror run`` starts, reads all
accounts for the first time, and later gets the signal to read them again. Run
``python -m tests.faults.fair DIRECTORY --seconds 900``; the last line is the report as JSON, with
the seconds from the start, or from the signal, until the mirror said so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.cli.test_cli import spawn
from tests.faults.matrix import Job

RECORDS = 1000

# Seconds after which the mirror is said not to read at all. On two cores of its own, the first read
# should be merged within 600 s, and the reread begin within 120 s.
PATIENCE = 1800.0


def write(emulator: EmulatorServer, ids: list[str], rate: float, stopping: threading.Event) -> None:
    """Change *rate* records per second until *stopping* is set."""
    user, rng = emulator.accounts.holder(""), random.Random(1)
    began, number = time.monotonic(), 0
    while not stopping.wait(max(0.0, began + number / rate - time.monotonic())):
        emulator.records.update("Account", rng.choice(ids), {"Phone": str(number)}, user)
        number += 1


def seconds_until(log: Path, text: str, since: int) -> float:
    """Return the seconds until the log contains *text* after position *since*."""
    began = time.monotonic()
    while text not in log.read_text()[since:]:
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"not within {PATIENCE:.0f} s: {text}\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=900.0, help="of events before the signal")
    parser.add_argument("--rate", type=float, default=50.0, help="changes per second")
    parser.add_argument("--margin", type=float, default=10.0)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    lake, log = str(options.directory / "lake"), options.directory / "mirror.log"
    stopping = threading.Event()
    with EmulatorServer(options.directory / "org", settings=Settings(keepalive_s=1)) as emulator:
        user = emulator.accounts.holder("")
        ids = [
            emulator.records.create("Account", {"Name": f"account {n}"}, user)
            for n in range(RECORDS)
        ]
        arguments = (emulator, ids, options.rate, stopping)
        writer = threading.Thread(target=write, args=arguments, daemon=True)
        writer.start()
        environment = {
            "SFPUBSUB_ENDPOINT": emulator.grpc_target,
            "SFPUBSUB_INSECURE": "1",
            "SFPUBSUB_AUTH": "token",
            "SFPUBSUB_ACCESS_TOKEN": emulator.access_token,
            "SFPUBSUB_INSTANCE_URL": emulator.instance_url,
            "SFPUBSUB_TENANT_ID": emulator.tenant_id,
        }
        margin = ["--margin", str(options.margin)]
        command = ["sfpubsub", "mirror", "run", "Account", "--to", lake, *margin]
        began = time.monotonic()
        mirror = Job(sys.executable, command, environment, log)
        try:
            seconds_until(log, "records read and merged", 0)
            first = time.monotonic() - began
            while time.monotonic() - began < options.seconds:
                time.sleep(1.0)
            since = len(log.read_text())
            sent = spawn(emulator, "mirror", "signal", "--to", lake, "--reread", "Account")
            sent.communicate()
            begins = seconds_until(log, "reading all records", since)
            merged = begins + seconds_until(log, "records read and merged", since)
        finally:
            stopping.set()
            if mirror.process.poll() is None:
                mirror.process.terminate()  # not the JVM
            try:
                output, _ = mirror.process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(mirror.process.pid, signal.SIGKILL)
                output = ""
    applied = json.loads(output.splitlines()[-1])["events"] if output else None
    report = {"first_read_s": first, "reread_begins_s": begins, "reread_merged_s": merged}
    print(json.dumps({**report, "events_applied": applied, **vars(options)}, default=str))


if __name__ == "__main__":
    main()
