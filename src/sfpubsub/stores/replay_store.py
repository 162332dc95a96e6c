"""Where a plain subscription's position lives when the caller keeps it.

With the synchronous client a store is touched only in threads that iterate, ack, drain or close,
never by the stream's own thread. That matters for stores that are tied to a thread, such as a
shelve on Python 3.13. `AsyncPubSubClient` calls a store that may wait in threads of its own, and a
mapping in the loop's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from sfpubsub.errors import ConfigurationError
from sfpubsub.types import Replay, ReplayId, StartPosition, start_position


class ReplayStore(ABC):
    """A position per topic.

    `set` is called after every event up to the position was acked, so that a new process which
    starts at `get` misses nothing, and sees again what was not acked or was acked since the last
    `set`: at most `Timings.store_interval` lies between an ack and the next chance to store it.
    """

    may_wait: bool = True
    """Whether a call may wait for a disk or a network. Then the asyncio face makes it in a thread;
    any other store is called in the loop's own thread."""

    @abstractmethod
    def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts, or None for where ``replay`` says."""

    @abstractmethod
    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id* as the position of *topic*; durable when this returns."""


class MappingReplayStore(ReplayStore):
    """Positions in any mutable mapping: a dict, a shelve, a key-value database.

    Keys are topics, values the bytes of a replay id. Values that are a `ReplayId` are read as well.

    Args:
        mapping: Used as it is; opening, closing and flushing it are the caller's business.
    """

    may_wait = False  # some mappings, such as a shelve, are tied to the thread that made them

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        self._mapping = mapping

    def get(self, topic: str) -> StartPosition | None:
        """Return the position kept for *topic*, or None.

        Raises:
            ConfigurationError: What is kept there is not a replay id.
        """
        value = self._mapping.get(topic)
        if value is None:
            return None
        if isinstance(value, ReplayId):
            return StartPosition.after(value)
        if isinstance(value, bytes) and value:
            return StartPosition.after(ReplayId(value))
        raise ConfigurationError(
            f"the replay store holds {value!r} for {topic}, which is not a replay id: delete the "
            f"key to start over, or store bytes"
        )

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Put the position's bytes under *topic*."""
        self._mapping[topic] = bytes(replay_id)


class DefaultMappingReplayStore(MappingReplayStore):
    """As `MappingReplayStore`, with a start of the caller's choice for the first run.

    Args:
        mapping: Used as it is.
        default: Where a topic starts that the mapping does not know.
    """

    def __init__(self, mapping: MutableMapping[str, Any], default: Replay) -> None:
        super().__init__(mapping)
        self._default = start_position(default)

    def get(self, topic: str) -> StartPosition:
        """Return the position kept for *topic*, or the default."""
        return super().get(topic) or self._default


class AsyncReplayStore(ABC):
    """A `ReplayStore` whose methods are coroutines. For `AsyncPubSubClient` only.

    They are awaited in the loop of the subscription, one at a time: `get` before the first stream
    is opened, `set` while `next_batch` or `drain` is awaited. A `set` that is cancelled or fails is
    called again with the newest position.
    """

    @abstractmethod
    async def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts, or None for where ``replay`` says."""

    @abstractmethod
    async def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id* as the position of *topic*; durable when this returns."""


def is_async(store: object) -> bool:
    """Return whether *store* is a replay store with a coroutine among its methods."""
    return isinstance(store, AsyncReplayStore) or (
        isinstance(store, ReplayStore)
        and (iscoroutinefunction(store.get) or iscoroutinefunction(store.set))
    )


AnyStore: TypeAlias = ReplayStore | AsyncReplayStore

# What `subscribe` takes as the place where positions are kept.
StoreLike: TypeAlias = MutableMapping[str, Any] | AnyStore


def start_and_store(
    replay: Replay | StoreLike, replay_store: StoreLike | None
) -> tuple[StartPosition, AnyStore | None]:
    """Return what the arguments ``replay`` and ``replay_store`` of `subscribe` stand for.

    Args:
        replay: A position, for a topic that the store does not know; or, as aiosfstream has it,
            the store.
        replay_store: Where positions are kept.

    Raises:
        ConfigurationError: Both are a store, or *replay_store* is not one of these.
        ValueError: *replay* is a string that is not a position.
    """
    if isinstance(replay, (MutableMapping, ReplayStore, AsyncReplayStore)):
        if replay_store is not None:
            raise ConfigurationError(
                "replay and replay_store are both a store: give the start position as replay"
            )
        return StartPosition.latest(), as_store(replay)
    return start_position(replay), None if replay_store is None else as_store(replay_store)


def as_store(store: object) -> AnyStore:
    """Return what keeps positions for a mapping or a store.

    Raises:
        ConfigurationError: It is neither a mapping nor a store.
    """
    if isinstance(store, MutableMapping):
        return MappingReplayStore(store)
    if isinstance(store, (ReplayStore, AsyncReplayStore)):
        return store
    raise ConfigurationError(
        f"a {type(store).__name__} is not a replay store: give a mapping, a FileReplayStore, or an "
        f"object whose class derives from ReplayStore or AsyncReplayStore"
    )
