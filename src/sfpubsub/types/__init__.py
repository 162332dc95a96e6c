"""The values that the layers pass to each other: plain data, without I/O or a clock.

This package uses only the standard library.
"""

from sfpubsub.types.events import (
    EventKey,
    ProducerEvent,
    PublishCounts,
    PublishResult,
    RawEvent,
    SchemaInfo,
    TopicInfo,
    dedupe_key,
    event_keys,
)
from sfpubsub.types.health import CommitReceipt, Gap, GapReason, Health, HealthState
from sfpubsub.types.positions import (
    Replay,
    ReplayId,
    ReplayOption,
    ReplayPreset,
    StartPosition,
    start_position,
)

__all__ = [
    "CommitReceipt",
    "EventKey",
    "Gap",
    "GapReason",
    "Health",
    "HealthState",
    "ProducerEvent",
    "PublishCounts",
    "PublishResult",
    "RawEvent",
    "Replay",
    "ReplayId",
    "ReplayOption",
    "ReplayPreset",
    "SchemaInfo",
    "StartPosition",
    "TopicInfo",
    "dedupe_key",
    "event_keys",
    "start_position",
]
