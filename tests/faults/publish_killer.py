"""Publishes events to a service that is killed and loses responses, and counts the logged events.

The emulator is a process that is killed with SIGKILL and restarted with the same ports and data.
Between kills, it resets streams and loses responses. At the end, all events in the log are read:
none may be missing, all ids must have been published, and there must not be more duplicates than
the publisher reports as resent. See ``python -m tests.faults.publish_killer --help``.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Timings
from sfpubsub.types import PublishCounts

TOPIC = "/event/Order_Event__e"
USER = "005000000000001AAA"

# Timings of the client for a service on loopback.
QUICK = Timings(backoff_initial=0.02, backoff_max=0.5, publish_answer=20.0)

# Timeout of an event, in seconds; it must cover many restarts on a busy machine.
TIMEOUT = 300.0


@dataclass(frozen=True)
class Report:
    """The result of a run: kills, faults, and counts of lost, foreign and repeated events."""

    published: int
    kills: int
    faults: int
    lost: int
    strangers: int
    """Number of ids in the log that were not published."""
    repeats: int
    """Number of events in the log that repeat an earlier id."""
    sent_again: int
    """Number of resends that the publisher reports; must be at least `repeats`."""
    repeated: int
    """Number of ids that occur in the log more than once."""
    repeated_though_answered: int
    """Number of ids whose last event in the log is not at the result's position."""

    @property
    def ok(self) -> bool:
        nothing = self.lost, self.strangers, self.repeated_though_answered
        return nothing == (0, 0, 0) and self.repeats <= self.sent_again


class Service:
    """An emulator process that can be killed and restarted on the same ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = [_free_port(), _free_port()]
        self.kills = 0
        self.faults = 0
        self.ready: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        grpc_port, http_port = self._ports
        with (self._directory / "emulator.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sfpubsub", "emulator", "--grpc-port", str(grpc_port),
                 "--http-port", str(http_port), "--data-dir", str(self._directory / "emulator")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, (self._directory / "emulator.log").read_text()
        self.ready = json.loads(line)

    def kill(self) -> None:
        self.__exit__()
        self.kills += 1

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def fault(self, **fault: Any) -> None:
        body = json.dumps(fault).encode()
        request = urllib.request.Request(f"{self.ready['http']}/admin/faults", body)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.ready['access_token']}")
        urllib.request.urlopen(request, timeout=60).close()
        self.faults += 1

    def client(self) -> PubSubClient:
        ready = self.ready
        return PubSubClient(
            Session(ready["access_token"], ready["instance_url"], ready["tenant_id"]),
            endpoint=ready["grpc"],
            insecure="1",
            timings=QUICK,
        )


def run(service: Service, *, events: int, kills: int, seed: int, streamed: bool = True) -> Report:
    """Publish *events* events while the service is killed *kills* times and loses as many
    responses; return the report.
    """
    chance = random.Random(seed)
    ids = [f"order-{number}" for number in range(events)]
    moments = sorted(chance.sample(range(events // 20, events), kills))
    resets = sorted(chance.sample(range(events // 20, events), kills))
    rpc = "PublishStream" if streamed else "Publish"
    answered: Counter[str] = Counter()
    with service.client() as client:
        with client.open_publisher(
            TOPIC, created_by=USER, timeout=TIMEOUT, streamed=streamed
        ) as publisher:
            receipts = []
            for number, event_id in enumerate(ids):
                receipts.append(publisher.send({"Amount__c": float(number)}, event_id=event_id))
                while resets and number >= resets[0]:
                    resets.pop(0)
                    status = chance.choice(["RESET", "UNAVAILABLE"])
                    service.fault(kind="lose_answer", rpc=rpc, status=status)
                while moments and number >= moments[0]:
                    moments.pop(0)
                    service.kill()
                    service.start()
            publisher.flush()
            counts: PublishCounts = publisher.counts
        positions = {}
        for receipt in receipts:
            result = receipt.result()
            assert result.ok, result
            answered[result.correlation_key] += 1
            positions[result.correlation_key] = bytes(result.replay_id)
        log = read(client, set(ids))
    seen = Counter(event_id for event_id, _ in log)
    last = dict(log)  # an answered event is not resent, so its position is the last of its id
    return Report(
        published=len(answered),
        kills=service.kills,
        faults=service.faults,
        lost=len(set(ids) - set(seen)),
        strangers=len(set(seen) - set(ids)),
        repeats=sum(seen.values()) - len(seen),
        sent_again=counts.sent_again,
        repeated=sum(count > 1 for count in seen.values()),
        repeated_though_answered=sum(last.get(name) != positions[name] for name in ids),
    )


def read(client: PubSubClient, ids: set[str]) -> list[tuple[str, bytes]]:
    """Return the id and position of every event in the log."""
    found: list[tuple[str, bytes]] = []
    with client.subscribe(TOPIC, replay="earliest", max_pending_count=5000) as subscription:
        missing = set(ids)
        # Read until all published events were seen, then until nothing arrives for 2 s.
        while (batch := subscription.next_batch(60.0 if missing else 2.0)) is not None:
            for event in batch:
                found.append((event.id, bytes(event.replay_id)))
                missing.discard(event.id)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}", file=sys.stderr)
    with Service(arguments.directory) as service:
        report = run(service, events=arguments.events, kills=arguments.kills, seed=arguments.seed)
    print(json.dumps(asdict(report)))
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
