"""Start positions of channels, and the form in which positions are stored.

Positions of the Streaming API are numbers. They are stored as `ReplayId` objects of eight bytes, so
every replay store works for both APIs. A position belongs to one of them: those of the Pub/Sub API
are opaque, and have ten bytes.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, TypeAlias

from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import AnyStore, AsyncReplayStore, ReplayStore, as_store
from sfpubsub.types import Replay, ReplayId, ReplayPreset, start_position

NEW_EVENTS = -1
ALL_EVENTS = -2

_BYTES = 8

ReplayStart: TypeAlias = int | Replay
"""``-1``, ``-2``, a replay id, or a form that the Pub/Sub client accepts: ``latest``,
`ReplayOption`, …
"""

ReplaySource: TypeAlias = ReplayStart | MutableMapping[str, Any] | AnyStore


def as_replay_id(number: int) -> ReplayId:
    """Return a replay id of the Streaming API in the form that replay stores use."""
    return ReplayId(number.to_bytes(_BYTES, "big"))


def as_number(start: ReplayStart, channel: str = "a channel") -> int:
    """Return a start position in the form of the Streaming API: ``-1``, ``-2`` or a replay id.

    Args:
        start: The start position.
        channel: Name of the channel, for error messages.

    Raises:
        ConfigurationError: *start* is not a valid start position.
    """
    if type(start) is int and ALL_EVENTS <= start < 1 << 8 * _BYTES - 1:
        return start
    try:
        found = start_position(start)  # type: ignore[arg-type]  # other types fail
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{channel} cannot start at {start!r}: use -1, -2, a replay id, a mapping or a store"
        ) from error
    if found.replay_id is None:
        return NEW_EVENTS if found.preset is ReplayPreset.LATEST else ALL_EVENTS
    if len(bytes(found.replay_id)) != _BYTES:
        raise ConfigurationError(
            f"the position {found.replay_id.hex()} of {channel} is not a position of the Streaming "
            f"API, whose positions have {_BYTES} bytes: it was stored by PubSubClient, the client "
            f"of the Pub/Sub API; give this client a store of its own, or pass a start position"
        )
    return int.from_bytes(bytes(found.replay_id), "big")


def start_and_store(replay: ReplaySource) -> tuple[int, AnyStore | None]:
    """Return the default start position and the store, which is None if *replay* is a position.

    Args:
        replay: The position where channels start, or a store. With a store, channels without a
            stored position start with new events.

    Raises:
        ConfigurationError: *replay* is neither a valid position nor a store.
    """
    if isinstance(replay, (MutableMapping, ReplayStore, AsyncReplayStore)):
        return NEW_EVENTS, as_store(replay)
    return as_number(replay), None
