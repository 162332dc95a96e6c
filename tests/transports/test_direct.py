"""Calls that are read in grpc's own thread, against a real server; and as grpc documents it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc import aio

from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.events import Failure, FailureKind, Response
from sfpubsub.transports import direct, wire
from sfpubsub.transports.base import Target
from sfpubsub.transports.channel import GrpcTransport, open_channel
from sfpubsub.types import StartPosition
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..conftest import PATIENCE, until

TARGET = Target("/event/Order_Event__e", managed=False)
OPENING = OpenStream(1, 100, StartPosition.earliest())
WAYS = {"direct": True, "documented": False}

# What a server does with a call: takes its requests and its context, and yields messages.
Script = Callable[[Iterator[bytes], Any], Iterator[bytes]]


def message(number: int) -> bytes:
    event = pb.ProducerEvent(id=f"e{number}", schema_id="s", payload=b"x")
    item = pb.ConsumerEvent(event=event, replay_id=number.to_bytes(8, "big"))
    return pb.FetchResponse(events=[item], pending_num_requested=99).SerializeToString()


class Reading:
    """What a call brought."""

    def __init__(self, transport: GrpcTransport) -> None:
        self.responses: list[Response] = []
        self.threads: set[str] = set()
        self.ends: list[Failure | None] = []
        self.over = threading.Event()
        self.call = transport.open_stream(TARGET, OPENING)
        self.thread = threading.Thread(
            target=self.call.read, args=(self.take, self.end), name="test-reader"
        )
        self.thread.start()

    def take(self, response: Response) -> None:
        assert not self.ends
        self.threads.add(threading.current_thread().name)
        self.responses.append(response)

    def end(self, failure: Failure | None) -> None:
        self.ends.append(failure)
        self.over.set()

    @property
    def ids(self) -> list[str]:
        return [event.id for response in self.responses for event in response.events]

    def wait(self) -> Failure | None:
        assert self.over.wait(PATIENCE)
        self.thread.join(PATIENCE)
        assert len(self.ends) == 1
        return self.ends[0]


@pytest.fixture
def serve() -> Iterator[Callable[..., GrpcTransport]]:
    """Start a server that does the script with each Subscribe call; return a transport to it."""
    closing: list[Callable[[], Any]] = []

    def start(script: Script, *interceptors: Any) -> GrpcTransport:
        server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(script)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("eventbus.v1.PubSub", {"Subscribe": handler})]
        )
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        channel = open_channel(target, insecure="1")
        transport = GrpcTransport(
            grpc.intercept_channel(channel, *interceptors), target, lambda: ()
        )
        closing.extend([lambda: server.stop(None).wait(PATIENCE), transport.close])
        return transport

    yield start
    for close in reversed(closing):
        close()


@pytest.fixture(params=WAYS)
def way(request: Any, monkeypatch: Any) -> str:
    """Read calls in one way, then in the other."""
    monkeypatch.setattr(direct, "_IS_TRIED", WAYS[request.param])
    return str(request.param)


def test_the_tried_versions_of_grpcio_include_the_one_that_is_tested() -> None:
    """Whoever pins a newer one sees that its calls are to be looked at; others read as documented.

    The bounds are in `direct.TRIED`; run this file with the new version, then move them.
    """
    assert direct.is_tried(grpc.__version__)
    assert direct.is_tried("1.78.0rc1")
    assert not direct.is_tried("1.86.0")
    assert not direct.is_tried("2.0.0")


def test_an_interceptors_call_is_read_as_documented() -> None:
    """What is not grpc's own call has not what is used of it."""
    assert direct.open_direct(object(), lambda: None) is None


class _Wrapped:
    """A call as an interceptor may return it: what it raises is an error of its own."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            nothing = aio.Metadata()
            raise aio.AioRpcError(error.code(), nothing, nothing, error.details()) from None

    def cancel(self) -> None:
        self._call.cancel()


class _Interceptor(grpc.StreamStreamClientInterceptor):
    def intercept_stream_stream(self, method: Any, details: Any, requests: Any) -> Any:
        return _Wrapped(method(details, requests))


def test_an_interceptors_error_is_the_reason_of_the_end(serve: Any) -> None:
    """What was raised says why the call ended: its call need not be able to say so."""

    def script(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        yield message(1)
        context.abort(grpc.StatusCode.UNAVAILABLE, "maintenance")

    reading = Reading(serve(script, _Interceptor()))
    failure = reading.wait()
    assert reading.ids == ["e1"]
    assert failure is not None
    assert failure.kind is FailureKind.RETRY


def test_messages_come_in_order_and_then_the_end(serve: Any, way: str) -> None:
    """In grpc's own thread, which leaves no thread of ours waiting; or in the caller's."""

    def script(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        next(requests)
        yield from map(message, range(300))

    reading = Reading(serve(script))
    assert reading.wait() is None
    assert reading.ids == [f"e{n}" for n in range(300)]
    assert (reading.threads == {"test-reader"}) == (way == "documented")


def test_every_message_comes_before_a_failure(serve: Any, way: str) -> None:
    """Also where requests are sent while the service ends the stream: its tail and status count."""

    def script(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        yield from map(message, range(20))
        context.set_trailing_metadata((("rpc-id", "r1"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "maintenance")

    transport = serve(script)
    # The documented way takes a second each: its iterator of requests waits for its turn.
    for _ in range(30 if way == "direct" else 5):
        reading = Reading(transport)
        while not reading.over.is_set():
            reading.call.send(SendRequest(1, 1))
        failure = reading.wait()
        assert reading.ids == [f"e{n}" for n in range(20)]
        assert failure is not None
        assert failure.kind is FailureKind.RETRY
        assert failure.error.rpc_id == "r1"
        reading.call.send(SendRequest(1, 1))  # after the end it goes nowhere


def test_requests_go_in_order_and_before_the_half_close(serve: Any, way: str) -> None:
    """However fast they come: core takes one at a time."""
    seen: list[int] = []

    def script(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        seen.extend(pb.FetchRequest.FromString(request).num_requested for request in requests)
        yield message(1)

    reading = Reading(serve(script))
    for number in range(500):
        reading.call.send(SendRequest(1, number))
    reading.call.half_close()
    assert reading.wait() is None
    assert seen == [100, *range(500)]


def test_a_call_that_is_cancelled_ends_once(serve: Any, way: str) -> None:
    """From another thread, in the middle of messages; the channel can then be closed."""

    def script(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        while context.is_active():
            yield message(1)

    transport = serve(script)
    for _ in range(10):
        reading = Reading(transport)
        until(lambda reading=reading: len(reading.responses) > 5, "some messages")
        reading.call.cancel()
        failure = reading.wait()
        assert failure is not None
        assert failure.kind is FailureKind.RETRY


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (pb.FetchResponse(events=[pb.ConsumerEvent()]).SerializeToString(), FailureKind.STOP),
        (b"\xff\xff\xff", FailureKind.RETRY),
    ],
)
def test_a_message_that_is_not_valid_ends_the_call(
    serve: Any, way: str, broken: bytes, kind: FailureKind
) -> None:
    """What came before is kept, what follows is not read, and grpc's thread goes on."""

    def script(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        next(requests)
        yield from (message(1), broken, message(2))
        for _ in requests:
            pass

    transport = serve(script)
    for _ in range(2):
        reading = Reading(transport)
        failure = reading.wait()
        assert reading.ids == ["e1"]
        assert failure is not None
        assert failure.kind is kind


def test_a_fault_of_ours_ends_the_call_and_not_grpcs_thread(
    serve: Any, monkeypatch: Any, caplog: Any
) -> None:
    """The thread that receives serves every call of the channel: one that follows is read."""

    def script(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        next(requests)
        yield message(1)

    transport = serve(script)
    with monkeypatch.context() as patched:
        patched.setattr(wire, "parsed", lambda _form, _message: 1 / 0)
        failure = Reading(transport).wait()
    assert failure is not None
    assert failure.kind is FailureKind.STOP
    assert "internal error, ZeroDivisionError" in str(failure.error)
    assert "internal error on /event/Order_Event__e" in caplog.text
    following = Reading(transport)
    assert following.wait() is None
    assert following.ids == ["e1"]
