"""Tests that the generated protobuf code matches the Pub/Sub API's published contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from sfpubsub_grpc import pubsub_api_pb2 as pb

S, B, BOOL, I32, I64 = "string", "bytes", "bool", "int32", "int64"

MESSAGES = {
    "TopicInfo": [
        (1, "topic_name", S), (2, "tenant_guid", S), (3, "can_publish", BOOL),
        (4, "can_subscribe", BOOL), (5, "schema_id", S), (6, "rpc_id", S),
    ],
    "TopicRequest": [(1, "topic_name", S)],
    "EventHeader": [(1, "key", S), (2, "value", B)],
    "ProducerEvent": [
        (1, "id", S), (2, "schema_id", S), (3, "payload", B), (4, "headers", "[EventHeader]"),
    ],
    "ConsumerEvent": [(1, "event", "ProducerEvent"), (2, "replay_id", B)],
    "PublishResult": [(1, "replay_id", B), (2, "error", "Error"), (3, "correlation_key", S)],
    "Error": [(1, "code", "ErrorCode"), (2, "msg", S)],
    "FetchRequest": [
        (1, "topic_name", S), (2, "replay_preset", "ReplayPreset"), (3, "replay_id", B),
        (4, "num_requested", I32), (5, "auth_refresh", S),
    ],
    "FetchResponse": [
        (1, "events", "[ConsumerEvent]"), (2, "latest_replay_id", B), (3, "rpc_id", S),
        (4, "pending_num_requested", I32),
    ],
    "SchemaRequest": [(1, "schema_id", S)],
    "SchemaInfo": [(1, "schema_json", S), (2, "schema_id", S), (3, "rpc_id", S)],
    "PublishRequest": [
        (1, "topic_name", S), (2, "events", "[ProducerEvent]"), (3, "auth_refresh", S),
    ],
    "PublishResponse": [(1, "results", "[PublishResult]"), (2, "schema_id", S), (3, "rpc_id", S)],
    "ManagedFetchRequest": [
        (1, "subscription_id", S), (2, "developer_name", S), (3, "num_requested", I32),
        (4, "auth_refresh", S), (5, "commit_replay_id_request", "CommitReplayRequest"),
    ],
    "ManagedFetchResponse": [
        (1, "events", "[ConsumerEvent]"), (2, "latest_replay_id", B), (3, "rpc_id", S),
        (4, "pending_num_requested", I32), (5, "commit_response", "CommitReplayResponse"),
    ],
    "CommitReplayRequest": [(1, "commit_request_id", S), (2, "replay_id", B)],
    "CommitReplayResponse": [
        (1, "commit_request_id", S), (2, "replay_id", B), (3, "error", "Error"),
        (4, "process_time", I64),
    ],
}  # fmt: skip

METHODS = {
    "Subscribe": ("FetchRequest", "FetchResponse", True, True),
    "GetSchema": ("SchemaRequest", "SchemaInfo", False, False),
    "GetTopic": ("TopicRequest", "TopicInfo", False, False),
    "Publish": ("PublishRequest", "PublishResponse", False, False),
    "PublishStream": ("PublishRequest", "PublishResponse", True, True),
    "ManagedSubscribe": ("ManagedFetchRequest", "ManagedFetchResponse", True, True),
}

# Read as a message, because the attributes of descriptors depend on the version of protobuf.
FILE = FileDescriptorProto()
pb.DESCRIPTOR.CopyToProto(FILE)

_SCALARS = {9: S, 12: B, 8: BOOL, 5: I32, 3: I64}  # descriptor.proto, FieldDescriptorProto.Type


def type_name(field: FieldDescriptorProto) -> str:
    """Return the name of a field's type, in brackets if the field is repeated."""
    name = last(field.type_name) if field.type_name else _SCALARS[field.type]
    return f"[{name}]" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def last(full_name: str) -> str:
    """Return a type's name without its package."""
    return full_name.rpartition(".")[2]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_the_services_fields(name: str):
    """Each message has exactly the service's fields, with the same numbers and types."""
    (message,) = (each for each in FILE.message_type if each.name == name)
    found = [(field.number, field.name, type_name(field)) for field in message.field]
    assert found == MESSAGES[name]


def test_there_are_no_other_messages_or_enums():
    """The file defines only the service's messages and enums, with the same enum values."""
    assert set(pb.DESCRIPTOR.message_types_by_name) == set(MESSAGES)
    assert {
        name: dict(pb.DESCRIPTOR.enum_types_by_name[name].values_by_name)
        and {v.name: v.number for v in pb.DESCRIPTOR.enum_types_by_name[name].values}
        for name in pb.DESCRIPTOR.enum_types_by_name
    } == {
        "ErrorCode": {"UNKNOWN": 0, "PUBLISH": 1, "COMMIT": 2},
        "ReplayPreset": {"LATEST": 0, "EARLIEST": 1, "CUSTOM": 2},
    }


def test_the_service_has_its_six_methods():
    """The service's name, its methods, and their message types and streaming directions match the
    contract.
    """
    (service,) = FILE.service
    assert (FILE.package, service.name) == ("eventbus.v1", "PubSub")
    assert {
        method.name: (
            last(method.input_type),
            last(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.method
    } == METHODS


def test_the_generated_code_asks_for_no_version():
    """Platforms pin protobuf and grpcio; code of a newer generator rejects what is older."""
    for path in Path(pb.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert "ValidateProtobufRuntimeVersion" not in text, path
        assert "GRPC_GENERATED_VERSION" not in text, path


def test_the_file_keeps_the_name_that_other_packages_register():
    """The proto file and its Java package have Salesforce's names, so copies in other packages can
    coexist with ours.

    A process has one descriptor pool, which accepts a file twice only if name and content agree.
    """
    assert pb.DESCRIPTOR.name == "pubsub_api.proto"
    assert pb.DESCRIPTOR.GetOptions().java_package == "com.salesforce.eventbus.protobuf"
