"""Tests of `wait_open`: events that are published after it are delivered."""

from __future__ import annotations

import asyncio

import pytest

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import StreamUnavailableError, SubscriptionClosedError

from ..conftest import PATIENCE
from .test_aio import client_of
from .test_managed import TOPIC

ORDER = {"Order_Number__c": "1"}


def test_an_event_after_wait_open_is_delivered(run_emulator, connect):
    """Subscribe at ``latest``, trigger, and wait: the event arrives."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.05))
    with connect(emulator).subscribe(TOPIC) as subscription:
        subscription.wait_open(PATIENCE)
        emulator.publish(TOPIC, [ORDER])
        batch = subscription.next_batch(PATIENCE)
        assert batch is not None
        assert batch[0].value["Order_Number__c"] == "1"


def test_an_event_after_wait_open_is_delivered_with_asyncio(run_emulator):
    """The same with the asyncio client."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.05))

    async def main() -> str:
        async with client_of(emulator) as client, client.subscribe(TOPIC) as subscription:
            await subscription.wait_open(PATIENCE)
            emulator.publish(TOPIC, [ORDER])
            batch = await subscription.next_batch(PATIENCE)
            return batch[0].value["Order_Number__c"]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == "1"


def test_wait_open_says_why_it_did_not_open(run_emulator, connect):
    """Without an answer in time, the error says so; after the end, it is that of the end."""
    subscription = connect(run_emulator()).subscribe(TOPIC)
    with pytest.raises(StreamUnavailableError, match=r"not open after 0\.01 s: the service"):
        subscription.wait_open(0.01)
    subscription.abort()
    with pytest.raises(SubscriptionClosedError):
        subscription.wait_open(PATIENCE)
