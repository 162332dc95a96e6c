"""ManagedSubscribe: names, the slot, commits and their refusals, and the deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, MANAGED, ORDERS, commit, until

P = "managed.subscription."


def orders(count):
    return [{"Order_Number__c": str(i)} for i in range(count)]


def state(emulator):
    return emulator.managed.get(MANAGED)


def hold(client):
    """Take the slot and wait until it is taken."""
    stream = client.managed()
    stream.events(1)
    return stream


@pytest.fixture
def filled(pair):
    """An emulator with ten orders."""
    emulator, client = pair
    return emulator, client, emulator.publish(ORDERS, orders(10))


def test_by_name_and_by_both_forms_of_the_id(filled):
    """Developer name, 18 and 15 characters of the id name the same subscription."""
    emulator, client, published = filled
    record = state(emulator)
    assert record.subscription_id.startswith("18x")
    names = [
        {"developer_name": MANAGED},
        {"subscription_id": record.subscription_id},
        {"subscription_id": record.subscription_id[:15]},
    ]
    for name in names:
        stream = client.managed(**name)
        assert [e.replay_id for e in stream.events(10)] == [p.replay_id for p in published]
        stream.half_close()
        assert stream.end()[0] == "OK"


@pytest.mark.parametrize(
    ("first", "suffix"),
    [
        ({"developer_name": ""}, "id.or.developer.name.empty"),
        ({"developer_name": MANAGED, "subscription_id": "18x" * 6}, "id.or.developer.name.empty"),
        ({"developer_name": "Nobody"}, "developer.name.not.found"),
        ({"subscription_id": "18xSB0000000999AAA"}, "subscription.id.not.found"),
        ({"subscription_id": "18x"}, "subscription.id.invalid"),
        ({"num_requested": -1}, "fetch.request.events.invalid"),
        ({"num_requested": 0}, "fetch.request.invalid"),
        ({"auth_refresh": "x"}, "fetch.request.auth.request.restricted"),
        (
            {"commit_replay_id_request": pb.CommitReplayRequest(replay_id=b"x")},
            "fetch.request.commit.request.restricted",
        ),
    ],
)
def test_first_request_is_refused(client, first, suffix):
    """A first request that breaks a rule ends the stream with that rule's error code."""
    found = client.managed(**first).refusal()
    assert found in (P + suffix, P + "subscription." + suffix)


def test_not_found_status(client):
    """An unknown name is NOT_FOUND and named in the text."""
    status, details, _ = client.managed(developer_name="Nobody").end()
    assert status == "NOT_FOUND"
    assert "Nobody" in details


@pytest.mark.parametrize(
    ("later", "suffix"),
    [
        (pb.ManagedFetchRequest(), "fetch.request.invalid"),
        (pb.ManagedFetchRequest(num_requested=-1), "fetch.request.events.invalid"),
        (pb.ManagedFetchRequest(num_requested=1, developer_name="Other"), "fetch.request.invalid"),
    ],
)
def test_later_request_is_refused(filled, later, suffix):
    """Empty and negative requests and another name end an open stream."""
    stream = hold(filled[1])
    stream.send(later)
    assert stream.refusal() == P + suffix


def test_name_may_be_repeated(filled):
    """The same name or id in a later request is fine."""
    emulator, client, _ = filled
    stream = client.managed(num_requested=1)
    stream.events(1)
    stream.send(pb.ManagedFetchRequest(num_requested=1, developer_name=MANAGED))
    stream.events(1)
    own = state(emulator).subscription_id
    stream.send(pb.ManagedFetchRequest(num_requested=1, subscription_id=own))
    stream.events(1)


def test_propagation(start):
    """A subscription is not found until it has propagated."""
    emulator, client = start(clock=ManualClock(), settings=Settings(propagation_s=120))
    assert client.managed().refusal() == P + "developer.name.not.found"
    emulator.clock.jump(120)
    emulator.publish(ORDERS, orders(1))
    hold(client)


# Commits.


def test_commit_moves_the_start_of_the_next_stream(filled):
    """The answer comes alone, echoes the request, and the next stream begins after the position."""
    emulator, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[3].replay_id, "c1"))
    answer = stream.answer()
    assert (answer.commit_request_id, answer.replay_id) == ("c1", published[3].replay_id)
    assert not answer.HasField("error")
    assert abs(answer.process_time / 1000 - time.time()) < 60
    assert state(emulator).committed is not None
    stream.half_close()
    assert stream.end()[0] == "OK"
    assert [e.replay_id for e in client.managed().events(6)] == [p.replay_id for p in published[4:]]


def test_without_a_commit_the_next_stream_begins_again(filled):
    """Delivery alone moves nothing; default_replay EARLIEST begins at the oldest event."""
    _, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.half_close()
    stream.end()
    assert client.managed().events(1)[0].replay_id == published[0].replay_id


def test_commit_can_share_a_request_with_credit(filled):
    """A request may both commit and ask; the answer is still a response of its own."""
    _, client, published = filled
    stream = client.managed(num_requested=2)
    stream.events(2)
    stream.send(commit(published[1].replay_id, "c", num_requested=3))
    responses = [stream.next(), stream.next()]
    answers = [r for r in responses if r.HasField("commit_response")]
    events = [r for r in responses if r.events]
    assert len(answers) == len(events) == 1


def test_commit_request_id_may_be_empty(filled):
    """A commit without an id of its own is answered."""
    _, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[0].replay_id))
    assert stream.answer().replay_id == published[0].replay_id


def test_eight_byte_form_is_committed(filled):
    """The eight-byte form of an id is accepted for commits as well."""
    emulator, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[4].replay_id[:8]))
    assert not stream.answer().HasField("error")
    assert emulator.bus.ids.mint(state(emulator).committed) == published[4].replay_id


def test_commits_coalesce(start):
    """Commits that wait together share one answer with the values of the last."""
    emulator, client = start(settings=Settings(commit_answer_delay_s=0.2))
    published = emulator.publish(ORDERS, orders(5))
    stream = client.managed()
    stream.events(5)
    for number, event in enumerate(published):
        stream.send(commit(event.replay_id, f"c{number}"))
    assert stream.answer().commit_request_id == "c4"
    assert stream.silent()


@pytest.mark.parametrize("tip", ["none", "sent", "org"])
@pytest.mark.parametrize("pending", [True, False])
def test_shape_of_an_answer(start, tip, pending):
    """Settings say whether an answer carries a position and the pending number."""
    emulator, client = start(
        settings=Settings(commit_answer_tip=tip, commit_answer_pending=pending)
    )
    published = emulator.publish(ORDERS, orders(2))
    stream = client.managed()
    stream.events(2)
    emulator.bus.skip_positions(5)
    stream.send(commit(published[0].replay_id))
    response = stream.next()
    org = emulator.bus.ids.mint(emulator.bus.tip())
    expected = {"none": b"", "sent": published[1].replay_id, "org": org}
    assert response.latest_replay_id == expected[tip]
    assert response.pending_num_requested == (98 if pending else 0)


def test_refusals_leave_the_stream_open(filled):
    """Missing, garbage, undelivered and backward positions are answered with COMMIT errors."""
    emulator, client, published = filled
    stream = client.managed(num_requested=5)
    stream.events(5)
    stream.send(commit(published[2].replay_id))
    assert not stream.answer().HasField("error")
    before = state(emulator).committed
    bad = {
        "missing": (b"", "no Replay ID"),
        "garbage": (b"12345678", "invalid"),
        "short": (b"\x01", "invalid"),
        "undelivered": (published[7].replay_id, "not delivered"),
        "backward": (published[1].replay_id, "already committed"),
    }
    for name, (replay_id, expected) in bad.items():
        stream.send(commit(replay_id, name))
        answer = stream.answer()
        assert answer.commit_request_id == name
        assert answer.error.code == pb.COMMIT
        assert expected in answer.error.msg
    assert state(emulator).committed == before
    stream.send(commit(published[4].replay_id))
    assert not stream.answer().HasField("error")


def test_the_committed_position_is_always_accepted(filled):
    """Committing the same id again succeeds, also on a stream that has not delivered it."""
    _, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[9].replay_id))
    stream.answer()
    stream.half_close()
    stream.end()
    again = client.managed()
    again.send(commit(published[9].replay_id, "again"))
    assert not again.answer().HasField("error")


def test_a_position_of_another_stream_is_refused(filled):
    """What an earlier stream delivered, but not this one, cannot be committed."""
    _, client, published = filled
    first = client.managed()
    first.events(10)
    first.half_close()
    first.end()
    second = client.managed(num_requested=1)
    second.events(1)
    second.send(commit(published[9].replay_id))
    assert second.answer().error.code == pb.COMMIT


def test_an_event_of_another_topic_is_refused(start):
    """Between two events that were delivered lies one that was not; every one of the delivered ones
    can be committed, whatever the topic's first was."""
    emulator, client = start(settings=Settings(commit_answer_delay_s=0))
    first = emulator.publish(ORDERS, orders(2))
    (other,) = emulator.publish(ACCOUNTS, [{}])
    last = emulator.publish(ORDERS, orders(2))
    stream = client.managed()
    stream.events(4)
    for event, is_good in ((first[0], True), (other, False), (last[0], True), (last[1], True)):
        stream.send(commit(event.replay_id))
        assert stream.answer().HasField("error") is not is_good


def test_keepalive_tip_can_be_committed(start):
    """The position of a keepalive counts as delivered, and the next stream begins after it."""
    emulator, client = start(settings=Settings(keepalive_s=0.05))
    emulator.bus.skip_positions(7)
    stream = client.managed()
    tip = stream.next()
    assert not tip.events
    stream.send(commit(tip.latest_replay_id))
    assert not stream.answer().HasField("error")
    assert emulator.managed.start_position(state(emulator)) == state(emulator).committed


def test_expired_position(start):
    """Once the committed id has aged out a stream begins at errorRecoveryReplay."""
    emulator, client = start(clock=ManualClock(), settings=Settings(commit_answer_delay_s=0))
    published = emulator.publish(ORDERS, orders(3))
    stream = client.managed()
    stream.events(3)
    stream.send(commit(published[0].replay_id))
    stream.answer()
    stream.half_close()
    stream.end()
    emulator.clock.jump(73 * 3600)
    (new,) = emulator.publish(ORDERS, orders(1))
    assert [e.replay_id for e in client.managed().events(1)] == [new.replay_id]


def test_commit_deadline(start):
    """1,800 s after the last commit the stream ends with DEADLINE_EXCEEDED; any commit counts."""
    emulator, client = start(clock=ManualClock(), settings=Settings(commit_answer_delay_s=0))
    (event,) = emulator.publish(ORDERS, orders(1))
    stream = hold(client)
    for _ in range(2):
        emulator.clock.jump(1799)
        stream.send(commit(event.replay_id))
        stream.answer()
    emulator.clock.jump(1800)
    status, details, trailers = stream.end()
    assert status == "DEADLINE_EXCEEDED"
    assert "1800 seconds" in details
    assert trailers["type"] == "ManagedSubscribe"


@pytest.mark.parametrize("counts", [False, True])
def test_whether_a_commit_keeps_an_idle_stream_open(start, counts):
    """By default it does not, which is the harder case; with the setting the 60 s begin anew."""
    settings = Settings(commits_reset_idle=counts, commit_answer_delay_s=0)
    emulator, client = start(clock=ManualClock(), settings=settings)
    (event,) = emulator.publish(ORDERS, orders(1))
    stream = client.managed(num_requested=1)
    stream.events(1)
    emulator.clock.jump(59)
    stream.send(commit(event.replay_id))
    stream.answer()
    emulator.clock.jump(1)
    if counts:
        assert stream.silent()
        emulator.clock.jump(59)
    assert stream.end()[0] == "OK"


def test_half_close_answers_first(start):
    """Commits still unanswered when the client half-closes are answered before the end."""
    emulator, client = start(settings=Settings(commit_answer_delay_s=60))
    (event,) = emulator.publish(ORDERS, orders(1))
    stream = hold(client)
    stream.send(commit(event.replay_id, "last"))
    stream.half_close()
    assert stream.answer().commit_request_id == "last"
    assert stream.end()[0] == "OK"


# States.


def test_stop_ends_the_stream_and_forgets_the_position(filled):
    """STOP ends the stream, refuses new ones, and RUN begins at default_replay again."""
    emulator, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[5].replay_id))
    stream.answer()
    emulator.managed.set_state(MANAGED, "STOP")
    assert stream.refusal() == P + "config.stopped"
    assert client.managed().refusal() == P + "config.stopped"
    assert state(emulator).committed is None
    emulator.managed.set_state(MANAGED, "RUN")
    assert client.managed().events(1)[0].replay_id == published[0].replay_id


def test_delete_ends_the_stream(filled):
    """Deleting ends the stream with config.deleted; afterwards the name is not found."""
    emulator, client, _ = filled
    stream = hold(client)
    emulator.managed.delete(MANAGED)
    assert stream.refusal() == P + "config.deleted"
    assert client.managed().refusal() == P + "developer.name.not.found"


# The slot.


def test_second_stream_is_refused(filled):
    """While a stream is open a second one gets ALREADY_EXISTS; the first goes on."""
    emulator, client, _ = filled
    first = hold(client)
    status, _, trailers = client.managed().end()
    assert status == "ALREADY_EXISTS"
    assert trailers["error-code"].endswith(P + "already.active")
    emulator.publish(ORDERS, orders(1))
    assert first.next().events


@pytest.mark.parametrize("how", ["half_close", "cancel", "channel"])
def test_slot_is_free_after_the_end(filled, how):
    """Half-close, cancel and a closed channel free the slot within a second."""
    emulator, client, _ = filled
    stream = hold(client)
    if how == "half_close":
        stream.half_close()
        stream.end()
    elif how == "cancel":
        stream.call.cancel()
    else:
        client.channel.close()
    own = state(emulator).subscription_id
    until(lambda: not emulator.managed.is_active(own), seconds=1)


def test_slot_release_setting(start):
    """slot_release_s keeps the slot taken after the end of its stream."""
    emulator, client = start(clock=ManualClock(), settings=Settings(slot_release_s=15))
    emulator.publish(ORDERS, orders(1))
    stream = hold(client)
    stream.half_close()
    stream.end()
    assert client.managed().refusal() == P + "already.active"
    emulator.clock.jump(15)
    hold(client)


_IDLE_CLIENT = """
import sys, queue, grpc
from sfpubsub_grpc import pubsub_api_pb2 as pb, pubsub_api_pb2_grpc as g
target, *values = sys.argv[1:]
metadata = tuple(zip(("accesstoken", "instanceurl", "tenantid"), values))
requests = queue.Queue()
requests.put(pb.ManagedFetchRequest(developer_name="My_Managed_Subscription", num_requested=100))
stub = g.PubSubStub(grpc.insecure_channel(target))
for response in stub.ManagedSubscribe(iter(requests.get, None), metadata=metadata):
    print(len(response.events), flush=True)
"""


def test_slot_is_free_soon_after_a_kill(filled):
    """A client process killed with SIGKILL while its stream is idle holds the slot no longer.

    Within a second, that is; five are for a machine that has much else to do.
    """
    emulator, client, _ = filled
    values = [value for _, value in emulator.metadata]
    process = subprocess.Popen(
        [sys.executable, "-c", _IDLE_CLIENT, emulator.grpc_target, *values],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    own = state(emulator).subscription_id
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"10\n"
        assert emulator.managed.is_active(own)
        process.send_signal(signal.SIGKILL)
        until(lambda: not emulator.managed.is_active(own), seconds=5)
    hold(client)
