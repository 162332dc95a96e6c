"""Tests of the Pub/Sub API: descriptions, publishing, delivery, and rejected requests."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from typing import Any

import fastavro.schema
import grpc
import pytest

from sfpubsub.emulator.faults.refusals import FAILURES
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..emulator.support import PREFIX, WAIT_S
from .asking import ended


def publish(org: Any, *events: Any) -> Any:
    """Publish *events* to the org's topic; return the response."""
    return org.client.call("Publish", pb.PublishRequest(topic_name=org.topic, events=events))


def refused(suffix: str) -> tuple[str, str]:
    """Return the expected status and error code of a rejection, given the code's suffix."""
    return FAILURES[suffix].status, suffix


def rejection(org: Any, **headers: str) -> tuple[str, str]:
    """Call GetTopic with changed headers, expecting a rejection; return its status and code."""
    metadata = tuple({**org.metadata, **headers}.items())
    request = pb.TopicRequest(topic_name=org.topic)
    with pytest.raises(grpc.RpcError) as caught:
        org.client.stub.GetTopic(request, metadata=metadata, timeout=WAIT_S)
    error: Any = caught.value
    code = dict(error.trailing_metadata()).get("error-code", "")
    return error.code().name, code.removeprefix(PREFIX)


def test_get_topic_describes_the_topic(org, client):
    """GetTopic returns the topic's name and permissions, the org's id, and an id of the call."""
    info = client.call("GetTopic", pb.TopicRequest(topic_name=org.topic))
    assert info.topic_name == org.topic
    assert info.can_publish
    assert info.can_subscribe
    assert org.tenant_id[:15] in info.tenant_guid
    uuid.UUID(info.rpc_id)


def test_schema_id_is_the_hash_of_the_schema(schema):
    """A schema's id is the MD5 of its parsing canonical form, in base64url; CreatedDate and
    CreatedById are its first fields.
    """
    value = json.loads(schema.schema_json)
    canonical = fastavro.schema.to_parsing_canonical_form(value)
    digest = hashlib.md5(canonical.encode()).digest()
    assert schema.schema_id == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert [item["name"] for item in value["fields"]][:2] == ["CreatedDate", "CreatedById"]


def test_unknown_topic_is_rejected(client):
    """GetTopic rejects an unknown topic with the code ``topic.not.found``."""
    request = pb.TopicRequest(topic_name="/event/No_Such_Topic_Of_Parity__e")
    assert client.refusal("GetTopic", request) == refused("topic.not.found")


@pytest.mark.parametrize("header", ["accesstoken", "instanceurl", "tenantid"])
def test_empty_auth_header_is_rejected(org, header):
    """A call is rejected if any of the three authentication headers is empty."""
    assert rejection(org, **{header: ""}) == refused("service.auth.headers.invalid")


def test_wrong_token_is_rejected(org):
    """A wrong token is rejected with the code ``service.auth.error``."""
    assert rejection(org, accesstoken=f"{org.tenant_id[:15]}!wrong") == refused(
        "service.auth.error"
    )


def test_every_published_event_gets_a_result(org, event):
    """Publishing returns one result per event, in order, with the event's id, a replay id of its
    own and no error.
    """
    events = [event(), event()]
    results = publish(org, *events).results
    assert [item.correlation_key for item in results] == [item.id for item in events]
    assert [len(item.replay_id) for item in results] == [10, 10]
    assert results[0].replay_id != results[1].replay_id
    assert not any(item.HasField("error") for item in results)


def test_invalid_payload_fails_alone(org, event):
    """An invalid payload is rejected with an error; the other event in the request is published."""
    good, bad = publish(org, event(), event(b"\xff")).results
    assert good.replay_id
    assert bad.HasField("error")
    assert bad.error.code == pb.PUBLISH


def test_events_after_a_position_are_delivered(org, client, event):
    """A subscription from a replay id receives the later events unchanged and in order.

    Each response has the number of events still requested, and the position of its last event.
    """
    first, *later = [event() for _ in range(4)]
    start = publish(org, first).results[0].replay_id
    publish(org, *later)
    stream = client.subscribe(
        topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=start, num_requested=3
    )
    wanted, got = 3, []
    while len(got) < 3:
        response = stream.next()
        got += response.events
        wanted -= len(response.events)
        assert response.pending_num_requested == wanted
        assert not response.events or response.latest_replay_id == response.events[-1].replay_id
    assert [(item.event.id, item.event.payload) for item in got] == [
        (item.id, item.payload) for item in later
    ]


def test_request_for_zero_events_is_rejected(org, client):
    """A stream is rejected if its first request asks for 0 events."""
    stream = client.subscribe(topic_name=org.topic, num_requested=0)
    assert ended(stream) == refused("subscription.fetch.requested.events.invalid")


def test_request_for_another_topic_ends_the_stream(org, client):
    """A stream ends with an error if a later request names another topic."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.LATEST)
    stream.send(pb.FetchRequest(topic_name=f"{org.topic[:-3]}x__e", num_requested=1))
    assert ended(stream) == refused("subscription.fetch.topic.mismatch")


def test_invalid_replay_id_is_rejected(org, client):
    """A replay id that the service never issued is rejected as corrupted."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=b"\xff" * 10)
    assert ended(stream) == refused("subscription.fetch.replayid.corrupted")


def test_custom_preset_needs_a_replay_id(org, client):
    """A request with the preset CUSTOM and no replay id is rejected."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM)
    assert ended(stream) == refused("subscription.fetch.replayid.validation.failed")
