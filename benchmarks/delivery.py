"""Number of events that the service delivers per handled event, and the speed.

    python -m benchmarks delivery [--events 1000] [--bytes 1000000] [--handler 0.05] [--plain]

Prints one JSON line. The emulator, a separate process on loopback without TLS, stores the events.
One subscription with default limits reads them, and the handler sleeps after each. ``ratio`` is the
number of events that the emulator sent, divided by the number of handled events. A value above 1
means that events were dropped with their stream, at the cost of the org's delivery allocation.
``streams`` is the number of calls.

Target, with events of 1 MB and a handler of 50 ms: a ratio of at most 1.2, on one stream.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.processes import Peer, module, peer
from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient

TOPIC = "/event/Order_Event__e"
NAME = "My_Managed_Subscription"


def serve(directory: str) -> None:
    """Run the emulator; answer each line of stdin with the number of delivered events."""
    from sfpubsub.emulator.server import EmulatorServer

    with EmulatorServer(data_dir=directory) as emulator:
        row = {"Order_Number__c": "x" * arguments.bytes}
        part = max(1, min(1_000, 3_000_000 // arguments.bytes))  # events per publish request
        for start in range(0, arguments.events, part):
            emulator.publish(TOPIC, [row] * min(part, arguments.events - start))
        record = emulator.managed.get(NAME)
        counters = emulator.bus.counters
        count = (
            counters.of_topic(TOPIC)
            if arguments.plain
            else counters.of_managed(record.subscription_id)
        )
        ready = [emulator.grpc_target, emulator.access_token, emulator.instance_url]
        print(json.dumps([*ready, emulator.tenant_id]), flush=True)
        for _ in sys.stdin:
            print(count.delivered, flush=True)


@contextmanager
def emulator_process(directory: str) -> Iterator[tuple[PubSubClient, Peer]]:
    """Start the emulator's process; yield a client that is connected to it, and the process."""
    with peer(module("delivery", "--serve", directory, *sys.argv[1:])) as process:
        target, *session = process.hear()
        with PubSubClient(Session(*session), endpoint=target, insecure="1") as client:
            yield client, process


def measure(client: PubSubClient, process: Peer) -> dict[str, Any]:
    """Handle all events through one subscription, and return the figures."""
    began, handled, largest = time.perf_counter(), 0, 0
    subscription = (
        client.subscribe(TOPIC, replay="earliest")
        if arguments.plain
        else client.subscribe_managed(NAME)
    )
    with subscription:
        while handled < arguments.events:
            batch = subscription.next_batch()
            assert batch is not None
            for _ in batch:
                if arguments.handler:
                    time.sleep(arguments.handler)
                handled += 1
            largest = max(largest, subscription.health().pending_bytes)
        taken = time.perf_counter() - began
        health = subscription.health()
    delivered = process.ask("delivered")
    return {
        "delivered": delivered,
        "ratio": round(delivered / handled, 3),
        "streams": health.reconnects + 1,
        "largest_pending_mb": round(largest / 1e6, 1),
        "events_per_s": round(handled / taken),
    }


def main() -> None:
    """Start the emulator, measure, and print the result."""
    with (
        tempfile.TemporaryDirectory(prefix="sfpubsub-delivery-") as place,
        emulator_process(place) as (client, process),
    ):
        figures = measure(client, process)
    about = {"benchmark": "delivery", "python": platform.python_version(), "cores": os.cpu_count()}
    print(
        json.dumps(
            {**about, **{k: v for k, v in vars(arguments).items() if k != "serve"}, **figures}
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--handler", type=float, default=0.05)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    else:
        main()
