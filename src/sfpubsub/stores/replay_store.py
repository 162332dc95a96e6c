"""Replay stores: keep the positions of subscriptions to topics, because the service does not.

The synchronous client uses a store only in threads that iterate, ack, drain or close, never in the
stream's own thread. That matters for stores that are tied to a thread, such as a shelve on Python
3.13. `AsyncPubSubClient` calls a blocking store in worker threads, and a mapping in the event
loop's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import Replay, ReplayId, StartPosition, start_position


class ReplayStore(ABC):
    """Stores one position per topic.

    `set` is called only after every event up to the position was acked, so a new process that
    starts at the position from `get` misses no event. Events that were not acked, or were acked
    after the last `set`, are redelivered.

    `set` is called only while the application calls the subscription, for instance to ack. It is
    called at most once per `Timings.store_interval`, but immediately if the application requests a
    batch and none is ready, or when the subscription ends.
    """

    may_wait: bool = True
    """Whether calls may block on a disk or a network. If so, the asyncio client makes them in a
    worker thread; otherwise it makes them in the event loop's thread.
    """

    @abstractmethod
    def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts; None to use its ``replay``."""

    @abstractmethod
    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Store *replay_id* durably as the position of *topic*."""


class MappingReplayStore(ReplayStore):
    """Stores positions in any mutable mapping, such as a dict, a shelve or a key-value database.

    Keys are topics. Values are the bytes of replay ids; `ReplayId` values are accepted as well.

    Args:
        mapping: The mapping, which is not copied; the caller opens, flushes and closes it.
    """

    may_wait = False  # some mappings, such as a shelve, are tied to the thread that created them

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        self._mapping = mapping

    def get(self, topic: str) -> StartPosition | None:
        """Return the stored position of *topic*; None if no position is stored.

        Raises:
            ConfigurationError: The stored value is not a replay id.
        """
        value = self._mapping.get(topic)
        if value is None:
            return None
        if isinstance(value, ReplayId):
            return StartPosition.after(value)
        if isinstance(value, bytes) and value:
            return StartPosition.after(ReplayId(value))
        raise ConfigurationError(
            f"the value {value!r} in the replay store under the key {topic} is not a replay id: "
            f"delete this key to start over, or store the bytes of a replay id"
        )

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Store the position's bytes under *topic*."""
        self._mapping[topic] = bytes(replay_id)


class DefaultMappingReplayStore(MappingReplayStore):
    """A `MappingReplayStore` with a default for topics that have no position yet.

    Args:
        mapping: See `MappingReplayStore`.
        default: Where a subscription starts if no position is stored for its topic.
    """

    def __init__(self, mapping: MutableMapping[str, Any], default: Replay) -> None:
        super().__init__(mapping)
        self._default = start_position(default)

    def get(self, topic: str) -> StartPosition:
        """Return the stored position of *topic*, or the default if no position is stored."""
        return super().get(topic) or self._default


class AsyncReplayStore(ABC):
    """A `ReplayStore` whose methods are coroutines. For `AsyncPubSubClient` only.

    The methods are awaited in the subscription's event loop, one at a time: `get` before the first
    stream is opened, `set` while `next_batch` or `drain` is awaited. If `set` is cancelled or
    fails, it is called again with the newest position.
    """

    @abstractmethod
    async def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts; None to use its ``replay``."""

    @abstractmethod
    async def set(self, topic: str, replay_id: ReplayId) -> None:
        """Store *replay_id* durably as the position of *topic*."""


def is_async(store: object) -> bool:
    """Return whether *store* is an `AsyncReplayStore` or a `ReplayStore` with coroutine methods."""
    return isinstance(store, AsyncReplayStore) or (
        isinstance(store, ReplayStore)
        and (iscoroutinefunction(store.get) or iscoroutinefunction(store.set))
    )


AnyStore: TypeAlias = ReplayStore | AsyncReplayStore

# What `subscribe` accepts as a replay store.
StoreLike: TypeAlias = MutableMapping[str, Any] | AnyStore


def start_and_store(
    replay: Replay | StoreLike, replay_store: StoreLike | None
) -> tuple[StartPosition, AnyStore | None]:
    """Convert the arguments of `subscribe` into a start position and a store.

    Args:
        replay: Start position for a topic without a stored one; or, for compatibility with
            aiosfstream, the store.
        replay_store: The store; None for no store.

    Raises:
        ConfigurationError: *replay* and *replay_store* are both stores, or *replay_store* is not a
            store.
        ValueError: *replay* is a string that is not a valid position.
    """
    if isinstance(replay, (MutableMapping, ReplayStore, AsyncReplayStore)):
        if replay_store is not None:
            raise ConfigurationError(
                "replay and replay_store are both stores: pass the start position as replay"
            )
        return StartPosition.latest(), as_store(replay)
    return start_position(replay), None if replay_store is None else as_store(replay_store)


def as_store(store: object) -> AnyStore:
    """Return *store*, wrapped in a `MappingReplayStore` if it is a mapping.

    Raises:
        ConfigurationError: *store* is neither a mapping nor a replay store.
    """
    if isinstance(store, MutableMapping):
        return MappingReplayStore(store)
    if isinstance(store, (ReplayStore, AsyncReplayStore)):
        return store
    raise ConfigurationError(
        f"a {type(store).__name__} is not a replay store: pass a mapping, a FileReplayStore, or an "
        f"object whose class derives from ReplayStore or AsyncReplayStore"
    )
