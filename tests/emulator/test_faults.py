"""Tests of fault plans, and of the faults that affect streams, calls and commits.

Each kind of fault does what it says and is counted, and an invalid fault is rejected.
"""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.faults.kinds import KINDS
from sfpubsub.emulator.faults.refusals import FAILURES
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..pages import page
from .support import MANAGED, ORDERS, commit, until


def orders(count):
    """Return the values of *count* numbered orders."""
    return [{"Order_Number__c": str(i)} for i in range(count)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "explode"},
        {"kind": "refuse", "rpc": "Nothing"},
        {"kind": "fail_commit", "rpc": "Subscribe"},
        {"kind": "refuse", "times": 0},
        {"kind": "refuse", "times": True},
        {"kind": "refuse", "target": 3},
        {"kind": "refuse", "rpc": "Subscribe", "target": ORDERS},
        {"kind": "drop_call", "target": ORDERS},
        {"kind": "refuse", "error_code": "no.such.code"},
        {"kind": "refuse", "status": "OK"},
        {"kind": "drop_call", "status": "OK"},
        {"kind": "drop_stream", "status": "MAYBE"},
        {"kind": "drop_stream", "after_responses": -1},
        {"kind": "drop_stream", "after_responses": "1"},
        {"kind": "hold_slot", "minutes": 1},
        {"kind": "withhold_keepalive", "seconds": 1},
        {"kind": "split_response", "events": 0},
        {"kind": "move_keepalive_tip", "advance": 10**9},
        {"kind": "shape_commit_answer", "tip": "high"},
        {"kind": "shape_commit_answer", "pending": 1},
        {"kind": "delay_call", "rpc": "Subscribe", "target": ORDERS},
        {"kind": "corrupt_id"},
        {"kind": "corrupt_id", "replay_id": "xyz"},
        {"kind": "age_out", "replay_id": "0 0"},
        {"kind": "age_out", "target": ORDERS},
        {"kind": "expire_token", "rpc": "Subscribe"},
        {"kind": "stop_managed"},
        {"times": 1},
        [],
    ],
)
def test_invalid_faults_are_rejected(arguments):
    """An unknown kind, place, parameter or value is rejected when the fault is created."""
    with pytest.raises(ValueError, match="fault"):
        Fault.from_json(arguments)


def test_a_plan_counts_its_faults():
    """A planned fault happens as often as planned, and only at its call and target.

    `assert_consumed` raises an error while any planned fault has not happened.
    """
    plan = FaultPlan([Fault("refuse", rpc="GetTopic", target=ORDERS, times=2)])
    assert plan.take("refuse", "GetSchema", ORDERS) is None
    assert plan.take("refuse", "GetTopic", "/event/Other__e") is None
    assert plan.take("refuse", "GetTopic", ORDERS)
    with pytest.raises(AssertionError, match="refuse"):
        plan.assert_consumed()
    assert plan.take("refuse", "GetTopic", ORDERS)
    plan.assert_consumed()
    assert plan.take("refuse", "GetTopic", ORDERS) is None


def test_a_fault_can_be_switched_off():
    """A fault that is switched off does not happen again, and counts as consumed.

    Other faults are not affected.
    """
    acts = Fault("expire_token")
    plan = FaultPlan([Fault("refuse", times=3), Fault("refuse", times=2), acts])
    assert plan.take("refuse", "GetTopic")
    plan.switch_off(0)
    assert [row["off"] for row in plan.report()] == [True, False, False]
    for number, said in (
        (0, "is no longer active"),
        (2, "cannot be undone"),
        (3, "the plan has 3"),
    ):
        with pytest.raises(ValueError, match=said):
            plan.switch_off(number)
    assert plan.take("refuse", "GetTopic")
    assert plan.take("refuse", "GetTopic")
    assert plan.take("refuse", "GetTopic") is None
    assert [row["happened"] for row in plan.report()] == [1, 2, 0]
    plan.met(acts)
    plan.assert_consumed()
    with pytest.raises(ValueError, match="is no longer active"):
        plan.switch_off(1)


@pytest.mark.parametrize("suffix", sorted(FAILURES))
def test_refuse_rejects_a_call_with_any_error_code(emulator, client, suffix):
    """The fault `refuse` rejects a call with any known error code, and the next call succeeds."""
    emulator.faults.add(Fault("refuse", rpc="GetTopic", error_code=suffix))
    request = pb.TopicRequest(topic_name=ORDERS)
    assert client.refusal("GetTopic", request) == (FAILURES[suffix].status, suffix)
    assert client.call("GetTopic", request).topic_name == ORDERS
    emulator.faults.assert_consumed()


def test_refuse_rejects_a_stream_with_any_status(emulator, client):
    """The fault `refuse` can reject a stream with a gRPC status other than its error code's usual
    one.
    """
    emulator.faults.add(Fault("refuse", rpc="ManagedSubscribe", status="ABORTED"))
    status, _, trailers = client.managed().end()
    assert status == "ABORTED"
    assert trailers["error-code"].endswith("service.unavailable")
    emulator.faults.assert_consumed()


@pytest.mark.parametrize(
    ("status", "seen"), [("UNAVAILABLE", "UNAVAILABLE"), ("RESET", "CANCELLED"), ("OK", "OK")]
)
def test_drop_stream_ends_a_stream_after_some_responses(emulator, client, status, seen):
    """The fault `drop_stream` ends a stream after exactly `after_responses` responses.

    There are no trailers.
    """
    emulator.faults.add(Fault("drop_stream", after_responses=2, status=status))
    stream = client.subscribe()
    for _ in range(2):
        emulator.publish(ORDERS, orders(1))
        stream.events(1)
    got, _, trailers = stream.end()
    assert got == seen
    assert "error-code" not in trailers
    emulator.faults.assert_consumed()


def test_drop_stream_ends_an_idle_stream_at_once(emulator, client):
    """A `drop_stream` fault that is added while a stream is idle ends that stream at once."""
    stream = client.managed()
    until(lambda: emulator.managed.is_active(emulator.managed.get(MANAGED).subscription_id))
    emulator.faults.add(Fault("drop_stream", target=MANAGED))
    assert stream.end()[0] == "UNAVAILABLE"
    emulator.faults.assert_consumed()


def test_fail_stream_ends_a_stream_with_an_error_code(emulator, client):
    """The fault `fail_stream` ends an open stream with the given error code."""
    emulator.faults.add(Fault("fail_stream", after_responses=1, error_code="service.auth.error"))
    emulator.publish(ORDERS, orders(1))
    stream = client.subscribe()
    stream.events(1)
    assert stream.refusal() == "service.auth.error"


@pytest.mark.parametrize("status", ["UNAVAILABLE", "RESET"])
def test_drop_call_fails_a_unary_call(emulator, client, status):
    """The fault `drop_call` fails a unary call without trailers, and the next call succeeds."""
    emulator.faults.add(Fault("drop_call", status=status))
    request = pb.TopicRequest(topic_name=ORDERS)
    with pytest.raises(grpc.RpcError) as caught:
        client.call("GetTopic", request)
    assert "error-code" not in dict(caught.value.trailing_metadata() or ())
    client.call("GetTopic", request)
    emulator.faults.assert_consumed()


def test_drop_before_commit_answer_stores_the_commit(emulator, client):
    """If a stream is dropped before the response to a commit, the commit is still stored.

    The next stream starts after the committed position.
    """
    published = emulator.publish(ORDERS, orders(4))
    emulator.faults.add(Fault("drop_before_commit_answer"))
    stream = client.managed()
    stream.events(4)
    stream.send(commit(published[1].replay_id))
    assert stream.end()[0] == "UNAVAILABLE"
    assert client.managed().events(2)[0].replay_id == published[2].replay_id
    emulator.faults.assert_consumed()


def test_fail_commit_leaves_the_position_unchanged(emulator, client):
    """A failed commit has an error response and leaves the committed position unchanged.

    The stream stays open.
    """
    published = emulator.publish(ORDERS, orders(2))
    emulator.faults.add(Fault("fail_commit", message="not today"))
    stream = client.managed()
    stream.events(2)
    stream.send(commit(published[0].replay_id))
    answer = stream.answer()
    assert (answer.error.code, answer.error.msg) == (pb.COMMIT, "not today")
    assert emulator.managed.get(MANAGED).committed is None
    stream.send(commit(published[1].replay_id))
    assert not stream.answer().HasField("error")


def test_leave_commit_unanswered_omits_one_response(emulator, client):
    """The fault `leave_commit_unanswered` omits one commit's response. The next one is sent."""
    published = emulator.publish(ORDERS, orders(2))
    emulator.faults.add(Fault("leave_commit_unanswered"))
    stream = client.managed()
    stream.events(2)
    stream.send(commit(published[0].replay_id, "lost"))
    stream.send(commit(published[1].replay_id, "seen"))
    assert stream.answer().commit_request_id == "seen"
    assert stream.silent()
    emulator.faults.assert_consumed()


def test_coalesce_commits_answers_several_commits_at_once(emulator, client):
    """Three commits receive a single response, with the values of the last one."""
    published = emulator.publish(ORDERS, orders(3))
    emulator.faults.add(Fault("coalesce_commits", count=3, within_s=60))
    stream = client.managed()
    stream.events(3)
    for number, event in enumerate(published):
        stream.send(commit(event.replay_id, str(number)))
        if number < 2:
            assert stream.silent(0.05)
    assert stream.answer().commit_request_id == "2"


def test_coalesce_commits_answers_after_within_s(emulator, client):
    """If fewer than `count` commits arrive, the fault `coalesce_commits` sends their response after
    `within_s` seconds.
    """
    (event,) = emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("coalesce_commits", count=5, within_s=0.05))
    stream = client.managed()
    stream.events(1)
    stream.send(commit(event.replay_id, "only"))
    assert stream.answer().commit_request_id == "only"


def test_an_error_is_never_hidden_by_coalescing(start):
    """A rejected commit gets its own response, even if the commits before it share one."""
    emulator, client = start(settings=Settings(commit_answer_delay_s=0.2))
    published = emulator.publish(ORDERS, orders(3))
    stream = client.managed()
    stream.events(3)
    for request in (
        commit(published[0].replay_id, "0"),
        commit(published[1].replay_id, "1"),
        commit(b"", "bad"),
        commit(published[2].replay_id, "2"),
    ):
        stream.send(request)
    answers = [stream.answer() for _ in range(3)]
    assert [(a.commit_request_id, a.HasField("error")) for a in answers] == [
        ("1", False),
        ("bad", True),
        ("2", False),
    ]


def test_hold_slot_keeps_the_managed_slot_taken(start):
    """The fault `hold_slot` keeps the managed slot taken for a time after its stream has ended."""
    emulator, client = start(clock=ManualClock())
    emulator.publish(ORDERS, orders(1))
    emulator.faults.add(Fault("hold_slot", seconds=900))
    stream = client.managed()
    stream.events(1)
    stream.half_close()
    stream.end()
    emulator.clock.jump(899)
    assert client.managed().refusal() == "managed.subscription.already.active"
    emulator.clock.jump(1)
    client.managed().events(1)
    emulator.faults.assert_consumed()


def test_withhold_keepalive_omits_keepalives(start):
    """The fault `withhold_keepalive` omits two keepalives, and the third one is sent."""
    emulator, client = start(clock=ManualClock())
    emulator.faults.add(Fault("withhold_keepalive", times=2))
    stream = client.subscribe()
    until(lambda: emulator.bus.bells.count(ORDERS))
    for happened in (1, 2):
        emulator.clock.jump(120)
        until(lambda n=happened: emulator.faults.report()[0]["happened"] == n)
        assert stream.silent(0.05)
    emulator.clock.jump(120)
    assert not stream.next().events
    emulator.faults.assert_consumed()


def test_the_emulator_works_after_a_hundred_faults(emulator, client):
    """After a hundred dropped streams, the next one delivers all events.

    No listener of the dropped streams is left.
    """
    published = emulator.publish(ORDERS, orders(3))
    emulator.faults.add(Fault("drop_stream", after_responses=1, times=100))
    for _ in range(100):
        assert client.managed().end()[0] == "UNAVAILABLE"
    assert len(client.managed().events(3)) == len(published)
    until(lambda: emulator.bus.bells.count(ORDERS) == 1)
    emulator.faults.assert_consumed()


def test_every_kind_is_tested():
    """Each kind of fault is used in one of the files test_faults*.py."""
    files = Path(__file__).parent.rglob("test_faults*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [kind for kind in KINDS if f'Fault("{kind}"' not in text] == []


def test_every_kind_is_documented():
    """docs/reference/emulator.md lists exactly the existing kinds of faults and parameters."""
    text = page("emulator").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", text, re.MULTILINE)
    written = {name: set(re.findall(r"`(\w+)`", params)) for name, params in rows if name in KINDS}
    assert written == {name: set(kind.params) for name, kind in KINDS.items()}
