"""What `run` costs beside plain iteration, both faces: one JSON line of events a second.

    python benchmarks/handlers.py [--events 20000] [--rounds 5] [--workers 8] [--pause 0]

The emulator, a process of its own on loopback without TLS, holds the events. The handler reads the
value and sleeps for ``--pause`` seconds; with 0 all that is measured is the way to it. Positions
are kept in a dict. The ways take turns; medians, with the lowest and the highest round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from sfpubsub import AsyncPubSubClient, Event, PubSubClient
from sfpubsub.auth.session import Session

TOPIC = "/event/Order_Event__e"


def serve(directory: str) -> None:
    """Be the emulator's process, until its input ends."""
    from sfpubsub.emulator.server import EmulatorServer

    with EmulatorServer(data_dir=directory) as emulator:
        for _ in range(0, arguments.events, 1000):
            emulator.publish(TOPIC, [{"Order_Number__c": "1"}] * 1000)
        ready = [emulator.grpc_target, emulator.access_token, emulator.instance_url]
        print(json.dumps([*ready, emulator.tenant_id]), flush=True)
        sys.stdin.read()


def ways(options: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """Return what is measured, by name."""
    start: dict[str, Any] = {"replay": "earliest"}

    def iterate() -> None:
        left = arguments.events
        with (
            PubSubClient(**options) as client,
            client.subscribe(TOPIC, replay_store={}, **start) as subscription,
        ):
            for event in subscription.events():
                _ = event.value
                time.sleep(arguments.pause)
                left -= 1
                if not left:
                    break

    def run() -> None:
        with PubSubClient(**options) as client:
            subscription = client.subscribe(TOPIC, replay_store={}, **start)
            numbers = iter(range(1, arguments.events + 1))  # `next` of it is atomic

            def handle(event: Event) -> None:
                _ = event.value
                time.sleep(arguments.pause)
                if next(numbers) == arguments.events:
                    subscription.stop()

            subscription.run(handle, workers=arguments.workers)

    async def aio_iterate() -> None:
        left = arguments.events
        async with (
            AsyncPubSubClient(**options) as client,
            client.subscribe(TOPIC, replay_store={}, **start) as subscription,
        ):
            async for event in subscription.events():
                _ = event.value
                await asyncio.sleep(arguments.pause)
                left -= 1
                if not left:
                    break

    async def aio_run() -> None:
        async with AsyncPubSubClient(**options) as client:
            subscription = client.subscribe(TOPIC, replay_store={}, **start)
            numbers = iter(range(1, arguments.events + 1))

            async def handle(event: Event) -> None:
                _ = event.value
                await asyncio.sleep(arguments.pause)
                if next(numbers) == arguments.events:
                    subscription.stop()

            await subscription.run(handle, workers=arguments.workers)

    return {
        "iterate": iterate,
        "run": run,
        "aio iterate": lambda: asyncio.run(aio_iterate()),
        "aio run": lambda: asyncio.run(aio_run()),
    }


def main() -> None:
    """Start the emulator, measure in turns, and print."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--serve", directory, *sys.argv[1:]]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            target, *session = json.loads(process.stdout.readline())
            measured = ways({"session": Session(*session), "endpoint": target, "insecure": "1"})
            rates: dict[str, list[float]] = {name: [] for name in measured}
            for _ in range(arguments.rounds):
                for name, way in measured.items():
                    began = time.perf_counter()
                    way()
                    rates[name].append(arguments.events / (time.perf_counter() - began))
            process.stdin.close()
    figures = {
        name: {
            "median": round(statistics.median(found)),
            "spread": [*map(round, (min(found), max(found)))],
        }
        for name, found in rates.items()
    }
    options = {name: value for name, value in vars(arguments).items() if name != "serve"}
    print(json.dumps({**options, "python": platform.python_version(), "events_per_s": figures}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--serve")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    else:
        main()
