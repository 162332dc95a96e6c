"""Salesforce Pub/Sub API for Python and PySpark.

Names are resolved when they are first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfpubsub.auth.session import Session
    from sfpubsub.avro.change_events import FieldChange, FieldState, TextDiff
    from sfpubsub.client.aio import AsyncPubSubClient
    from sfpubsub.client.aio_subscription import AsyncManagedSubscription, AsyncSubscription
    from sfpubsub.client.batch import Event, EventBatch
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.file_replay_store import FileReplayStore
    from sfpubsub.client.quarantine import FileQuarantine, Quarantine, QuarantinedEvent
    from sfpubsub.client.replay_store import (
        AsyncReplayStore,
        DefaultMappingReplayStore,
        MappingReplayStore,
        ReplayStore,
    )
    from sfpubsub.client.schema_store import FileSchemaStore, SchemaStore
    from sfpubsub.client.subscription import ManagedSubscription, Subscription
    from sfpubsub.errors import SfPubSubError
    from sfpubsub.types import (
        CommitReceipt,
        Gap,
        Health,
        PublishResult,
        ReplayId,
        ReplayOption,
        StartPosition,
    )

__version__ = "0.1.0"

_HOMES = {
    "AsyncManagedSubscription": "sfpubsub.client.aio_subscription",
    "AsyncPubSubClient": "sfpubsub.client.aio",
    "AsyncReplayStore": "sfpubsub.client.replay_store",
    "AsyncSubscription": "sfpubsub.client.aio_subscription",
    "CommitReceipt": "sfpubsub.types",
    "DefaultMappingReplayStore": "sfpubsub.client.replay_store",
    "Event": "sfpubsub.client.batch",
    "EventBatch": "sfpubsub.client.batch",
    "FieldChange": "sfpubsub.avro.change_events",
    "FieldState": "sfpubsub.avro.change_events",
    "FileQuarantine": "sfpubsub.client.quarantine",
    "FileReplayStore": "sfpubsub.client.file_replay_store",
    "FileSchemaStore": "sfpubsub.client.schema_store",
    "Gap": "sfpubsub.types",
    "Health": "sfpubsub.types",
    "ManagedSubscription": "sfpubsub.client.subscription",
    "MappingReplayStore": "sfpubsub.client.replay_store",
    "PubSubClient": "sfpubsub.client.client",
    "PublishResult": "sfpubsub.types",
    "Quarantine": "sfpubsub.client.quarantine",
    "QuarantinedEvent": "sfpubsub.client.quarantine",
    "ReplayId": "sfpubsub.types",
    "ReplayOption": "sfpubsub.types",
    "ReplayStore": "sfpubsub.client.replay_store",
    "SchemaStore": "sfpubsub.client.schema_store",
    "Session": "sfpubsub.auth.session",
    "SfPubSubError": "sfpubsub.errors",
    "StartPosition": "sfpubsub.types",
    "Subscription": "sfpubsub.client.subscription",
    "TextDiff": "sfpubsub.avro.change_events",
}

__all__ = [
    "AsyncManagedSubscription",
    "AsyncPubSubClient",
    "AsyncReplayStore",
    "AsyncSubscription",
    "CommitReceipt",
    "DefaultMappingReplayStore",
    "Event",
    "EventBatch",
    "FieldChange",
    "FieldState",
    "FileQuarantine",
    "FileReplayStore",
    "FileSchemaStore",
    "Gap",
    "Health",
    "ManagedSubscription",
    "MappingReplayStore",
    "PubSubClient",
    "PublishResult",
    "Quarantine",
    "QuarantinedEvent",
    "ReplayId",
    "ReplayOption",
    "ReplayStore",
    "SchemaStore",
    "Session",
    "SfPubSubError",
    "StartPosition",
    "Subscription",
    "TextDiff",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sfpubsub' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
