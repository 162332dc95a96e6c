"""Tests of many concurrent calls and of silent calls: their limits, and when their threads end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.grpc import workers as workers_module
from sfpubsub.emulator.grpc.workers import Workers
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

from .support import MANAGED, ORDERS, PREFIX, WAIT_S, until

TOPIC = pb.TopicRequest(topic_name=ORDERS)
FETCH = pb.FetchRequest(topic_name=ORDERS, num_requested=10, replay_preset=pb.EARLIEST)


def call_threads() -> int:
    """Return how many threads of this process serve calls."""
    return sum(thread.name.startswith("emulator-call") for thread in threading.enumerate())


def request_threads() -> int:
    """Return the number of threads in this process that read requests from streams."""
    return sum(thread.name == "emulator-requests" for thread in threading.enumerate())


def test_a_stream_beyond_max_streams_is_rejected_at_once(start):
    """Beyond `max_streams`, each kind of stream is rejected with the service's error text.

    Unary calls still work, and a stream that ends makes room.
    """
    emulator, client = start(settings=Settings(max_streams=3))
    emulator.publish(ORDERS, [{}])
    streams = [client.subscribe(), client.subscribe(), client.stream("PublishStream")]
    for stream in streams[:2]:
        stream.events(1)
    until(lambda: emulator.bus.bells.count("PublishStream"))
    for rpc in ("Subscribe", "ManagedSubscribe", "PublishStream"):
        code, details, trailers = client.stream(rpc).end()
        assert code == "RESOURCE_EXHAUSTED"
        assert details.startswith("The service received too many connections and doesn't have the")
        assert trailers["error-code"] == PREFIX + "service.protection.triggered"
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS
    streams[0].half_close()
    assert streams[0].end()[0] == "OK"
    client.subscribe().events(1)


def test_unary_calls_work_while_all_streams_are_delayed(start):
    """A stream counts against `max_streams` from its start, even while a fault delays it.

    Unary calls still work.
    """
    emulator, client = start(settings=Settings(max_streams=2), clock=ManualClock())
    for _ in range(2):
        emulator.faults.add(Fault("delay_call", rpc="Subscribe", seconds=9.0))
        client.subscribe()
    until(lambda: call_threads() >= 2)
    until(lambda: client.subscribe().refusal() == "service.protection.triggered")
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS


def test_threads_end_when_their_streams_end(emulator):
    """After 200 concurrent streams have each received an event and ended, almost none of their
    threads remain.
    """
    emulator.publish(ORDERS, [{}])
    before, readers = call_threads(), request_threads()
    with grpc.insecure_channel(emulator.grpc_target) as channel:
        stub = pb_grpc.PubSubStub(channel)
        done = threading.Event()

        def requests() -> Iterator[Any]:
            yield FETCH
            done.wait(WAIT_S)

        calls = [stub.Subscribe(requests(), metadata=emulator.metadata) for _ in range(200)]
        for call in calls:
            assert len(next(call).events) == 1
        assert call_threads() >= 200
        done.set()
        for call in calls:
            assert call.code() == grpc.StatusCode.OK
    until(lambda: call_threads() <= before + 4)
    until(lambda: request_threads() <= readers)


def test_workers_queue_tasks_beyond_their_number(monkeypatch):
    """Two worker threads run five tasks; if a task raises an exception, its future does too.

    Shutting down ends both threads, even if they would otherwise wait for more tasks.
    """
    monkeypatch.setattr(workers_module, "_IDLE_S", 2 * WAIT_S)
    workers = Workers(2, "emulator-call-test")
    gate = threading.Event()
    running = [workers.submit(gate.wait, WAIT_S) for _ in range(2)]
    waiting = [workers.submit(int, text) for text in ("1", "2", "x")]
    assert not any(future.done() for future in waiting)
    gate.set()
    assert [future.result(WAIT_S) for future in (*running, *waiting[:2])] == [True, True, 1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        waiting[2].result(WAIT_S)
    threads = [each for each in threading.enumerate() if each.name == "emulator-call-test"]
    assert len(threads) == 2
    workers.shutdown(wait=False)
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    with pytest.raises(RuntimeError):
        workers.submit(int)


@pytest.mark.parametrize("rpc", ["Subscribe", "ManagedSubscribe"])
@pytest.mark.parametrize("close", ["ok", "error"])
def test_a_stream_without_a_request_is_closed(start, rpc, close):
    """A stream without a first request is closed after 60 s, like one that requests no events."""
    clock = ManualClock()
    emulator, client = start(settings=Settings(idle_close=close), clock=clock)
    stream = client.stream(rpc)
    until(lambda: emulator.bus.bells.count("first request"))
    clock.jump(59.0)
    assert stream.silent()
    clock.jump(1.0)
    if close == "ok":
        assert stream.end()[0] == "OK"
    else:
        assert stream.refusal() == "subscription.fetch.idle.timeout"
    assert emulator.bus.bells.count("first request") == 0


def test_a_stream_without_a_request_ends_when_its_token_expires(start):
    """A stream that still waits for its first request ends as soon as its token expires."""
    clock = ManualClock()
    emulator, client = start(settings=Settings(token_lifetime_s=10.0), clock=clock)
    stream = client.stream("Subscribe")
    until(lambda: emulator.bus.bells.count("first request"))
    clock.jump(11.0)
    assert stream.refusal() == "service.auth.error"


def test_response_headers_before_the_first_message(start, tmp_path):
    """With `headers_at_once`, response headers are sent at once; otherwise, with the first message.

    The Rust library tonic behaves differently in the two cases.
    """
    _, client = start(settings=Settings(headers_at_once=True), data_dir=tmp_path / "at once")
    stream = client.subscribe()
    assert stream.call.initial_metadata() == ()
    emulator, client = start(data_dir=tmp_path / "with the first")
    stream = client.subscribe()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(stream.call.initial_metadata()))
    waiting.start()
    waiting.join(0.2)  # the headers must not arrive in this time
    assert not found
    emulator.publish(ORDERS, [{}])
    waiting.join(WAIT_S)
    assert found == [()]


@pytest.mark.parametrize(
    ("rpc", "first", "suffix", "said"),
    [
        ("subscribe", {"replay_preset": 7}, "subscription.fetch.request.invalid", "preset"),
        (
            "managed",
            {"developer_name": ""},
            "managed.subscription.id.or.developer.name.empty",
            "must name",
        ),
        (
            "managed",
            {"developer_name": MANAGED, "subscription_id": "18xSB0000000001"},
            "managed.subscription.id.or.developer.name.empty",
            "not both",
        ),
        (
            "managed",
            {"num_requested": 0},
            "managed.subscription.fetch.request.invalid",
            "asks for no events",
        ),
    ],
)
def test_refusals_say_what_is_wrong(client, rpc, first, suffix, said):
    """The error text says what is wrong with the request; the error code may be ambiguous."""
    code, details, trailers = getattr(client, rpc)(**first).end()
    assert (code, trailers["error-code"]) == ("INVALID_ARGUMENT", PREFIX + suffix)
    assert said in details
