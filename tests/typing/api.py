"""Expected types of the public API; only read by type checkers, never executed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

from sfpubsub import (
    AckMode,
    AsyncManagedSubscription,
    AsyncPubSubClient,
    AsyncReplayStore,
    AsyncSubscription,
    ChangeEvent,
    CommitReceipt,
    Event,
    EventBatch,
    Health,
    HealthState,
    ManagedSubscription,
    Publisher,
    PublishResult,
    PubSubClient,
    ReplayId,
    ReplayStore,
    Session,
    StartPosition,
    Subscription,
    TopicInfo,
)


class MyClient(PubSubClient):
    """A user-defined subclass, which `from_env` must return."""


class MyStore(ReplayStore):
    """A user-defined replay store."""

    def get(self, topic: str) -> StartPosition | None:
        return StartPosition.after(ReplayId(topic.encode()))

    def set(self, topic: str, replay_id: ReplayId) -> None:
        print(topic, bytes(replay_id))


class MyAsyncStore(AsyncReplayStore):
    """A user-defined asynchronous replay store."""

    async def get(self, topic: str) -> StartPosition | None:
        return None

    async def set(self, topic: str, replay_id: ReplayId) -> None:
        print(topic, replay_id.hex())


class Provider:
    """A user-defined session provider."""

    def get_session(self, expired: Session | None) -> Session:
        return Session("token", "https://example.com", "00D")


def sync_face(ack: AckMode) -> HealthState:
    """State the expected types of the synchronous client's results."""
    assert_type(MyClient.from_env(), MyClient)
    with PubSubClient(Provider(), endpoint="localhost:7011", insecure="1") as client:
        assert_type(client, PubSubClient)
        assert_type(client.get_topic("/event/X__e"), TopicInfo)
        assert_type(client.publish("/event/X__e", [{"A__c": 1}]), list[PublishResult])
        with client.open_publisher("/event/X__e", ordered=True) as publisher:
            assert_type(publisher, Publisher)
            assert_type(publisher.send({"A__c": 1}, event_id="a"), Future[PublishResult])
        with client.subscribe("/event/X__e", replay=MyStore(), ack=ack) as plain:
            assert_type(plain, Subscription)
            assert_type(plain.next_batch(1.0), EventBatch | None)
            for batch in plain:
                assert_type(batch, EventBatch)
                for event in batch:
                    assert_type(event, Event)
                    assert_type(event.change_event, ChangeEvent | None)
        with client.subscribe_managed("X", ack="manual") as managed:
            assert_type(managed, ManagedSubscription)
            assert_type(managed.commit(), CommitReceipt)
            assert_type(managed.closed, bool)
            assert_type(managed.health(), Health)
            return managed.health().state


async def async_face() -> None:
    """State the expected types of the asyncio client's results."""
    async with AsyncPubSubClient.from_env() as client:
        assert_type(client, AsyncPubSubClient)
        assert_type(await client.get_topic("/event/X__e"), TopicInfo)
        async with client.subscribe("/event/X__e", replay_store=MyAsyncStore()) as plain:
            assert_type(plain, AsyncSubscription)
            assert_type(await plain.next_batch(), EventBatch | None)
            async for event in plain.events():
                assert_type(event, Event)
        async with client.subscribe_managed("X") as managed:
            assert_type(managed, AsyncManagedSubscription)
            assert_type(await managed.commit(timeout=5.0), CommitReceipt)
            await managed.drain()


def rejected(client: PubSubClient) -> None:
    """Call subscribe() with arguments that type checkers have to reject."""
    client.subscribe("/event/X__e", ack="bad")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.subscribe("/event/X__e", on_undecodable="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.subscribe("/event/X__e", fields=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.subscribe("/event/X__e", replay=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
