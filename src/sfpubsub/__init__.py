"""Client for Salesforce's Pub/Sub API, for Python and PySpark.

Public names are imported when they are first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfpubsub.auth.oauth import ClientCredentials, JwtBearer, RefreshToken, UsernamePassword
    from sfpubsub.auth.session import Session, SessionProvider
    from sfpubsub.auth.sf_cli import SfCliLogin
    from sfpubsub.auth.simple_salesforce import SimpleSalesforceLogin
    from sfpubsub.avro.change_events import ChangeEvent, FieldChange, FieldState, TextDiff
    from sfpubsub.client.aio import AsyncPubSubClient
    from sfpubsub.client.aio_publisher import AsyncPublisher
    from sfpubsub.client.aio_subscription import AsyncManagedSubscription, AsyncSubscription
    from sfpubsub.client.batch import Event, EventBatch
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.dispatch import QuarantineLimit, Retry, Shared
    from sfpubsub.client.handling import RunSummary, by_record
    from sfpubsub.client.options import AckMode
    from sfpubsub.client.publisher import Publisher
    from sfpubsub.client.subscription import ManagedSubscription, Subscription
    from sfpubsub.client.undecodable import OnUndecodable
    from sfpubsub.config import Limits, Timings
    from sfpubsub.errors import (
        AuthenticationError,
        CommitError,
        ConfigurationError,
        DecodeError,
        EncodeError,
        FilteredObjectError,
        HandlerError,
        LocalProtocolError,
        MissingExtraError,
        OtherOrgError,
        PermissionDeniedError,
        ProtocolError,
        PublishError,
        QuotaExceededError,
        ReadExpiredError,
        RemoteProtocolError,
        ReplayIdRejectedError,
        RequestRefusedError,
        SchemaError,
        SchemaNotFoundError,
        SessionExpiredError,
        SfPubSubError,
        StreamError,
        StreamStalledError,
        StreamUnavailableError,
        SubscriptionBusyError,
        SubscriptionClosedError,
        SubscriptionNotFoundError,
        SubscriptionStoppedError,
        TopicNotFoundError,
        WriteError,
    )
    from sfpubsub.stores.file_quarantine import FileQuarantine
    from sfpubsub.stores.file_replay_store import FileReplayStore
    from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
    from sfpubsub.stores.replay_store import (
        AsyncReplayStore,
        DefaultMappingReplayStore,
        MappingReplayStore,
        ReplayStore,
    )
    from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore
    from sfpubsub.streaming.aio import AsyncStreamingClient
    from sfpubsub.streaming.bayeux import StreamingMessage
    from sfpubsub.streaming.client import StreamingClient
    from sfpubsub.types import (
        CommitReceipt,
        Gap,
        GapReason,
        Health,
        HealthState,
        ProducerEvent,
        PublishCounts,
        PublishResult,
        RawEvent,
        Replay,
        ReplayId,
        ReplayOption,
        SchemaInfo,
        StartPosition,
        TopicInfo,
        dedupe_key,
    )

__version__ = "0.1.0"

_HOMES = {
    "AckMode": "sfpubsub.client.options",
    "AsyncManagedSubscription": "sfpubsub.client.aio_subscription",
    "AsyncPubSubClient": "sfpubsub.client.aio",
    "AsyncPublisher": "sfpubsub.client.aio_publisher",
    "AsyncReplayStore": "sfpubsub.stores.replay_store",
    "AsyncStreamingClient": "sfpubsub.streaming.aio",
    "AsyncSubscription": "sfpubsub.client.aio_subscription",
    "AuthenticationError": "sfpubsub.errors",
    "ChangeEvent": "sfpubsub.avro.change_events",
    "ClientCredentials": "sfpubsub.auth.oauth",
    "CommitError": "sfpubsub.errors",
    "CommitReceipt": "sfpubsub.types",
    "ConfigurationError": "sfpubsub.errors",
    "DecodeError": "sfpubsub.errors",
    "DefaultMappingReplayStore": "sfpubsub.stores.replay_store",
    "EncodeError": "sfpubsub.errors",
    "Event": "sfpubsub.client.batch",
    "EventBatch": "sfpubsub.client.batch",
    "FieldChange": "sfpubsub.avro.change_events",
    "FieldState": "sfpubsub.avro.change_events",
    "FileQuarantine": "sfpubsub.stores.file_quarantine",
    "FilteredObjectError": "sfpubsub.errors",
    "FileReplayStore": "sfpubsub.stores.file_replay_store",
    "FileSchemaStore": "sfpubsub.stores.schema_store",
    "Gap": "sfpubsub.types",
    "GapReason": "sfpubsub.types",
    "HandlerError": "sfpubsub.errors",
    "Health": "sfpubsub.types",
    "HealthState": "sfpubsub.types",
    "JwtBearer": "sfpubsub.auth.oauth",
    "Limits": "sfpubsub.config",
    "LocalProtocolError": "sfpubsub.errors",
    "ManagedSubscription": "sfpubsub.client.subscription",
    "MappingReplayStore": "sfpubsub.stores.replay_store",
    "MissingExtraError": "sfpubsub.errors",
    "OnUndecodable": "sfpubsub.client.undecodable",
    "OtherOrgError": "sfpubsub.errors",
    "PermissionDeniedError": "sfpubsub.errors",
    "ProducerEvent": "sfpubsub.types",
    "ProtocolError": "sfpubsub.errors",
    "PubSubClient": "sfpubsub.client.client",
    "PublishCounts": "sfpubsub.types",
    "PublishError": "sfpubsub.errors",
    "PublishResult": "sfpubsub.types",
    "Publisher": "sfpubsub.client.publisher",
    "Quarantine": "sfpubsub.stores.quarantine",
    "QuarantineLimit": "sfpubsub.client.dispatch",
    "QuarantinedEvent": "sfpubsub.stores.quarantine",
    "QuotaExceededError": "sfpubsub.errors",
    "RawEvent": "sfpubsub.types",
    "ReadExpiredError": "sfpubsub.errors",
    "RefreshToken": "sfpubsub.auth.oauth",
    "RemoteProtocolError": "sfpubsub.errors",
    "Replay": "sfpubsub.types",
    "ReplayId": "sfpubsub.types",
    "ReplayIdRejectedError": "sfpubsub.errors",
    "ReplayOption": "sfpubsub.types",
    "ReplayStore": "sfpubsub.stores.replay_store",
    "RequestRefusedError": "sfpubsub.errors",
    "Retry": "sfpubsub.client.dispatch",
    "RunSummary": "sfpubsub.client.handling",
    "SchemaError": "sfpubsub.errors",
    "SchemaInfo": "sfpubsub.types",
    "SchemaNotFoundError": "sfpubsub.errors",
    "SchemaStore": "sfpubsub.stores.schema_store",
    "Session": "sfpubsub.auth.session",
    "SessionExpiredError": "sfpubsub.errors",
    "SessionProvider": "sfpubsub.auth.session",
    "SfCliLogin": "sfpubsub.auth.sf_cli",
    "SfPubSubError": "sfpubsub.errors",
    "Shared": "sfpubsub.client.dispatch",
    "SimpleSalesforceLogin": "sfpubsub.auth.simple_salesforce",
    "StartPosition": "sfpubsub.types",
    "StreamError": "sfpubsub.errors",
    "StreamStalledError": "sfpubsub.errors",
    "StreamUnavailableError": "sfpubsub.errors",
    "StreamingClient": "sfpubsub.streaming.client",
    "StreamingMessage": "sfpubsub.streaming.bayeux",
    "Subscription": "sfpubsub.client.subscription",
    "SubscriptionBusyError": "sfpubsub.errors",
    "SubscriptionClosedError": "sfpubsub.errors",
    "SubscriptionNotFoundError": "sfpubsub.errors",
    "SubscriptionStoppedError": "sfpubsub.errors",
    "TextDiff": "sfpubsub.avro.change_events",
    "Timings": "sfpubsub.config",
    "TopicInfo": "sfpubsub.types",
    "TopicNotFoundError": "sfpubsub.errors",
    "UsernamePassword": "sfpubsub.auth.oauth",
    "WriteError": "sfpubsub.errors",
    "by_record": "sfpubsub.client.handling",
    "dedupe_key": "sfpubsub.types",
}

__all__ = [
    "AckMode",
    "AsyncManagedSubscription",
    "AsyncPubSubClient",
    "AsyncPublisher",
    "AsyncReplayStore",
    "AsyncStreamingClient",
    "AsyncSubscription",
    "AuthenticationError",
    "ChangeEvent",
    "ClientCredentials",
    "CommitError",
    "CommitReceipt",
    "ConfigurationError",
    "DecodeError",
    "DefaultMappingReplayStore",
    "EncodeError",
    "Event",
    "EventBatch",
    "FieldChange",
    "FieldState",
    "FileQuarantine",
    "FileReplayStore",
    "FileSchemaStore",
    "FilteredObjectError",
    "Gap",
    "GapReason",
    "HandlerError",
    "Health",
    "HealthState",
    "JwtBearer",
    "Limits",
    "LocalProtocolError",
    "ManagedSubscription",
    "MappingReplayStore",
    "MissingExtraError",
    "OnUndecodable",
    "OtherOrgError",
    "PermissionDeniedError",
    "ProducerEvent",
    "ProtocolError",
    "PubSubClient",
    "PublishCounts",
    "PublishError",
    "PublishResult",
    "Publisher",
    "Quarantine",
    "QuarantineLimit",
    "QuarantinedEvent",
    "QuotaExceededError",
    "RawEvent",
    "ReadExpiredError",
    "RefreshToken",
    "RemoteProtocolError",
    "Replay",
    "ReplayId",
    "ReplayIdRejectedError",
    "ReplayOption",
    "ReplayStore",
    "RequestRefusedError",
    "Retry",
    "RunSummary",
    "SchemaError",
    "SchemaInfo",
    "SchemaNotFoundError",
    "SchemaStore",
    "Session",
    "SessionExpiredError",
    "SessionProvider",
    "SfCliLogin",
    "SfPubSubError",
    "Shared",
    "SimpleSalesforceLogin",
    "StartPosition",
    "StreamError",
    "StreamStalledError",
    "StreamUnavailableError",
    "StreamingClient",
    "StreamingMessage",
    "Subscription",
    "SubscriptionBusyError",
    "SubscriptionClosedError",
    "SubscriptionNotFoundError",
    "SubscriptionStoppedError",
    "TextDiff",
    "Timings",
    "TopicInfo",
    "TopicNotFoundError",
    "UsernamePassword",
    "WriteError",
    "__version__",
    "by_record",
    "dedupe_key",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sfpubsub' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
