"""The Streaming API: PushTopic and generic events over CometD, with durable replay.

Salesforce keeps it for what the Pub/Sub API does not carry. Platform events and change events can
be read here as well; `sfpubsub.PubSubClient` is the newer way for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfpubsub.streaming.aio import AsyncStreamingClient
    from sfpubsub.streaming.client import StreamingClient
    from sfpubsub.streaming.failures import BayeuxError
    from sfpubsub.streaming.generic import PushTopic, PushTopics
    from sfpubsub.streaming.message import StreamingMessage
    from sfpubsub.streaming.numbers import Pace
    from sfpubsub.streaming.positions import as_replay_id

_HOMES = {
    "AsyncStreamingClient": "aio",
    "BayeuxError": "failures",
    "Pace": "numbers",
    "PushTopic": "generic",
    "PushTopics": "generic",
    "StreamingClient": "client",
    "StreamingMessage": "message",
    "as_replay_id": "positions",
}

__all__ = [
    "AsyncStreamingClient",
    "BayeuxError",
    "Pace",
    "PushTopic",
    "PushTopics",
    "StreamingClient",
    "StreamingMessage",
    "as_replay_id",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sfpubsub.streaming' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sfpubsub.streaming.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
