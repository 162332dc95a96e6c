"""Read several topics side by side with asyncio.

    python examples/consume_async.py /event/Order_Event__e /data/AccountChangeEvent

Ends when no topic had an event for five seconds; a service would read for ever.
"""

from __future__ import annotations

import asyncio
import sys

from sfpubsub import AsyncPubSubClient


async def follow(client: AsyncPubSubClient, topic: str) -> int:
    """Print the events of one topic; return how many there were."""
    count = 0
    async with client.subscribe(topic, replay="earliest") as subscription:
        while (batch := await subscription.next_batch(timeout=5)) is not None:
            for event in batch:
                print(topic, event.event_name, event.event_time)
            count += len(batch)
    return count


async def main() -> None:
    """Follow all topics of the command line on one connection."""
    topics = sys.argv[1:]
    async with AsyncPubSubClient.from_env() as client:
        counts = await asyncio.gather(*(follow(client, topic) for topic in topics))
    print(dict(zip(topics, counts, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
