"""Check that each of sixty-four subscriptions in one process receives every event once.

Run ``python -m tests.faults.many asyncio --seconds 300``; the last line is the report as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sfpubsub import AsyncPubSubClient, PubSubClient

from .soak import TOPIC, Emulator, rss

# Subscriptions, events per publish call, and seconds between calls: 64 times 20 events per second.
SUBSCRIPTIONS = 64
PART = 10
PERIOD = 0.5
PATIENCE = 60.0


def _numbers(batch: Any) -> list[int]:
    return [int(event.value["Order_Number__c"]) for event in batch]


def publish_for(client: PubSubClient, seconds: float) -> int:
    """Publish numbered events for the given number of seconds; return how many were published."""
    published, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        rows = [
            {"CreatedDate": 1, "CreatedById": "005", "Order_Number__c": str(published + index)}
            for index in range(PART)
        ]
        client.publish(TOPIC, rows)
        published += PART
        time.sleep(max(0.0, began + published / PART * PERIOD - time.monotonic()))
    return published


def run_sync(emulator: Emulator, seconds: float) -> tuple[int, list[list[int]]]:
    """Run the synchronous client, with one thread per subscription.

    Returns:
        The number of published events, and the event numbers that each subscription received.
    """
    seen: list[list[int]] = [[] for _ in range(SUBSCRIPTIONS)]
    with PubSubClient(**emulator.client_arguments()) as client:
        held = [client.subscribe(TOPIC, replay="earliest") for _ in range(SUBSCRIPTIONS)]

        def read(index: int) -> None:
            for batch in held[index]:
                seen[index] += _numbers(batch)

        threads = [threading.Thread(target=read, args=(n,)) for n in range(SUBSCRIPTIONS)]
        for thread in threads:
            thread.start()
        published = publish_for(client, seconds)
        deadline = time.monotonic() + PATIENCE
        while any(len(each) < published for each in seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        for subscription in held:
            subscription.drain()
        for thread in threads:
            thread.join(PATIENCE)
    return published, seen


async def run_async(emulator: Emulator, seconds: float) -> tuple[int, list[list[int]]]:
    """Run the asyncio client with one task per subscription, and return the same as `run_sync`."""
    seen: list[list[int]] = [[] for _ in range(SUBSCRIPTIONS)]
    async with AsyncPubSubClient(**emulator.client_arguments()) as client:

        async def read(index: int) -> None:
            async with client.subscribe(TOPIC, replay="earliest") as subscription:
                async for batch in subscription:
                    seen[index] += _numbers(batch)

        tasks = [asyncio.create_task(read(n)) for n in range(SUBSCRIPTIONS)]
        with PubSubClient(**emulator.client_arguments()) as publisher:
            published = await asyncio.to_thread(publish_for, publisher, seconds)
        deadline = time.monotonic() + PATIENCE

        def behind() -> bool:
            return any(len(each) < published for each in seen) and time.monotonic() < deadline

        while behind():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return published, seen


def run(face: str, seconds: float) -> dict[str, Any]:
    """Run one client, and return the report."""
    with tempfile.TemporaryDirectory(prefix="sfpubsub-many-") as directory:
        emulator = Emulator(Path(directory) / "emulator")
        try:
            if face == "sync":
                published, seen = run_sync(emulator, seconds)
            else:
                published, seen = asyncio.run(run_async(emulator, seconds))
        finally:
            emulator.close()
    expected = list(range(published))
    return {
        "face": face,
        "subscriptions": SUBSCRIPTIONS,
        "published": published,
        "right": sum(each == expected for each in seen),
        "rss_kib": rss(),
        "threads_left": [t.name for t in threading.enumerate() if t.name.startswith("sfpubsub")],
    }


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("face", choices=["sync", "asyncio"])
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments = parser.parse_args()
    report = run(arguments.face, arguments.seconds)
    print(json.dumps(report))
    return 0 if report["right"] == SUBSCRIPTIONS and not report["threads_left"] else 1


if __name__ == "__main__":
    sys.exit(main())
