"""Tests of the emulator's Publish, PublishStream, GetTopic and GetSchema."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import time
import uuid

import fastavro
import grpc
import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS


def schema_of(client, topic):
    """Return the schema ID and the parsed schema of a topic."""
    schema_id = client.call("GetTopic", pb.TopicRequest(topic_name=topic)).schema_id
    info = client.call("GetSchema", pb.SchemaRequest(schema_id=schema_id))
    return schema_id, json.loads(info.schema_json)


def encode(schema, **values):
    """Return the Avro payload of an event with the given field values."""
    stream = io.BytesIO()
    full = {"CreatedDate": 1, "CreatedById": "005", **values}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), full)
    return stream.getvalue()


@pytest.fixture
def order(client):
    """Return a function that creates a ProducerEvent of the order topic."""
    schema_id, schema = schema_of(client, ORDERS)

    def make(event_id="", **values):
        payload = encode(schema, **values)
        return pb.ProducerEvent(id=event_id, schema_id=schema_id, payload=payload)

    return make


def publish(client, *events, topic=ORDERS):
    """Publish events in one request, and return the response."""
    return client.call("Publish", pb.PublishRequest(topic_name=topic, events=events))


def test_round_trip(client, order):
    """A subscriber receives a published event unchanged: with the publisher's ID, and with the
    replay ID from the publish result.
    """
    event = order("order-1", City__c="Graz")
    (result,) = publish(client, event).results
    assert result.correlation_key == "order-1"
    (got,) = client.subscribe().events(1)
    assert got.event == event
    assert got.replay_id == result.replay_id


@pytest.mark.parametrize("event_id", ["", "x" * 37])
def test_blank_or_long_id_becomes_a_uuid(client, order, event_id):
    """An event ID that is blank or longer than 36 characters is replaced by a UUID, which is
    returned in the publish result.
    """
    (result,) = publish(client, order(event_id)).results
    assert str(uuid.UUID(result.correlation_key)) == result.correlation_key
    assert client.subscribe().events(1)[0].event.id == result.correlation_key


def test_invalid_events_are_refused_individually(start):
    """In one request, each invalid event (undecodable payload, wrong or blank schema ID, too large)
    is rejected with an error, the valid ones are published, and the results keep the order of the
    events.
    """
    _, client = start(settings=Settings(event_bytes=500))
    schema_id, schema = schema_of(client, ORDERS)
    account_id, _ = schema_of(client, ACCOUNTS)
    good = encode(schema, City__c="Wien")
    events = [
        pb.ProducerEvent(id="0", schema_id=schema_id, payload=good),
        pb.ProducerEvent(id="1", schema_id=schema_id, payload=b"\xff\xff"),
        pb.ProducerEvent(id="2", schema_id=schema_id, payload=good + b"\x00"),
        pb.ProducerEvent(id="3", schema_id=account_id, payload=good),
        pb.ProducerEvent(id="4", schema_id="", payload=good),
        pb.ProducerEvent(id="5", schema_id=schema_id, payload=encode(schema, Notes__c="n" * 600)),
        pb.ProducerEvent(id="6", schema_id=schema_id, payload=good),
    ]
    results = publish(client, *events).results
    assert [r.correlation_key for r in results] == list("0123456")
    assert [r.HasField("error") for r in results] == [False, *[True] * 5, False]
    assert {r.error.code for r in results if r.HasField("error")} == {pb.PUBLISH}
    assert all(bool(r.replay_id) != r.HasField("error") for r in results)
    assert [e.event.id for e in client.subscribe().events(2)] == ["0", "6"]


@pytest.mark.parametrize(
    ("topic", "count", "expected"),
    [
        ("", 1, ("INVALID_ARGUMENT", "publish.topic.validation.empty")),
        ("/event/None__e", 1, ("NOT_FOUND", "topic.not.found")),
        (ORDERS, 0, ("INVALID_ARGUMENT", "publish.event.count.invalid")),
        (ACCOUNTS, 1, ("PERMISSION_DENIED", "publish.topic.cannot.publish")),
        (CHANGES, 1, ("PERMISSION_DENIED", "publish.topic.cannot.publish")),
    ],
)
def test_invalid_publish_request_is_refused(client, order, topic, count, expected):
    """A request is refused as a whole if its topic is blank, unknown or read-only, or if it
    contains no events.
    """
    request = pb.PublishRequest(topic_name=topic, events=[order()] * count)
    assert client.refusal("Publish", request) == expected


def test_oversized_request_fails_as_if_rejected_by_a_proxy(start):
    """A request above the size limit fails with UNAVAILABLE and without the service's trailers, as
    if a proxy had rejected it.
    """
    _, client = start(settings=Settings(publish_request_bytes=100))
    request = pb.PublishRequest(topic_name=ORDERS, events=[pb.ProducerEvent(payload=b"x" * 200)])
    with pytest.raises(grpc.RpcError) as caught:
        client.call("Publish", request)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "error-code" not in dict(caught.value.trailing_metadata())


def test_publish_stream(client, order):
    """A PublishStream responds to its requests in order; later requests may omit the topic, but
    must not change it.
    """
    stream = client.stream("PublishStream")
    stream.send(pb.PublishRequest(topic_name=ORDERS, events=[order("a"), order("b")]))
    assert [r.correlation_key for r in stream.next().results] == ["a", "b"]
    stream.send(pb.PublishRequest(events=[order("c")]))
    assert [r.correlation_key for r in stream.next().results] == ["c"]
    stream.send(pb.PublishRequest(topic_name=ACCOUNTS, events=[order()]))
    assert stream.refusal() == "publish.topic.mismatch"


def test_publish_stream_half_close(client, order):
    """After a half-close, a PublishStream responds to the pending request, then ends with OK."""
    stream = client.stream("PublishStream")
    stream.send(pb.PublishRequest(topic_name=ORDERS, events=[order("a")]))
    stream.half_close()
    assert stream.next().results[0].correlation_key == "a"
    assert stream.end()[0] == "OK"


def test_idle_publish_stream_is_closed(start):
    """A PublishStream is closed with an error after 70 s without a request."""
    emulator, client = start(clock=ManualClock())
    stream = client.stream("PublishStream")
    stream.send(pb.PublishRequest(topic_name=ORDERS))
    assert stream.refusal() == "publish.event.count.invalid"
    stream = client.stream("PublishStream")
    assert stream.silent()
    emulator.clock.jump(70)
    assert stream.refusal() == "publish.stream.sweeper.timeout"


def test_get_topic(emulator, client):
    """GetTopic returns a topic's permissions and the org's tenant.

    For a channel with several event types, the schema ID is blank.
    """
    order = client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS))
    assert (order.can_publish, order.can_subscribe) == (True, True)
    assert order.tenant_guid == f"CORE/prod/{emulator.tenant_id}"
    assert order.rpc_id
    account = client.call("GetTopic", pb.TopicRequest(topic_name=ACCOUNTS))
    assert (account.can_publish, bool(account.schema_id)) == (False, True)
    assert client.call("GetTopic", pb.TopicRequest(topic_name=CHANGES)).schema_id == ""


@pytest.mark.parametrize(
    ("rpc", "request_", "expected"),
    [
        ("GetTopic", pb.TopicRequest(), ("INVALID_ARGUMENT", "topic.validation.empty")),
        ("GetTopic", pb.TopicRequest(topic_name="/x"), ("NOT_FOUND", "topic.not.found")),
        ("GetSchema", pb.SchemaRequest(), ("INVALID_ARGUMENT", "schema.validation.failed")),
        ("GetSchema", pb.SchemaRequest(schema_id="x"), ("NOT_FOUND", "schema.not.found")),
    ],
)
def test_invalid_lookups_are_refused(client, rpc, request_, expected):
    """GetTopic and GetSchema reject a blank name and an unknown name with different error codes."""
    assert client.refusal(rpc, request_) == expected


def test_schema_id_is_the_hash_of_the_canonical_form(client):
    """A schema ID is the base64url-encoded MD5 hash of the schema's canonical form, which this test
    computes independently.
    """
    schema_id, schema = schema_of(client, ORDERS)
    fields = ",".join(
        '{{"name":"{}","type":{}}}'.format(f["name"], json.dumps(f["type"], separators=(",", ":")))
        for f in schema["fields"]
    )
    canonical = (
        '{"name":"com.sforce.eventbus.Order_Event__e","type":"record","fields":[' + fields + "]}"
    )
    digest = hashlib.md5(canonical.encode()).digest()
    assert schema_id == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(schema_id) == 22


def test_schema_change(emulator, client):
    """After a field is added, one stream delivers old and new events, each with its own schema ID,
    and the old schema can still be fetched.
    """
    old_id, schema = schema_of(client, ORDERS)
    emulator.publish(ORDERS, [{}])
    schema["fields"].append({"name": "New__c", "type": ["null", "string"], "default": None})
    new_id = emulator.change_schema(ORDERS, json.dumps(schema))
    emulator.publish(ORDERS, [{"New__c": "x"}])
    assert [e.event.schema_id for e in client.subscribe().events(2)] == [old_id, new_id]
    assert schema_of(client, ORDERS)[0] == new_id
    assert client.call("GetSchema", pb.SchemaRequest(schema_id=old_id)).schema_id == old_id
    old = pb.ProducerEvent(schema_id=old_id, payload=encode(schema_of(client, ORDERS)[1]))
    # The payload has one byte more than the old schema allows.
    assert publish(client, old).results[0].HasField("error")


def test_20000_events_are_published_quickly(client, order):
    """Publishing 20,000 events in requests of 200 takes less than 10 s of CPU time."""
    batch = [order(City__c="Graz") for _ in range(200)]
    began = time.process_time()  # CPU time, because other tests run at the same time
    for _ in range(100):
        publish(client, *batch)
    assert time.process_time() - began < 10
