"""The standard gRPC services for health and reflection, used by tools without the proto file."""

from __future__ import annotations

import sys
import threading
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from sfpubsub.emulator.server import EmulatorServer

from .support import ORDERS, WAIT_S

SERVICE = "eventbus.v1.PubSub"
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: Any) -> Any:
    """An emulator shared by all tests of the module."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.fixture
def channel(emulator: EmulatorServer) -> Any:
    """A channel without credentials, since health and reflection require none."""
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        yield channel


def test_health(channel):
    """Check and Watch report the server and the Pub/Sub service as SERVING.

    Any other service is reported as NOT_FOUND.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        asked = health_pb2.HealthCheckRequest(service=name)
        assert stub.Check(asked, timeout=WAIT_S).status == SERVING
        watch = stub.Watch(asked, timeout=WAIT_S)
        assert next(watch).status == SERVING
        watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=WAIT_S)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_client_without_the_proto_file(emulator, channel):
    """A client can discover the service through reflection and call it without the proto file."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName(SERVICE).FindMethodByName("GetTopic")
    request_class = message_factory.GetMessageClass(method.input_type)
    answer_class = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(
        f"/{SERVICE}/GetTopic", request_class.SerializeToString, answer_class.FromString
    )
    answer = call(request_class(topic_name=ORDERS), metadata=emulator.metadata, timeout=WAIT_S)
    assert answer.topic_name == ORDERS


def reflect(channel: Any, version: str, *requests: Any) -> Any:
    """Send requests to one version of the reflection service; return its stream of responses."""
    return channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter(requests), timeout=WAIT_S)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_in_both_versions(channel, version):
    """Reflection works in versions v1 and v1alpha.

    An unknown symbol returns an error response without ending the stream.
    """
    (listed, found, missing) = reflect(
        channel,
        version,
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="x.Y"),
    )
    names = {item.name for item in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} < names
    (raw,) = found.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(raw).name == "pubsub_api.proto"
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_reflection_streams_are_bounded(channel):
    """At most 16 reflection streams can be open; at the limit, unary calls still work."""
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    over = threading.Event()

    def endless() -> Any:
        yield asked
        over.wait(WAIT_S)

    multi = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    calls = [multi(endless()) for _ in range(16)]
    for call in calls:
        assert next(call).list_services_response.service
    with pytest.raises(grpc.RpcError) as caught:
        next(reflect(channel, "v1", asked))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == SERVING
    for call in calls:
        call.cancel()
    over.set()


@pytest.mark.parametrize("missing", ["grpc_health", "grpc_reflection"])
def test_emulator_without_the_optional_packages(tmp_path, monkeypatch, missing):
    """Without an optional package, the emulator still starts, and calls to the service that needs
    the package end with UNIMPLEMENTED. Health works without reflection, but not vice versa.
    """
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with (
        EmulatorServer(tmp_path) as emulator,
        grpc.insecure_channel(emulator.grpc_target) as channel,
    ):
        for version in ("v1", "v1alpha"):
            with pytest.raises(grpc.RpcError) as caught:
                next(reflect(channel, version, asked))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        stub = health_pb2_grpc.HealthStub(channel)
        if missing == "grpc_reflection":
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == SERVING
            return
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
