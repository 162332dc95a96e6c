"""Read several topics concurrently with asyncio.

    python examples/consume_async.py /event/Order_Event__e /data/AccountChangeEvent

It stops reading a topic after five seconds without an event; a service would read forever.
"""

from __future__ import annotations

import asyncio
import sys

from sfpubsub import AsyncPubSubClient


async def follow(client: AsyncPubSubClient, topic: str) -> int:
    """Print the events of one topic; return their number."""
    count = 0
    async with client.subscribe(topic, replay="earliest") as subscription:
        while (batch := await subscription.next_batch(timeout=5)) is not None:
            for event in batch:
                print(topic, event.event_name, event.event_time)
            count += len(batch)
    return count


async def main() -> None:
    """Read all topics given on the command line over one connection."""
    topics = sys.argv[1:]
    async with AsyncPubSubClient.from_env() as client:
        counts = await asyncio.gather(*(follow(client, topic) for topic in topics))
    print(dict(zip(topics, counts, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
