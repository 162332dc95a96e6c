"""Receive events of the Streaming API with aiosfstream, unchanged.

    python aiosfstream_client.py MODULE URL CHANNEL COUNT

MODULE is aiosfstream or aiosfstream_ng. Signs in with a password, replays from the first event, and
prints the replay ids of COUNT events as they arrive.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

name, url, channel, count = sys.argv[1:]
library = importlib.import_module(name)
# The packages know the two login hosts of Salesforce, and no setting for another one.
importlib.import_module(f"{name}.auth").TOKEN_URL = f"{url}/services/oauth2/token"


async def main() -> None:
    """Print the replay ids of the first events."""
    sign_in = library.PasswordAuthenticator(
        consumer_key="emulator",
        consumer_secret="emulator-secret",
        username="user@example.com",
        password="emulator-password",
    )
    left = int(count)
    first = library.ReplayOption.ALL_EVENTS
    async with library.Client(sign_in, replay=first) as client:
        await client.subscribe(channel)
        async for message in client:
            print(message["data"]["event"]["replayId"], flush=True)
            left -= 1
            if left == 0:
                return


asyncio.run(main())
