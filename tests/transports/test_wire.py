"""Tests of the conversion between the protocol's values and protobuf messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from sfpubsub import native
from sfpubsub.errors import LocalProtocolError, RemoteProtocolError
from sfpubsub.protocol.commands import CommitRequest, OpenStream, SendRequest
from sfpubsub.transports import wire
from sfpubsub.transports.base import Target
from sfpubsub.types import ProducerEvent, ReplayId, StartPosition
from sfpubsub_grpc import pubsub_api_pb2 as pb

TOPIC = Target("/event/X__e", managed=False)
NAMED = Target("Orders", managed=True)
RAW = b"\x00\xff\xfe\n\x00"


def test_the_first_request_carries_the_start_position():
    """The first request contains the start's preset and, for CUSTOM, its replay id as raw bytes."""
    request = wire.fetch_opening(TOPIC, OpenStream(1, 100, StartPosition.after(ReplayId(RAW))))
    assert request == pb.FetchRequest(
        topic_name="/event/X__e", replay_preset=pb.CUSTOM, replay_id=RAW, num_requested=100
    )
    for start, preset in (
        (StartPosition.latest(), pb.LATEST),
        (StartPosition.earliest(), pb.EARLIEST),
    ):
        assert wire.fetch_opening(TOPIC, OpenStream(1, 1, start)).replay_preset == preset


def test_a_missing_start_is_rejected():
    """Opening a stream without a start raises an error, because the protocol's default, LATEST,
    would silently skip events.
    """
    with pytest.raises(LocalProtocolError, match="without a start"):
        wire.fetch_opening(TOPIC, OpenStream(1, 1, None))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Orders", "developer_name"),
        ("18x_is_no_id", "developer_name"),
        ("18xSB0000000001", "subscription_id"),
        ("18xSB0000000001YAA", "subscription_id"),
        ("18xSB0000000001YA", "developer_name"),
    ],
)
def test_exactly_one_name_of_a_managed_subscription_is_sent(name, field):
    """A managed subscription's record id is sent as an id and any other name as a developer name,
    never both.
    """
    request = wire.managed_opening(Target(name, managed=True), OpenStream(1, 100, None))
    assert {f.name for f, _ in request.ListFields()} == {field, "num_requested"}
    assert getattr(request, field) == name


def test_a_commit_can_be_sent_without_requesting_events():
    """A request may contain a commit without asking for events, or ask for events
    without a commit.
    """
    request = wire.managed_request(NAMED, SendRequest(1, 0, CommitRequest("1-1", ReplayId(RAW))))
    assert request.commit_replay_id_request.replay_id == RAW
    assert request.commit_replay_id_request.commit_request_id == "1-1"
    assert request.num_requested == 0
    assert not wire.managed_request(NAMED, SendRequest(1, 50)).HasField("commit_replay_id_request")
    assert wire.fetch_request(TOPIC, SendRequest(1, 50)).num_requested == 50


def test_a_response_keeps_all_fields():
    """A converted response keeps the message's events, headers, ids and numbers."""
    event = pb.ProducerEvent(
        id="e1", schema_id="s", payload=b"\x00", headers=[pb.EventHeader(key="k", value=b"v")]
    )
    message = pb.FetchResponse(
        events=[pb.ConsumerEvent(event=event, replay_id=RAW)],
        latest_replay_id=RAW,
        rpc_id="r",
        pending_num_requested=3,
    )
    response = wire.response(message)
    (raw,) = response.events
    assert (raw.id, raw.schema_id, raw.payload, raw.headers) == ("e1", "s", b"\x00", (("k", b"v"),))
    assert bytes(raw.replay_id) == RAW
    assert response.latest_replay_id == ReplayId(RAW)
    assert (response.pending, response.rpc_id, response.commit) == (3, "r", None)


def test_a_missing_latest_replay_id_is_none():
    """If a commit response lacks latest_replay_id, the converted response has None."""
    message = pb.ManagedFetchResponse(
        commit_response=pb.CommitReplayResponse(
            commit_request_id="1-1", replay_id=RAW, process_time=7
        )
    )
    response = wire.response(message)
    assert response.latest_replay_id is None
    assert response.commit.request_id == "1-1"
    assert response.commit.error is None
    assert response.commit.process_time == 7


@pytest.mark.parametrize(("msg", "text"), [("too old", "too old"), ("", "COMMIT")])
def test_commit_errors_always_have_a_message(msg, text):
    """A commit error without a message uses the name of its error code instead."""
    message = pb.ManagedFetchResponse(
        commit_response=pb.CommitReplayResponse(error=pb.Error(code=pb.COMMIT, msg=msg))
    )
    assert wire.response(message).commit.error == text


def test_an_event_without_a_replay_id_is_a_protocol_error():
    """An event without a replay id raises RemoteProtocolError, because nothing could resume from
    it.
    """
    message = pb.FetchResponse(events=[pb.ConsumerEvent(event=pb.ProducerEvent(id="e"))])
    with pytest.raises(RemoteProtocolError, match="without a replay id"):
        wire.response(message)


# The compiled parser

POSITIONS = st.binary(min_size=1, max_size=9)


def rarely(usual: Any, rare: Any) -> Any:
    """Return a strategy that draws from *rare* one time in ten, and from *usual* otherwise."""
    return st.integers(0, 9).flatmap(lambda number: usual if number else rare)


HEADERS = st.lists(st.builds(pb.EventHeader, key=st.text(max_size=2)), min_size=1, max_size=2)
EVENTS = st.builds(
    pb.ConsumerEvent,
    event=st.builds(
        pb.ProducerEvent,
        id=st.text(max_size=5),
        schema_id=st.sampled_from(["", "one", "two"]),
        payload=st.binary(max_size=200),
        headers=rarely(st.just([]), HEADERS),
    ),
    replay_id=rarely(POSITIONS, st.just(b"")),
)
COMMITS = st.builds(pb.CommitReplayResponse, replay_id=POSITIONS, commit_request_id=st.just("1-1"))
MESSAGES = st.builds(
    pb.ManagedFetchResponse,
    events=st.lists(EVENTS, max_size=4),
    latest_replay_id=POSITIONS | st.just(b""),
    rpc_id=st.text(max_size=5),
    pending_num_requested=rarely(st.integers(0, 100), st.integers(-(2**31), 2**31 - 1)),
    commit_response=rarely(st.none(), COMMITS),
).map(pb.ManagedFetchResponse.SerializeToString)
# Messages that are truncated, joined (so fields occur twice) or have one byte changed, and random
# bytes.
DAMAGED = st.one_of(
    st.tuples(MESSAGES, st.integers(0, 400)).map(lambda pair: pair[0][: pair[1]]),
    st.lists(MESSAGES, min_size=2, max_size=2).map(b"".join),
    st.tuples(MESSAGES, st.integers(0, 400), st.integers(0, 255)).map(
        lambda each: each[0][: each[1]] + bytes([each[2]]) + each[0][each[1] + 1 :]
    ),
    st.binary(max_size=30),
)


def outcome(form: wire.Form, data: bytes) -> Any:
    """Return the parsed response, or the type and text of the error."""
    try:
        return wire.parsed(form, data)
    except (DecodeError, RemoteProtocolError) as error:
        return type(error), str(error)


@pytest.mark.skipif(not native.is_installed(), reason="sfpubsub-native is not installed")
@pytest.mark.parametrize("form", [wire.PLAIN, wire.MANAGED], ids=["plain", "managed"])
@settings(max_examples=500)
@given(data=MESSAGES | DAMAGED)
@example(data=pb.FetchResponse(events=[pb.ConsumerEvent(replay_id=RAW)]).SerializeToString())
@example(data=b"\x1a\x01\xff")  # an rpc id that is not UTF-8
@example(data=b"\x20" + b"\x80" * 9 + b"\x01")  # a number of 70 bits
@example(data=b"\x22\x00")  # a number with the wire type of bytes
@example(data=b"\x9a\x80\x80\x80\x80\x00\x01r")  # a tag of six bytes
@example(data=b"\x1a\x81\x80\x80\x80\x80\x00r")  # a length of six bytes
@example(data=b"\n\r\n\x08\x8a\x80\x80\x80\x80\x00\x01e\x12\x01p")  # the tag of an event's id
@example(data=b"\n\r\n\x08\n\x81\x80\x80\x80\x80\x00e\x12\x01p")  # its length
def test_both_parsers_agree(form, data):
    """For any bytes, the compiled parser returns the same response or error as Protobuf's
    parser.
    """
    compiled = wire._compiled
    found = outcome(form, data)
    try:
        wire._compiled = None
        assert found == outcome(form, data)
    finally:
        wire._compiled = compiled
    try:
        compiled.parse(data)
        event("compiled")
    except ValueError:
        event("left to Protobuf")


@pytest.mark.skipif(not native.is_installed(), reason="sfpubsub-native is not installed")
def test_the_compiled_parser_handles_ordinary_messages():
    """The compiled parser reads a keepalive, and a response with events of two schemas."""
    events = [
        pb.ConsumerEvent(
            event=pb.ProducerEvent(id=f"e{number}", schema_id=f"s{number % 2}", payload=RAW),
            replay_id=bytes([number + 1]),
        )
        for number in range(5)
    ]
    for message in (
        pb.FetchResponse(events=events, latest_replay_id=RAW, rpc_id="r", pending_num_requested=95),
        pb.FetchResponse(latest_replay_id=RAW, rpc_id="r", pending_num_requested=100),
    ):
        found = wire._compiled.parse(message.SerializeToString())
        assert wire.response(message)[:4] == found


def test_publish_requests_and_results_are_converted():
    """A converted publish request preserves order, ids and headers.

    Converted results preserve errors, and say which of them can be retried.
    """
    events = [ProducerEvent("s", b"1", "a"), ProducerEvent("s", b"2", "b", (("key", b"value"),))]
    request = wire.publish_request("/event/X__e", events)
    assert request.topic_name == "/event/X__e"
    assert request.events[0] == pb.ProducerEvent(id="a", schema_id="s", payload=b"1")
    assert request.events[1] == pb.ProducerEvent(
        id="b", schema_id="s", payload=b"2", headers=[pb.EventHeader(key="key", value=b"value")]
    )
    busy = "PLATFORM_EVENT_PUBLISHING_UNAVAILABLE: later"
    answer = wire.publish_answer(
        pb.PublishResponse(
            schema_id="new",
            rpc_id="call",
            results=[
                pb.PublishResult(replay_id=RAW, correlation_key="a"),
                pb.PublishResult(correlation_key="b", error=pb.Error(code=pb.PUBLISH, msg="no")),
                pb.PublishResult(correlation_key="c", error=pb.Error(code=pb.PUBLISH, msg=busy)),
                pb.PublishResult(correlation_key="d", error=pb.Error(code=pb.PUBLISH)),
            ],
        )
    )
    results = answer.results
    assert (answer.schema_id, answer.rpc_id) == ("new", "call")
    assert [result.ok for result in results] == [True, False, False, False]
    assert [result.retryable for result in results] == [False, False, True, False]
    assert results[3].error == "PUBLISH"
    assert results[0].replay_id == ReplayId(RAW)
    assert results[1].error == "no"
