"""The Pub/Sub API: what is answered, delivered and refused."""

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


def publish(org: Any, *events: Any) -> Any:
    return org.client.call("Publish", pb.PublishRequest(topic_name=org.topic, events=events))


def refused(suffix: str) -> tuple[str, str]:
    """What the emulator answers: the status of its table, and the code."""
    return FAILURES[suffix].status, suffix


def ended(stream: Any) -> tuple[str, str]:
    """Status and code with which a stream ended."""
    status, _, trailers = stream.end()
    return status, trailers.get("error-code", "").removeprefix(PREFIX)


def called(org: Any, **headers: str) -> tuple[str, str]:
    """Status and code of a GetTopic with other headers."""
    metadata = tuple({**org.metadata, **headers}.items())
    request = pb.TopicRequest(topic_name=org.topic)
    with pytest.raises(grpc.RpcError) as caught:
        org.client.stub.GetTopic(request, metadata=metadata, timeout=WAIT_S)
    error: Any = caught.value
    code = dict(error.trailing_metadata()).get("error-code", "")
    return error.code().name, code.removeprefix(PREFIX)


def test_a_topic_is_described(org, client):
    """Its name, its schema, what one may do, and an id of the call."""
    info = client.call("GetTopic", pb.TopicRequest(topic_name=org.topic))
    assert info.topic_name == org.topic
    assert info.can_publish
    assert info.can_subscribe
    assert org.tenant_id[:15] in info.tenant_guid
    uuid.UUID(info.rpc_id)


def test_a_schema_id_is_the_hash_of_its_schema(schema):
    """MD5 of the parsing canonical form, in base64url; the org's own fields are first."""
    value = json.loads(schema.schema_json)
    canonical = fastavro.schema.to_parsing_canonical_form(value)
    digest = hashlib.md5(canonical.encode()).digest()
    assert schema.schema_id == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert [item["name"] for item in value["fields"]][:2] == ["CreatedDate", "CreatedById"]


def test_a_topic_that_is_not_there(client):
    """GetTopic refuses it by its code."""
    request = pb.TopicRequest(topic_name="/event/No_Such_Topic_Of_Parity__e")
    assert client.refusal("GetTopic", request) == refused("topic.not.found")


@pytest.mark.parametrize("header", ["accesstoken", "instanceurl", "tenantid"])
def test_a_blank_header(org, header):
    """Each of the three headers is needed."""
    assert called(org, **{header: ""}) == refused("service.auth.headers.invalid")


def test_a_token_that_is_not_good(org):
    """A wrong token is refused by the code of authentication."""
    assert called(org, accesstoken=f"{org.tenant_id[:15]}!wrong") == refused("service.auth.error")


def test_a_published_event_has_a_result(org, event):
    """One result an event, in order, with the event's own id and a replay id; no error."""
    events = [event(), event()]
    results = publish(org, *events).results
    assert [item.correlation_key for item in results] == [item.id for item in events]
    assert [len(item.replay_id) for item in results] == [10, 10]
    assert results[0].replay_id < results[1].replay_id
    assert not any(item.HasField("error") for item in results)


def test_a_payload_that_is_no_event_is_refused_alone(org, event):
    """Its result has an error; the event beside it is published."""
    good, bad = publish(org, event(), event(b"\xff")).results
    assert good.replay_id
    assert bad.HasField("error")
    assert bad.error.code == pb.PUBLISH


def test_what_is_published_is_delivered(org, client, event):
    """Behind a position come the events published after it, unchanged and in order; each response
    says how many are still wanted and up to where it goes."""
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


def test_a_stream_must_ask_for_events(org, client):
    """A first request of 0 events is refused."""
    stream = client.subscribe(topic_name=org.topic, num_requested=0)
    assert ended(stream) == refused("subscription.fetch.requested.events.invalid")


def test_a_stream_keeps_its_topic(org, client):
    """A later request for another topic ends it."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.LATEST)
    stream.send(pb.FetchRequest(topic_name=f"{org.topic[:-3]}x__e", num_requested=1))
    assert ended(stream) == refused("subscription.fetch.topic.mismatch")


def test_a_replay_id_that_was_never_given_out(org, client):
    """It is refused as corrupted."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM, replay_id=b"\xff" * 10)
    assert ended(stream) == refused("subscription.fetch.replayid.corrupted")


def test_no_replay_id_where_one_is_needed(org, client):
    """CUSTOM without an id is refused."""
    stream = client.subscribe(topic_name=org.topic, replay_preset=pb.CUSTOM)
    assert ended(stream) == refused("subscription.fetch.replayid.validation.failed")
