"""Tests of schema changes while the emulator runs, as when an administrator adds a field in the
org.
"""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS
from .web import rest


def with_field(client, topic, name):
    """Return the topic's schema ID and schema, and a copy of the schema with one more field."""
    schema_id = client.call("GetTopic", pb.TopicRequest(topic_name=topic)).schema_id
    text = client.call("GetSchema", pb.SchemaRequest(schema_id=schema_id)).schema_json
    changed = json.loads(text)
    changed["fields"].append({"name": name, "type": ["null", "string"], "default": None})
    return schema_id, text, changed


def decoded(client, event):
    """Return the values of a received event, decoded with the schema that it names."""
    schema = client.call("GetSchema", pb.SchemaRequest(schema_id=event.schema_id)).schema_json
    parsed = fastavro.parse_schema(json.loads(schema))
    return fastavro.schemaless_reader(io.BytesIO(event.payload), parsed, None)


@pytest.mark.parametrize("as_text", [True, False])
def test_new_field_in_an_open_stream(emulator, client, as_text):
    """After a change, GetTopic returns the new schema ID and an open stream delivers events of both
    schemas; the old schema stays available, and clients may publish with either one.
    """
    old_id, text, changed = with_field(client, ORDERS, "Added__c")
    stream = client.subscribe()
    emulator.publish(ORDERS, [{"City__c": "Bern"}])
    schema = json.dumps(changed) if as_text else changed
    reply = rest(emulator, "POST", "/admin/schema", {"topic": ORDERS, "schema": schema})
    assert reply.status == 200
    new_id = reply.json["schema_id"]
    assert new_id != old_id
    assert client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id == new_id
    emulator.publish(ORDERS, [{"City__c": "Basel", "Added__c": "new"}])
    before, after = (item.event for item in stream.events(2))
    assert (before.schema_id, after.schema_id) == (old_id, new_id)
    assert client.call("GetSchema", pb.SchemaRequest(schema_id=old_id)).schema_json == text
    assert "Added__c" not in decoded(client, before)
    assert decoded(client, after)["Added__c"] == "new"
    events = [
        pb.ProducerEvent(schema_id=item.schema_id, payload=item.payload) for item in (before, after)
    ]
    answer = client.call("Publish", pb.PublishRequest(topic_name=ORDERS, events=events))
    assert not any(result.HasField("error") for result in answer.results)
    assert [item.event.schema_id for item in stream.events(2)] == [old_id, new_id]


def test_schema_change_on_a_channel(emulator, client):
    """A channel delivers events from before and after the change, each with its own schema ID.

    An added field's bit in `changedFields` reaches the subscriber unchanged.
    """
    old_id, _, changed = with_field(client, ACCOUNTS, "Added__c")
    stream = client.subscribe(topic_name=CHANGES)
    header = {"changeType": "UPDATE", "changedFields": ["0x02"]}
    emulator.publish(ACCOUNTS, [{"ChangeEventHeader": header, "Name": "Acme"}])
    new_id = emulator.change_schema(ACCOUNTS, json.dumps(changed))
    bit = len(changed["fields"]) - 1
    header = {"changeType": "UPDATE", "changedFields": [f"0x{1 << bit:X}"]}
    emulator.publish(ACCOUNTS, [{"ChangeEventHeader": header, "Added__c": "new"}])
    events = [item.event for item in stream.events(2)]
    assert [event.schema_id for event in events] == [old_id, new_id]
    assert decoded(client, events[1])["ChangeEventHeader"]["changedFields"] == [f"0x{1 << bit:X}"]
    assert client.call("GetTopic", pb.TopicRequest(topic_name=CHANGES)).schema_id == ""


def test_schema_change_survives_a_restart(start, tmp_path):
    """After a restart the topic still has the new schema, and the old schema can still be
    fetched.
    """
    emulator, client = start()
    old_id, _, changed = with_field(client, ORDERS, "Added__c")
    new_id = emulator.change_schema(ORDERS, json.dumps(changed))
    emulator.stop()
    emulator, client = start()
    assert client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id == new_id
    assert client.call("GetSchema", pb.SchemaRequest(schema_id=old_id)).schema_id == old_id


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"topic": ORDERS}, "schema"),
        ({"topic": ORDERS, "schema": "x"}, "JSON"),
        ({"topic": ORDERS, "schema": {"type": "string"}}, "record"),
        ({"topic": ORDERS, "schema": 3}, "Avro"),
        ({"topic": 3, "schema": {}}, "topic must be a string"),
        ({"topic": CHANGES, "schema": '{"type": "record", "name": "X", "fields": []}'}, "channel"),
        (
            {"topic": "/event/No__e", "schema": '{"type": "record", "name": "X", "fields": []}'},
            "No__e",
        ),
        ([], "topic"),
    ],
)
def test_invalid_schema_is_refused(emulator, client, body, named):
    """An invalid schema or request is refused with an error that says what is wrong, and the topic
    keeps its schema.
    """
    before = client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id
    reply = rest(emulator, "POST", "/admin/schema", body)
    assert reply.status == 400
    assert named in reply.json["error"]
    assert client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id == before


def test_schema_of_another_topic_is_refused(emulator, client):
    """A schema that already belongs to another topic is refused, with an error that names that
    topic.
    """
    _, text, _ = with_field(client, ACCOUNTS, "x")
    reply = rest(emulator, "POST", "/admin/schema", {"topic": ORDERS, "schema": text})
    assert reply.status == 400
    assert ACCOUNTS in reply.json["error"]
