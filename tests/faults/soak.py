"""Subscribes for several minutes while faults happen continuously, and checks the received events.

A managed and a plain subscription read the same topic from an emulator process. Each event contains
its number, so that lost, duplicated or misplaced events are detected immediately. Run
``python -m tests.faults.soak --seconds 600``; the last line is the report as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from sfpubsub import PubSubClient, Session
from sfpubsub.client.subscription import Subscription
from sfpubsub.config import Timings

TOPIC = "/event/Order_Event__e"
MANAGED = "My_Managed_Subscription"

# Events per publish call, and calls per second: 1,000 events per second, 600,000 in 10 minutes.
PART = 200
CALLS_PER_SECOND = 5.0

# Faults of streams and calls, chosen at random.
FAULTS: list[dict[str, Any]] = [
    {"kind": "drop_stream"},
    {"kind": "drop_stream", "status": "OK"},
    {"kind": "drop_stream", "status": "RESET"},
    {"kind": "drop_stream", "status": "INTERNAL"},
    {"kind": "fail_stream", "error_code": "service.unavailable"},
    {"kind": "drop_call", "rpc": "Subscribe"},
    {"kind": "drop_call", "rpc": "ManagedSubscribe"},
    {"kind": "refuse", "rpc": "ManagedSubscribe",
     "error_code": "managed.subscription.already.active"},
    {"kind": "drop_before_commit_answer"},
    {"kind": "leave_commit_unanswered"},
    {"kind": "coalesce_commits", "count": 2, "within_s": 0.2},
    {"kind": "fail_commit"},
]  # fmt: skip

# Seconds to wait for the remaining events at the end.
PATIENCE = 120.0


class Reader(threading.Thread):
    """Reads one subscription, and checks that the event numbers are consecutive."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(name=f"reader {subscription.name}", daemon=True)
        self.subscription = subscription
        self.next = 0
        self.wrong: str | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for batch in self.subscription:
                for event in batch:
                    number = int(event.value["Order_Number__c"])
                    if number != self.next:
                        self.wrong = f"{self.subscription.name}: {number} after {self.next - 1}"
                        return
                    self.next = number + 1
        except Exception as error:  # noqa: BLE001  # reported by the main thread
            self.error = error


class Emulator:
    """An emulator process, which ends with this process, and its admin endpoint."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sfpubsub", "emulator", "--grpc-port", "0", "--http-port", "0",
             "--data-dir", str(directory), "--until-stdin-closes"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ready = json.loads(self.process.stdout.readline())

    def client_arguments(self) -> dict[str, Any]:
        """Return the arguments of a synchronous or asyncio client for this emulator."""
        ready = self.ready
        return {
            "session": Session(ready["access_token"], ready["instance_url"], ready["tenant_id"]),
            "endpoint": ready["grpc"],
            "insecure": "1",
        }

    def admin(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.ready['http']}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.ready['access_token']}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def consumed(self) -> int:
        """Return the number of faults that have happened."""
        return sum(fault["happened"] for fault in self.admin("/admin/faults")["faults"])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()


def rss() -> int:
    """Return this process's resident memory in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def run(seconds: float, faults_per_second: float, seed: int) -> dict[str, Any]:
    """Run the test for *seconds*, and return the report."""
    chance = random.Random(seed)
    timings = Timings(backoff_initial=0.1, backoff_max=0.5, slot_initial=0.1, commit_timeout=2.0)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-soak-") as directory:
        emulator = Emulator(Path(directory) / "emulator")
        try:
            with PubSubClient(**emulator.client_arguments(), timings=timings) as client:
                return _soak(emulator, client, chance, seconds, faults_per_second, seed)
        finally:
            emulator.close()


def _soak(
    emulator: Emulator,
    client: PubSubClient,
    chance: random.Random,
    seconds: float,
    faults_per_second: float,
    seed: int,
) -> dict[str, Any]:
    readers = [
        Reader(client.subscribe_managed(MANAGED)),
        Reader(client.subscribe(TOPIC, replay="earliest")),
    ]
    for reader in readers:
        reader.start()
    began = time.monotonic()
    published, early_rss, fault_due = 0, 0, began
    while (elapsed := time.monotonic() - began) < seconds:
        rows = [
            {"CreatedDate": 1, "CreatedById": "005", "Order_Number__c": str(published + index)}
            for index in range(PART)
        ]
        client.publish(TOPIC, rows)
        published += PART
        if time.monotonic() >= fault_due:
            fault = dict(chance.choice(FAULTS))
            fault_due += 1 / faults_per_second
            if fault["kind"] in ("drop_stream", "fail_stream"):
                fault["after_responses"] = chance.choice((0, 1, 3))
            emulator.admin("/admin/faults", fault)
        if not early_rss and elapsed > min(60.0, seconds / 4):
            early_rss = rss()
        if any(reader.wrong or reader.error for reader in readers):
            break
        time.sleep(max(0.0, began + published / PART / CALLS_PER_SECOND - time.monotonic()))
    deadline = time.monotonic() + PATIENCE
    while any(r.next < published for r in readers) and time.monotonic() < deadline:
        if any(reader.wrong or reader.error for reader in readers):
            break
        time.sleep(0.05)
    late_rss, consumed = rss(), emulator.consumed()
    health = [reader.subscription.health() for reader in readers]
    for reader in readers:
        reader.subscription.abort()
        reader.join(30)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "published": published,
        "received": [reader.next for reader in readers],
        "lost": [published - reader.next for reader in readers],
        "wrong": [reader.wrong for reader in readers],
        "errors": [repr(reader.error) if reader.error else None for reader in readers],
        "faults_consumed": consumed,
        "reconnects": [each.reconnects for each in health],
        "redelivered": [each.redelivered for each in health],
        "gaps": [len(each.gaps) for each in health],
        "rss_early_kib": early_rss,
        "rss_late_kib": late_rss,
        "rss_ratio": round(late_rss / early_rss, 3) if early_rss else None,
    }


def ok(report: dict[str, Any]) -> bool:
    """Return whether no event was lost, duplicated or misplaced, and nothing failed."""
    return not any(report["lost"] + report["wrong"] + report["errors"] + report["gaps"])


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--faults-per-second", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments = parser.parse_args()
    report = run(arguments.seconds, arguments.faults_per_second, arguments.seed)
    print(json.dumps(report))
    return 0 if ok(report) else 1


if __name__ == "__main__":
    sys.exit(main())
