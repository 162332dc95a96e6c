"""Tests of malformed, oversized, slow and vanishing clients.

Each client receives a specific status, leaks nothing, and leaves the event log intact.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

from .support import ACCOUNTS, CHANGES, MANAGED, ORDERS, PREFIX, WAIT_S, Client, until
from .test_crowds import call_threads, request_threads

METHODS = {
    "Subscribe": pb.FetchRequest,
    "GetSchema": pb.SchemaRequest,
    "GetTopic": pb.TopicRequest,
    "Publish": pb.PublishRequest,
    "PublishStream": pb.PublishRequest,
    "ManagedSubscribe": pb.ManagedFetchRequest,
}
STREAMS = ("Subscribe", "PublishStream", "ManagedSubscribe")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: Any) -> Any:
    """The emulator shared by all tests in this module, each of which must leave it intact."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def _intact(emulator: EmulatorServer) -> Any:
    """Check after each test that old events are retained in order, and that new ones arrive."""
    before = [item.replay_id for item in emulator.publish(ORDERS, [{} for _ in range(3)])]
    yield
    (after,) = emulator.publish(ORDERS, [{}])
    client = Client(emulator.grpc_target, emulator.metadata)
    request = pb.FetchRequest(
        topic_name=ORDERS, num_requested=100, replay_preset=pb.CUSTOM, replay_id=before[0]
    )
    stream = client.stream("Subscribe")
    stream.send(request)
    seen: list[bytes] = []
    while after.replay_id not in seen:
        events = stream.next().events
        seen += [event.replay_id for event in events]
        stream.send(pb.FetchRequest(num_requested=max(1, len(events))))
    assert seen[:2] == before[1:]
    client.close()


def raw_end(
    channel: grpc.Channel, rpc: str, metadata: Any, *messages: bytes
) -> tuple[str, dict[str, Any]]:
    """Send bytes as the requests of a call; return the name of its status, and its trailers."""
    path = f"/eventbus.v1.PubSub/{rpc}"
    if rpc in STREAMS:
        call: Any = channel.stream_stream(path)(iter(messages), metadata=metadata, timeout=WAIT_S)
        with contextlib.suppress(grpc.RpcError):
            list(call)
    else:
        call = channel.unary_unary(path).future(messages[0], metadata=metadata, timeout=WAIT_S)
        call.exception()
    return call.code().name, dict(call.trailing_metadata() or ())


def raw_call(channel: grpc.Channel, rpc: str, metadata: Any, *messages: bytes) -> str:
    """Send bytes as the requests of a call; return the name of the call's status."""
    return raw_end(channel, rpc, metadata, *messages)[0]


def test_malformed_messages_end_the_call_with_an_error_status(emulator):
    """A malformed message ends a call to any method with an error status, even on an open stream.

    A call of an unknown method ends with UNIMPLEMENTED.
    """
    garbage = (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", os.urandom(1000))
    good = pb.FetchRequest(topic_name=ORDERS, num_requested=1).SerializeToString()
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        for rpc in METHODS:
            for data in garbage[:2]:
                assert raw_call(channel, rpc, emulator.metadata, data) == "INTERNAL"
            assert raw_call(channel, rpc, emulator.metadata, garbage[2]) != "UNKNOWN"
        assert raw_call(channel, "Subscribe", emulator.metadata, good, garbage[0]) == "INTERNAL"
        assert raw_call(channel, "Nothing", emulator.metadata, b"") == "UNIMPLEMENTED"


def test_messages_with_random_values_get_a_specific_status(emulator):
    """Requests with random values in all fields never end with UNKNOWN and never hang, and the
    trailers of every refusal have one of the service's error codes.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    texts = ["", " ", "x" * 3000, "/event/\u0000", "\U0001f600", ORDERS, ACCOUNTS, CHANGES, MANAGED]
    texts += ["18xSB0000000001", "/data/", "18xSB0000000001AAA"]
    numbers = [0, 1, -1, 2**31 - 1, -(2**31), 7, 100]
    tip = emulator.bus.ids.mint(emulator.bus.tip())
    blobs = [b"", b"\x00" * 10, b"\xff" * 10, b"\xff" * 8, os.urandom(10), os.urandom(5000), tip]

    def fill(message: Any, depth: int = 0) -> Any:
        for field in message.DESCRIPTOR.fields:
            if dice.random() < 0.3:
                continue
            if field.message_type is not None:
                if depth < 3:
                    holder = getattr(message, field.name)
                    for _ in range(dice.randrange(3)):
                        fill(holder.add() if hasattr(holder, "add") else holder, depth + 1)
            elif field.type == field.TYPE_STRING:
                setattr(message, field.name, dice.choice(texts))
            elif field.type == field.TYPE_BYTES:
                setattr(message, field.name, dice.choice(blobs))
            else:
                setattr(message, field.name, dice.choice(numbers))
        return message

    ends: set[str] = set()
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        for _ in range(250):
            rpc = dice.choice(list(METHODS))
            messages = [fill(METHODS[rpc]()) for _ in range(dice.randrange(1, 4))]
            data = [message.SerializeToString() for message in messages]
            status, trailers = raw_end(channel, rpc, emulator.metadata, *data)
            ends.add(status)
            if status != "OK":
                assert trailers.get("error-code", "").startswith(PREFIX), (rpc, status, messages)
    assert "UNKNOWN" not in ends
    assert "DEADLINE_EXCEEDED" not in ends
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= ends


def test_invalid_headers_are_unauthenticated(emulator):
    """A call with an invalid value in any authentication header ends with UNAUTHENTICATED."""
    odd = ["", " ", "x" * 4000, "00D" * 5, "core/x/y", "https:/", "a b", "core/a/b/c"]
    request = pb.TopicRequest(topic_name=ORDERS).SerializeToString()
    good = dict(emulator.metadata)
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        for name in good:
            for value in odd:
                given = tuple({**good, name: value}.items())
                assert raw_call(channel, "GetTopic", given, request) == "UNAUTHENTICATED"


def test_oversized_messages_are_rejected(emulator):
    """A request beyond gRPC's size limit ends with RESOURCE_EXHAUSTED.

    One beyond the lower limit of a proxy ends with UNAVAILABLE, and a replay id of 5 MiB is
    invalid.
    """
    client = Client(emulator.grpc_target, emulator.metadata)
    schema_id = emulator.bus.topic(ORDERS).schema_id
    for size, status in ((5, "UNAVAILABLE"), (65, "RESOURCE_EXHAUSTED")):
        event = pb.ProducerEvent(schema_id=schema_id, payload=bytes(size * 1024 * 1024))
        request = pb.PublishRequest(topic_name=ORDERS, events=[event])
        with pytest.raises(grpc.RpcError) as caught:
            client.call("Publish", request)
        assert caught.value.code().name == status
    huge = client.subscribe(replay_preset=pb.CUSTOM, replay_id=bytes(5 * 1024 * 1024))
    assert huge.refusal() == "subscription.fetch.replayid.corrupted"
    client.close()


def test_a_client_that_reads_nothing_does_not_delay_others(emulator):
    """A client that reads nothing is sent only what its connection can buffer.

    It does not delay others, and its threads end with its stream.
    """
    before = call_threads()
    notes = "x" * 300_000
    emulator.publish(ORDERS, [{"Notes__c": notes} for _ in range(60)])
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        gate = threading.Event()

        def requests() -> Any:
            yield pb.FetchRequest(topic_name=ORDERS, num_requested=100, replay_preset=pb.EARLIEST)
            gate.wait(WAIT_S)

        delivered = emulator.bus.counters.of_topic(ORDERS).delivered
        call = pb_grpc.PubSubStub(channel).Subscribe(requests(), metadata=emulator.metadata)
        until(lambda: emulator.bus.counters.of_topic(ORDERS).delivered > delivered)
        client = Client(emulator.grpc_target, emulator.metadata)
        assert client.subscribe(num_requested=5).events(5)
        client.close()
        # 18 MB are waiting; a response has at most 3 MB, and three responses fill any window.
        held = emulator.bus.counters.of_topic(ORDERS).delivered - delivered
        assert held < 63
        call.cancel()
        gate.set()
    until(lambda: call_threads() <= before + 4)


VANISHING = """
import sys, threading
import grpc
sys.path[:0] = {path!r}
from sfpubsub_grpc import pubsub_api_pb2 as pb, pubsub_api_pb2_grpc as pb_grpc
channel = grpc.insecure_channel({target!r})
stub = pb_grpc.PubSubStub(channel)
def requests(first):
    yield first
    threading.Event().wait()
fetch = pb.FetchRequest(topic_name={topic!r}, num_requested=9, replay_preset=pb.EARLIEST)
calls = [stub.Subscribe(requests(fetch), metadata={metadata!r}) for _ in range(20)]
managed = pb.ManagedFetchRequest(developer_name={managed!r}, num_requested=9)
calls.append(stub.ManagedSubscribe(requests(managed), metadata={metadata!r}))
for call in calls:
    next(call)
print("open", flush=True)
threading.Event().wait()
"""


def test_a_killed_client_leaves_no_threads_and_frees_its_slot(emulator):
    """When a process with 21 open streams is killed, their threads end and its managed slot is
    freed.
    """
    before = call_threads(), request_threads()
    program = VANISHING.format(
        path=sys.path,
        target=emulator.grpc_target,
        topic=ORDERS,
        managed=MANAGED,
        metadata=emulator.metadata,
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert call_threads() >= before[0] + 10
    finally:
        process.kill()
        process.communicate()
    until(lambda: call_threads() <= before[0] + 4)
    until(lambda: request_threads() <= before[1])
    client = Client(emulator.grpc_target, emulator.metadata)
    assert client.managed().events(1)
    client.close()


def drop(address: tuple[str, int], count: int, say: bytes, reset: bool) -> int:
    """Open *count* connections one by one, send the bytes *say* on each, and close or reset it.

    Returns:
        The number of connections that were opened.
    """
    opened = 0
    for _ in range(count):
        with contextlib.suppress(OSError), socket.create_connection(address, WAIT_S) as connection:
            opened += 1
            if reset:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if say:
                connection.sendall(say)
    return opened


def open_files() -> int:
    """Return how many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def addresses(emulator: EmulatorServer) -> list[tuple[str, int]]:
    """Return the addresses of the gRPC port and the HTTP port."""
    urls = (emulator.grpc_target, emulator.http_url)
    return [("127.0.0.1", int(url.rpartition(":")[2])) for url in urls]


def drop_many(emulator: EmulatorServer, count: int, check: Callable[[], None]) -> None:
    """Drop *count* connections of each kind on each port, and call *check* after each kind."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    for address in addresses(emulator):
        for say in (b"", b"GET / HTTP", preface, b"\x16\x03\x01\xff\xff"):
            for reset in (False, True):
                assert drop(address, count, say, reset) == count
                check()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("count", [12, pytest.param(625, marks=pytest.mark.slow)])
def test_dropped_connections_leave_no_files_or_threads(emulator, count):
    """Connections that are closed or reset, even during a request or a handshake, leak no file
    descriptors or threads on either port.
    """
    files, threads = open_files(), threading.active_count()
    drop_many(emulator, count, lambda: None)
    until(lambda: open_files() <= files + 4)
    until(lambda: threading.active_count() <= threads + 4)
