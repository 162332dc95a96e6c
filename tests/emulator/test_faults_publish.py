"""Tests of the faults that affect publishing, and of the setting that rejects old schemas."""

from __future__ import annotations

import json

import grpc
import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ORDERS
from .test_publish import encode, schema_of


def order(client, event_id: str) -> pb.ProducerEvent:
    """Return an encoded order event with the given id."""
    schema_id, schema = schema_of(client, ORDERS)
    return pb.ProducerEvent(id=event_id, schema_id=schema_id, payload=encode(schema))


@pytest.mark.parametrize(("status", "seen"), [("UNAVAILABLE",) * 2, ("RESET", "CANCELLED")])
def test_lose_answer_publishes_events_without_a_response(emulator, client, status, seen):
    """The fault `lose_answer` publishes a request's events, and drops the call before its response.

    On a stream this happens after `after_responses` responses.
    """
    emulator.faults.add(Fault("lose_answer", rpc="PublishStream", after_responses=1, status=status))
    stream = client.stream("PublishStream")
    for event_id in ("a", "b"):
        stream.send(pb.PublishRequest(topic_name=ORDERS, events=[order(client, event_id)]))
    assert stream.next().results[0].correlation_key == "a"
    assert stream.end()[0] == seen
    emulator.faults.add(Fault("lose_answer", rpc="Publish"))
    request = pb.PublishRequest(topic_name=ORDERS, events=[order(client, "c")])
    with pytest.raises(grpc.RpcError) as caught:
        client.call("Publish", request)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert [got.event.id for got in client.subscribe().events(3)] == ["a", "b", "c"]
    emulator.faults.assert_consumed()


def test_refuse_event_rejects_the_first_event_of_a_request(emulator, client):
    """The fault `refuse_event` rejects only the first event of a request, with the given text."""
    emulator.faults.add(Fault("refuse_event", target=ORDERS, times=2, text="LIMIT_EXCEEDED"))
    events = [order(client, "a"), order(client, "b")]
    request = pb.PublishRequest(topic_name=ORDERS, events=events)
    results = client.call("Publish", request).results
    assert [(result.correlation_key, result.error.msg) for result in results] == [
        ("a", "LIMIT_EXCEEDED"),
        ("b", ""),
    ]
    alone = client.call("Publish", pb.PublishRequest(topic_name=ORDERS, events=events[:1]))
    assert alone.results[0].HasField("error")
    assert [got.event.id for got in client.subscribe().events(1)] == ["b"]


def test_old_schemas_can_be_rejected(start):
    """With `accept_old_schemas` off, an event with an outdated schema is rejected.

    The response contains the current schema's id.
    """
    emulator, client = start(settings=Settings(accept_old_schemas=False))
    old = order(client, "a")
    _, schema = schema_of(client, ORDERS)
    schema["fields"].append({"name": "New__c", "type": ["null", "string"], "default": None})
    new_id = emulator.change_schema(ORDERS, json.dumps(schema))
    answer = client.call("Publish", pb.PublishRequest(topic_name=ORDERS, events=[old]))
    assert "no longer current" in answer.results[0].error.msg
    assert answer.schema_id == new_id
