"""Tests of reading calls directly in grpc's own thread, and by iterating as grpc documents.

Both ways run against a real server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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

# A server's behavior in a call: takes the requests and the context, and yields messages.
Script = Callable[[Iterator[bytes], Any], Iterator[bytes]]


def message(number: int) -> bytes:
    """Return a serialized response with one event, whose id is "e" followed by *number*."""
    event = pb.ProducerEvent(id=f"e{number}", schema_id="s", payload=b"x")
    item = pb.ConsumerEvent(event=event, replay_id=number.to_bytes(8, "big"))
    return pb.FetchResponse(events=[item], pending_num_requested=99).SerializeToString()


class Reading:
    """A call read in a thread, with the responses that it received and how it ended."""

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
        """Wait until the call ends, and return its failure, or None if it succeeded."""
        assert self.over.wait(PATIENCE)
        self.thread.join(PATIENCE)
        assert len(self.ends) == 1
        return self.ends[0]


@pytest.fixture
def serve() -> Iterator[Callable[..., GrpcTransport]]:
    """Return a function that starts a server and returns a transport to it.

    The server runs the given script for each Subscribe call.
    """
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
    """Select how responses are read: directly in grpc's thread, or by iterating over the call."""
    if WAYS[request.param] and not direct._IS_TRIED:
        pytest.skip(f"grpcio {grpc.__version__} is read in the documented way only")
    monkeypatch.setattr(direct, "_IS_TRIED", WAYS[request.param])
    return str(request.param)


def test_the_pinned_grpcio_is_a_tested_version() -> None:
    """The grpcio of `constraints.txt` is in `direct.TRIED`, the versions tested for direct reading.

    Before extending this range, run this file with the new version.
    """
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    (pinned,) = (pin.removeprefix("grpcio==") for pin in pins if pin.startswith("grpcio=="))
    assert direct.is_tried(pinned)
    assert direct.is_tried("1.78.0rc1")
    assert not direct.is_tried("1.86.0")
    assert not direct.is_tried("2.0.0")


def test_an_interceptors_call_is_not_read_directly() -> None:
    """A call that is not of grpc's own type, such as an interceptor's, cannot be read directly."""
    assert direct.open_direct(object(), lambda: None) is None


class _Wrapped:
    """An interceptor's wrapper of a call, which raises the call's error as another type."""

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
    """An interceptor that wraps every streaming call."""

    def intercept_stream_stream(self, method: Any, details: Any, requests: Any) -> Any:
        return _Wrapped(method(details, requests))


def test_an_error_raised_by_an_interceptors_call_is_classified(serve: Any) -> None:
    """If an interceptor's call raises, the failure is classified from that error.

    Events before it are kept.
    """

    def script(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        yield message(1)
        context.abort(grpc.StatusCode.UNAVAILABLE, "maintenance")

    reading = Reading(serve(script, _Interceptor()))
    failure = reading.wait()
    assert reading.ids == ["e1"]
    assert failure is not None
    assert failure.kind is FailureKind.RETRY


def test_messages_are_delivered_in_order_before_the_end(serve: Any, way: str) -> None:
    """All messages are delivered in order before the call ends.

    Direct reading delivers them in one of grpc's threads.
    """

    def script(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        next(requests)
        yield from map(message, range(300))

    reading = Reading(serve(script))
    assert reading.wait() is None
    assert reading.ids == [f"e{n}" for n in range(300)]
    assert (reading.threads == {"test-reader"}) == (way == "documented")


def test_all_messages_are_delivered_before_a_failure(serve: Any, way: str) -> None:
    """If the service aborts a stream while the client is sending, the client still receives the
    earlier messages and the status.
    """

    def script(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        yield from map(message, range(20))
        context.set_trailing_metadata((("rpc-id", "r1"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "maintenance")

    transport = serve(script)
    # The documented way takes a second per call, because its iterator of requests has to wait.
    for _ in range(30 if way == "direct" else 5):
        reading = Reading(transport)
        while not reading.over.is_set():
            reading.call.send(SendRequest(1, 1))
        failure = reading.wait()
        assert reading.ids == [f"e{n}" for n in range(20)]
        assert failure is not None
        assert failure.kind is FailureKind.RETRY
        assert failure.error.rpc_id == "r1"
        reading.call.send(SendRequest(1, 1))  # ignored, because the call has ended


def test_requests_are_sent_in_order_before_the_half_close(serve: Any, way: str) -> None:
    """500 requests in quick succession arrive in order, and all before the half-close."""
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
    """A call that another thread cancels between messages ends once, with a retryable failure."""

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
def test_an_invalid_message_ends_its_call(
    serve: Any, way: str, broken: bytes, kind: FailureKind
) -> None:
    """An invalid message ends its call: earlier events are kept and later ones are not read.

    Later calls on the same channel still work.
    """

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


@pytest.mark.skipif(not direct._IS_TRIED, reason="this grpcio is read in the documented way only")
def test_an_internal_error_ends_its_call_but_not_grpcs_thread(
    serve: Any, monkeypatch: Any, caplog: Any
) -> None:
    """A bug in our reading code ends only its call; the next call on the channel is
    read normally.
    """

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
    assert "/event/Order_Event__e: internal error" in caplog.text
    following = Reading(transport)
    assert following.wait() is None
    assert following.ids == ["e1"]
