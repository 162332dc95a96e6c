"""The Streaming API: PushTopic and generic events over CometD, with durable replay.

The Pub/Sub API does not deliver these two kinds of events. This package can also read platform
events and change events, but `sfpubsub.PubSubClient` is the newer client for them.
"""

from sfpubsub.streaming.aio import AsyncStreamingClient
from sfpubsub.streaming.bayeux import StreamingMessage
from sfpubsub.streaming.client import StreamingClient
from sfpubsub.streaming.failures import BayeuxError
from sfpubsub.streaming.positions import as_replay_id
from sfpubsub.streaming.protocol import Pace
from sfpubsub.tooling.pushtopics import PushTopic, PushTopics

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
