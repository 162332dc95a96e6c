"""Map a gRPC status and its trailers to a typed error and a reaction. No other module does this.

The service names the cause in the ``error-code`` trailer, whose value is always
``sfdc.platform.eventbus.grpc.<suffix>``. The gRPC status is less precise. It is used only if the
trailer is missing, which means that something between client and service failed (Salesforce
documentation, handling errors). An unknown suffix is classified by the status, except that the
reaction TURNED_AWAY is replaced by STOP, because the response came from the service itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast

import grpc

from sfpubsub.errors import (
    AuthenticationError,
    LocalProtocolError,
    PermissionDeniedError,
    QuotaExceededError,
    ReplayIdRejectedError,
    SchemaNotFoundError,
    SessionExpiredError,
    SfPubSubError,
    StreamError,
    StreamUnavailableError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
    TopicNotFoundError,
)
from sfpubsub.protocol.events import Failure, FailureKind

PREFIX = "sfdc.platform.eventbus.grpc."


@dataclass(frozen=True, slots=True)
class Rule:
    """How a failure is classified: its kind, its error class, and advice for the user."""

    kind: FailureKind
    error: type[SfPubSubError]
    cure: str = ""
    """What the user can do, or an empty string. ``{what}`` is replaced by the name of the topic,
    schema or subscription.
    """


_RETRY = Rule(FailureKind.RETRY, StreamUnavailableError)
_OURS = Rule(FailureKind.STOP, LocalProtocolError, "this is a bug in sfpubsub: please report it")
_RENEW = Rule(
    FailureKind.REAUTHENTICATE,
    SessionExpiredError,
    "check that the access token is valid and has the api scope, and that its session is not "
    "locked to an IP address",
)
_NO_TOPIC = Rule(
    FailureKind.STOP,
    TopicNotFoundError,
    "check the name, which is case-sensitive and begins with /event/ or /data/",
)
_DENIED = Rule(FailureKind.STOP, PermissionDeniedError, "grant the integration user access to it")
_NO_SUBSCRIPTION = Rule(
    FailureKind.STOP,
    SubscriptionNotFoundError,
    "check the name in sfpubsub managed list; a new managed subscription takes several minutes to "
    "become available",
)
_REJECTED = Rule(FailureKind.POSITION_REJECTED, ReplayIdRejectedError)
_QUOTA = Rule(
    FailureKind.STOP,
    QuotaExceededError,
    "check the org's event allocations, and resume within 72 h, before the events expire",
)
_NO_SCHEMA = Rule(FailureKind.STOP, SchemaNotFoundError, "check the schema id")
_STOPPED = Rule(
    FailureKind.STOP,
    SubscriptionStoppedError,
    "set its state to RUN with sfpubsub managed start {what}; it then starts at its defaultReplay",
)
_HELD = Rule(FailureKind.SLOT_HELD, SubscriptionBusyError)

# By suffix of the error code (Salesforce documentation, handling errors).
BY_CODE: dict[str, Rule] = {
    "service.unavailable": _RETRY,
    "service.auth.error": _RENEW,
    "service.auth.headers.invalid": Rule(
        FailureKind.STOP,
        AuthenticationError,
        "check the access token, the instance URL and the tenant id",
    ),
    "service.auth.refresh.invalid": _RENEW,
    "service.protection.triggered": _RETRY,
    "service.protection.stream.limit.triggered": _RETRY,
    "service.tenant.license": _DENIED,
    "concurrent.client.limit.exceeded": _RETRY,
    "topic.not.found": _NO_TOPIC,
    "topic.meta.permission": _DENIED,
    "topic.api.unavailable": _RETRY,
    "topic.validation.empty": _NO_TOPIC,
    "schema.meta.permission": _DENIED,
    "schema.api.unavailable": _RETRY,
    "schema.validation.failed": _NO_SCHEMA,
    "subscription.fetch.replayid.corrupted": _REJECTED,
    "subscription.fetch.replayid.validation.failed": _REJECTED,
    "subscription.fetch.replay.repeated": _RETRY,
    "subscription.fetch.requested.events.invalid": _OURS,
    "subscription.fetch.overflow": _RETRY,
    "subscription.fetch.topic.mismatch": _OURS,
    "subscription.fetch.request.invalid": _OURS,
    "subscription.topic.cannot.subscribe": _DENIED,
    "subscription.limit.exceeded": _QUOTA,
    "subscription.internal.error": _RETRY,
    "publish.stream.sweeper.timeout": _RETRY,
    "publish.auth.refresh.invalid": _OURS,
    "publish.event.count.invalid": _OURS,
    "publish.topic.mismatch": _OURS,
    "publish.topic.validation.empty": _NO_TOPIC,
    "managed.subscription.already.active": _HELD,
    "managed.subscription.config.stopped": _STOPPED,
    "managed.subscription.config.deleted": Rule(
        FailureKind.STOP, SubscriptionStoppedError, "it was deleted: create one with a new name"
    ),
    "managed.subscription.developer.name.not.found": _NO_SUBSCRIPTION,
    "managed.subscription.subscription.id.not.found": _NO_SUBSCRIPTION,
    "managed.subscription.subscription.id.invalid": _NO_SUBSCRIPTION,
    "managed.subscription.id.or.developer.name.empty": _NO_SUBSCRIPTION,
    "managed.subscription.fetch.request.events.invalid": _OURS,
    "managed.subscription.fetch.request.invalid": _OURS,
    "managed.subscription.fetch.request.commit.request.restricted": _OURS,
    "managed.subscription.fetch.request.auth.request.restricted": _OURS,
}


def _turned_away(rule: Rule) -> Rule:
    return replace(rule, kind=FailureKind.TURNED_AWAY)


# By status, for failures without an error code.
BY_STATUS: dict[grpc.StatusCode, Rule] = {
    grpc.StatusCode.CANCELLED: _RETRY,
    grpc.StatusCode.UNKNOWN: _RETRY,
    grpc.StatusCode.INVALID_ARGUMENT: Rule(FailureKind.STOP, StreamError),
    # The service ends a managed stream with this status if a commit is late; the next stream starts
    # at the committed position.
    grpc.StatusCode.DEADLINE_EXCEEDED: _RETRY,
    grpc.StatusCode.NOT_FOUND: _turned_away(_NO_TOPIC),
    grpc.StatusCode.ALREADY_EXISTS: _HELD,
    grpc.StatusCode.PERMISSION_DENIED: _turned_away(_DENIED),
    grpc.StatusCode.RESOURCE_EXHAUSTED: _RETRY,
    grpc.StatusCode.FAILED_PRECONDITION: Rule(FailureKind.TURNED_AWAY, StreamError),
    grpc.StatusCode.ABORTED: _RETRY,
    grpc.StatusCode.OUT_OF_RANGE: Rule(FailureKind.STOP, StreamError),
    grpc.StatusCode.UNIMPLEMENTED: Rule(
        FailureKind.TURNED_AWAY, StreamError, "check that the endpoint is a Pub/Sub API"
    ),
    grpc.StatusCode.INTERNAL: _RETRY,
    grpc.StatusCode.UNAVAILABLE: _RETRY,
    grpc.StatusCode.DATA_LOSS: _RETRY,
    grpc.StatusCode.UNAUTHENTICATED: _RENEW,
}

# Error codes in results of single events for which a retry may help (Salesforce documentation,
# platform event error status codes, which describes the other APIs). It is not known how this API
# spells them, so they are searched for anywhere in the text.
PASSING = (
    "PLATFORM_EVENT_PUBLISHING_UNAVAILABLE",
    "PLATFORM_EVENT_PUBLISH_FAILED",
    "LIMIT_EXCEEDED",
)

# How the message begins if no connection was made (seen with grpcio 1.60 to 1.85; all of these mean
# that no request was sent). A message that is not recognised here is assumed to be of a call that
# the service may have received.
_UNHEARD = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed")

_RPC_ID = re.compile(r"[\s.]*rpcId: (\S+)\s*$")


def classify(what: str, error: grpc.RpcError, *, managed: bool = False) -> Failure:
    """Classify a failed call and return the failure with its typed error.

    Args:
        what: The topic, schema or subscription of the call, for the error message.
        error: The error raised by gRPC.
        managed: Whether *what* is a managed subscription.
    """
    call = cast("grpc.Call", error)  # an error raised by a stub is always both
    status = call.code()
    details = call.details() or status.name
    trailers = _trailers(call)
    code = trailers.get("error-code")
    in_text = _RPC_ID.search(details)
    rpc_id = trailers.get("rpc-id") or (in_text.group(1) if in_text else None)
    by_status = BY_STATUS[status]
    if managed and status is grpc.StatusCode.NOT_FOUND:
        by_status = _turned_away(_NO_SUBSCRIPTION)
    rule = BY_CODE.get((code or "").removeprefix(PREFIX)) or by_status
    message = f"{what}: {_RPC_ID.sub('', details)} ({code or status.name}"
    message += f", rpc id {rpc_id})" if rpc_id else ")"
    if rule.cure:
        message += f"; {rule.cure.replace('{what}', what)}"
    if rule.cure == _NO_TOPIC.cure and "/data/" in what:
        message += ", and that change data capture is on for the entity"
        if what.endswith("__cChangeEvent"):
            name = what.rpartition("/data/")[2].removesuffix("__cChangeEvent")
            message += f"; did you mean /data/{name}__ChangeEvent, without the c of __c?"
    failed = rule.error(message, error_code=code, rpc_id=rpc_id)
    failed.__cause__ = error
    final = code is not None and rule.kind is FailureKind.TURNED_AWAY
    is_unheard = status is grpc.StatusCode.UNAVAILABLE and details.startswith(_UNHEARD)
    return Failure(FailureKind.STOP if final else rule.kind, failed, is_unheard)


def is_passing(text: str) -> bool:
    """Return whether an event rejected with the error message *text* may be accepted later."""
    return any(word in text for word in PASSING)


def _trailers(call: grpc.Call) -> dict[str, str]:
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in call.trailing_metadata() or ()
    }
