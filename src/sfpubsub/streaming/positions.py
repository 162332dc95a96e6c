"""Where a channel starts, and where its position is kept.

The Streaming API's positions are numbers; a replay store holds them as the `ReplayId` of eight
bytes that the Pub/Sub API uses for the same number, so that every store serves both.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, TypeAlias

from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import (
    AnyStore,
    AsyncReplayStore,
    MappingReplayStore,
    ReplayStore,
    is_async,
)
from sfpubsub.types import Replay, ReplayId, ReplayPreset, StartPosition, start_position

NEW_EVENTS = -1
ALL_EVENTS = -2

_BYTES = 8

ReplayStart: TypeAlias = int | Replay
"""``-1``, ``-2``, an id, or a form that the Pub/Sub client takes: ``latest``, `ReplayOption`, …"""

ReplaySource: TypeAlias = ReplayStart | MutableMapping[str, Any] | AnyStore


def as_replay_id(number: int) -> ReplayId:
    """Return the form in which a store keeps a position."""
    return ReplayId(number.to_bytes(_BYTES, "big"))


def as_number(start: ReplayStart, channel: str = "a channel") -> int:
    """Return a start as the Streaming API knows it: ``-1``, ``-2`` or an id.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(start, int) and not isinstance(start, bool):
        if start >= ALL_EVENTS and start < 1 << 8 * _BYTES - 1:
            return start
        raise ConfigurationError(f"{start} is not a replay id: use -1, -2 or that of an event")
    if not isinstance(start, (str, ReplayId, StartPosition)) and not hasattr(start, "value"):
        raise ConfigurationError(
            f"{type(start).__name__} says not where {channel} starts: use a ReplayOption, a "
            f"mapping, a ReplayStore, or the replay id of an event"
        )
    try:
        found = start_position(start)  # type: ignore[arg-type]  # an enum of another kind fails
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{channel} cannot start at {start!r}") from error
    if found.preset is not ReplayPreset.CUSTOM or found.replay_id is None:
        return NEW_EVENTS if found.preset is ReplayPreset.LATEST else ALL_EVENTS
    if len(bytes(found.replay_id)) != _BYTES:
        raise ConfigurationError(
            f"the position kept for {channel} is not one of the Streaming API: delete it to start "
            f"over, or use another store"
        )
    return int.from_bytes(bytes(found.replay_id), "big")


def as_store(replay: ReplaySource, *, awaits: bool) -> AnyStore | None:
    """Return the store that a ``replay`` argument stands for; None for a fixed start.

    Args:
        replay: The argument.
        awaits: Whether the caller can await a store.

    Raises:
        ConfigurationError: It is an async store, for nobody.
    """
    if is_async(replay) and not awaits:
        raise ConfigurationError(
            f"{type(replay).__name__} is an async store, which only AsyncStreamingClient can await"
        )
    if isinstance(replay, (ReplayStore, AsyncReplayStore)):
        return replay
    if isinstance(replay, MutableMapping):
        return MappingReplayStore(replay)
    return None
