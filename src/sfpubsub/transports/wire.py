"""Convert between Protobuf messages and the protocol's values. No other module uses both.

This module makes no decisions. A field that the service omits becomes None if its absence has a
meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.message import Message

from sfpubsub import native
from sfpubsub.errors import LocalProtocolError, RemoteProtocolError
from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.events import CommitAnswer, PublishAnswer, Response
from sfpubsub.transports.base import Target
from sfpubsub.transports.status import is_passing
from sfpubsub.types import (
    ProducerEvent,
    PublishResult,
    RawEvent,
    ReplayId,
    ReplayPreset,
    SchemaInfo,
    TopicInfo,
)
from sfpubsub_grpc import pubsub_api_pb2 as pb

# Record ids of ManagedEventSubscription begin with 18x (Tooling API); developer names cannot begin
# with a digit, so the two are never confused.
_RECORD_ID = re.compile(r"18x[0-9A-Za-z]{12}(?:[0-9A-Za-z]{3})?")

_new = tuple.__new__
_blank = object.__new__

_PRESETS = {
    ReplayPreset.LATEST: pb.LATEST,
    ReplayPreset.EARLIEST: pb.EARLIEST,
    ReplayPreset.CUSTOM: pb.CUSTOM,
}


def fetch_opening(target: Target, opening: OpenStream) -> pb.FetchRequest:
    """Return the first request of a Subscribe stream.

    Raises:
        LocalProtocolError: The start position is missing: the service would start at LATEST.
    """
    start = opening.start
    if start is None:
        raise LocalProtocolError(
            f"{target.name}: a Subscribe stream cannot open without a start position"
        )
    return pb.FetchRequest(
        topic_name=target.name,
        replay_preset=_PRESETS[start.preset],
        replay_id=b"" if start.replay_id is None else bytes(start.replay_id),
        num_requested=opening.num_requested,
    )


def fetch_request(target: Target, request: SendRequest) -> pb.FetchRequest:
    """Return a request for a Subscribe stream that is already open."""
    return pb.FetchRequest(topic_name=target.name, num_requested=request.num_requested)


def managed_opening(target: Target, opening: OpenStream) -> pb.ManagedFetchRequest:
    """Return the first request of a ManagedSubscribe stream, with the subscription's id or name."""
    if _RECORD_ID.fullmatch(target.name):
        return pb.ManagedFetchRequest(
            subscription_id=target.name, num_requested=opening.num_requested
        )
    return pb.ManagedFetchRequest(developer_name=target.name, num_requested=opening.num_requested)


def managed_request(_target: Target, request: SendRequest) -> pb.ManagedFetchRequest:
    """Return a request for a ManagedSubscribe stream that is already open.

    Only the first request names the subscription.
    """
    message = pb.ManagedFetchRequest(num_requested=request.num_requested)
    if request.commit is not None:
        message.commit_replay_id_request.commit_request_id = request.commit.request_id
        message.commit_replay_id_request.replay_id = bytes(request.commit.replay_id)
    return message


class Form(NamedTuple):
    """Functions that parse the responses and create the requests of one kind of stream."""

    parse: Callable[[bytes], pb.FetchResponse | pb.ManagedFetchResponse]
    opening: Callable[[Target, OpenStream], Message]
    request: Callable[[Target, SendRequest], Message]


PLAIN = Form(pb.FetchResponse.FromString, fetch_opening, fetch_request)
MANAGED = Form(pb.ManagedFetchResponse.FromString, managed_opening, managed_request)


# Parses the usual messages, and returns the fields of their `Response`.
_compiled = native.compiled and native.compiled.Responses(
    _new, RawEvent, _blank, ReplayId, vars(ReplayId)["_value"].__set__
)


def parsed(form: Form, data: bytes) -> Response:
    """Parse *data*, a message of a stream with this *form*, and convert it as `response` does.

    Raises:
        DecodeError: *data* is not such a message.
        RemoteProtocolError: An event has no replay id; see `response`.
    """
    if _compiled is not None:
        try:
            return Response(*_compiled.parse(data))
        except ValueError:  # not a usual message
            pass
    return response(form.parse(data))


def response(message: pb.FetchResponse | pb.ManagedFetchResponse) -> Response:
    """Convert a message of a Subscribe or ManagedSubscribe stream to a `Response`.

    Raises:
        RemoteProtocolError: An event has no replay id, so there is no position to resume from.
    """
    commit = None
    if isinstance(message, pb.ManagedFetchResponse) and message.HasField("commit_response"):
        commit = _commit_answer(message.commit_response)
    rpc_id = message.rpc_id
    events: list[RawEvent] = []
    schema_id = ""
    for item in message.events:
        event, position = item.event, item.replay_id
        if not position:
            raise RemoteProtocolError(
                "the service sent an event without a replay id", rpc_id=rpc_id
            )
        # Bypasses the constructors, which would take twice the time.
        replay_id = _blank(ReplayId)
        replay_id._value = position
        headers = _headers(event) if event.headers else ()
        if (found := event.schema_id) != schema_id:  # usually equal: share one string
            schema_id = found
        fields = (event.id, schema_id, event.payload, replay_id, headers)
        events.append(_new(RawEvent, fields))
    return Response(
        tuple(events),
        _replay_id(message.latest_replay_id),
        message.pending_num_requested,
        rpc_id,
        commit,
    )


def _headers(event: pb.ProducerEvent) -> tuple[tuple[str, bytes], ...]:
    return tuple([(header.key, header.value) for header in event.headers])


def _commit_answer(message: pb.CommitReplayResponse) -> CommitAnswer:
    error = None
    if message.HasField("error"):
        error = message.error.msg or pb.ErrorCode.Name(message.error.code)
    return CommitAnswer(
        message.commit_request_id, _replay_id(message.replay_id), error, message.process_time
    )


def _replay_id(value: bytes) -> ReplayId | None:
    return ReplayId(value) if value else None


def topic_request(name: str) -> pb.TopicRequest:
    """Return a request for GetTopic."""
    return pb.TopicRequest(topic_name=name)


def schema_request(schema_id: str) -> pb.SchemaRequest:
    """Return a request for GetSchema."""
    return pb.SchemaRequest(schema_id=schema_id)


def topic_info(message: pb.TopicInfo) -> TopicInfo:
    """Convert a GetTopic response to a `TopicInfo`."""
    return TopicInfo(
        message.topic_name,
        message.tenant_guid,
        message.can_publish,
        message.can_subscribe,
        message.schema_id,
        message.rpc_id,
    )


def schema_info(message: pb.SchemaInfo) -> SchemaInfo:
    """Convert a GetSchema response to a `SchemaInfo`."""
    return SchemaInfo(message.schema_id, message.schema_json, message.rpc_id)


def publish_request(topic: str, events: Sequence[ProducerEvent]) -> pb.PublishRequest:
    """Return a request that publishes *events*."""
    return pb.PublishRequest(
        topic_name=topic,
        events=[
            pb.ProducerEvent(
                id=event.id,
                schema_id=event.schema_id,
                payload=event.payload,
                headers=[pb.EventHeader(key=key, value=value) for key, value in event.headers],
            )
            for event in events
        ],
    )


def publish_answer(message: pb.PublishResponse) -> PublishAnswer:
    """Convert a Publish or PublishStream response to a `PublishAnswer`."""
    return PublishAnswer(
        tuple(_publish_result(result) for result in message.results),
        message.schema_id,
        message.rpc_id,
    )


def _publish_result(result: pb.PublishResult) -> PublishResult:
    if not result.HasField("error"):
        return PublishResult(_replay_id(result.replay_id), result.correlation_key)
    error = result.error.msg or pb.ErrorCode.Name(result.error.code)
    return PublishResult(None, result.correlation_key, error, is_passing(error))
