"""The emulator's gRPC servicer on grpc's own testing server: without a port or network, with the
test as the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest

from sfpubsub.emulator.grpc.servicer import PubSubServicer
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import MANAGED, ORDERS, WAIT_S

SERVICE = pb.DESCRIPTOR.services_by_name["PubSub"]


class InProcessClient:
    """The emulator's servicer on a testing server, with methods that act as its client."""

    def __init__(self, emulator: EmulatorServer) -> None:
        self.emulator = emulator
        servicer = PubSubServicer(emulator._world)
        self.server = grpc_testing.server_from_dictionary(
            {SERVICE: servicer}, grpc_testing.strict_real_time()
        )
        self._pool = ThreadPoolExecutor(1)

    def stream(self, method: str, first: Any, metadata: Any = None) -> Any:
        rpc = self.server.invoke_stream_stream(
            SERVICE.methods_by_name[method], metadata or self.emulator.metadata, None
        )
        rpc.send_request(first)
        return rpc

    def wait(self, what: Callable[[], Any]) -> Any:
        """Return the result of a call that may block, or raise after `WAIT_S` seconds."""
        return self._pool.submit(what).result(WAIT_S)

    def end(self, rpc: Any) -> None:
        """Close the request side of the call *rpc*, and assert that the call ends with OK."""
        rpc.requests_closed()
        _, code, _ = self.wait(rpc.termination)
        assert code is grpc.StatusCode.OK


@pytest.fixture
def in_process_client(emulator: EmulatorServer) -> Iterator[InProcessClient]:
    made = InProcessClient(emulator)
    yield made
    made._pool.shutdown(wait=False)


def test_unary_call(in_process_client: InProcessClient) -> None:
    """A unary GetTopic call returns its response with status OK."""
    rpc = in_process_client.server.invoke_unary_unary(
        SERVICE.methods_by_name["GetTopic"],
        in_process_client.emulator.metadata,
        pb.TopicRequest(topic_name=ORDERS),
        None,
    )
    answer, _, code, _ = in_process_client.wait(rpc.termination)
    assert code is grpc.StatusCode.OK
    assert answer.topic_name == ORDERS


def test_events_are_sent_as_requested(in_process_client: InProcessClient) -> None:
    """A stream sends no more events than requested; the rest follow after another request."""
    in_process_client.emulator.publish(ORDERS, [{"Order_Number__c": str(n)} for n in range(5)])
    fetch = pb.FetchRequest(topic_name=ORDERS, replay_preset=pb.EARLIEST, num_requested=3)
    rpc = in_process_client.stream("Subscribe", fetch)
    first = pb.FetchResponse.FromString(in_process_client.wait(rpc.take_response))
    assert len(first.events) == 3
    assert first.pending_num_requested == 0
    rpc.send_request(pb.FetchRequest(num_requested=10))
    second = pb.FetchResponse.FromString(in_process_client.wait(rpc.take_response))
    assert len(second.events) == 2
    assert second.pending_num_requested == 8
    in_process_client.end(rpc)


def test_commit_is_answered_and_stored(in_process_client: InProcessClient) -> None:
    """A commit stores its position, and a separate response confirms it with the request's id and
    position.
    """
    published = in_process_client.emulator.publish(ORDERS, [{"Order_Number__c": "1"}])
    rpc = in_process_client.stream(
        "ManagedSubscribe", pb.ManagedFetchRequest(developer_name=MANAGED, num_requested=5)
    )
    (event,) = pb.ManagedFetchResponse.FromString(in_process_client.wait(rpc.take_response)).events
    commit = pb.CommitReplayRequest(commit_request_id="c-1", replay_id=event.replay_id)
    rpc.send_request(pb.ManagedFetchRequest(commit_replay_id_request=commit))
    answer = pb.ManagedFetchResponse.FromString(
        in_process_client.wait(rpc.take_response)
    ).commit_response
    assert answer.commit_request_id == "c-1"
    assert answer.replay_id == event.replay_id
    assert not answer.HasField("error")
    in_process_client.end(rpc)
    committed = in_process_client.emulator.managed.get(MANAGED).committed
    assert in_process_client.emulator.bus.ids.mint(committed) == published[0].replay_id


@pytest.mark.parametrize(
    ("first", "code", "text"),
    [
        (
            pb.FetchRequest(topic_name="/event/None__e", num_requested=1),
            grpc.StatusCode.NOT_FOUND,
            "/event/None__e",
        ),
        (
            pb.FetchRequest(topic_name=ORDERS, num_requested=0),
            grpc.StatusCode.INVALID_ARGUMENT,
            "",
        ),
    ],
)
def test_refusal_status_and_text(
    in_process_client: InProcessClient, first: Any, code: Any, text: str
) -> None:
    """A refused request ends with the matching status, and the error text ends with the RPC ID.
    (The trailers are not checked, because a testing server loses those of an aborted call.).
    """
    rpc = in_process_client.stream("Subscribe", first)
    _, status, details = in_process_client.wait(rpc.termination)
    assert status is code
    assert text in details
    assert re.search(r" rpcId: \S+$", details)


def test_call_without_a_valid_token_is_refused(in_process_client: InProcessClient) -> None:
    """A call with an invalid access token is refused as UNAUTHENTICATED before its request is
    validated.
    """
    rpc = in_process_client.stream(
        "Subscribe", pb.FetchRequest(), metadata=(("accesstoken", "none"),)
    )
    _, status, _ = in_process_client.wait(rpc.termination)
    assert status is grpc.StatusCode.UNAUTHENTICATED
