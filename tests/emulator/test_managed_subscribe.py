"""Tests of ManagedSubscribe: how a subscription is named, its slot (only one stream may be open at
a time), commits and their refusals, and the commit deadline.
"""

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
    """Return the emulator's stored record of the default managed subscription."""
    return emulator.managed.get(MANAGED)


def hold(client):
    """Open a managed stream, wait until it holds the subscription's slot, and return it."""
    stream = client.managed()
    stream.events(1)
    return stream


@pytest.fixture
def filled(pair):
    """An emulator, its client, and the results of publishing ten orders."""
    emulator, client = pair
    return emulator, client, emulator.publish(ORDERS, orders(10))


def test_lookup_by_name_and_by_both_id_forms(filled):
    """The developer name and the ID with 18 or 15 characters all identify the same subscription."""
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
    """A first request that breaks a rule ends the stream with the error code of that rule."""
    found = client.managed(**first).refusal()
    assert found in (P + suffix, P + "subscription." + suffix)


def test_unknown_name_ends_the_stream_with_not_found(client):
    """An unknown developer name ends the stream with NOT_FOUND, and the error text contains the
    name.
    """
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
def test_invalid_later_request_is_refused(filled, later, suffix):
    """A later request ends an open stream if it is empty, requests a negative number of events, or
    names another subscription.
    """
    stream = hold(filled[1])
    stream.send(later)
    assert stream.refusal() == P + suffix


def test_name_may_be_repeated(filled):
    """A later request may repeat the developer name or the ID of the stream's own subscription."""
    emulator, client, _ = filled
    stream = client.managed(num_requested=1)
    stream.events(1)
    stream.send(pb.ManagedFetchRequest(num_requested=1, developer_name=MANAGED))
    stream.events(1)
    own = state(emulator).subscription_id
    stream.send(pb.ManagedFetchRequest(num_requested=1, subscription_id=own))
    stream.events(1)


def test_propagation(start):
    """A new subscription is reported as not found until the propagation time has passed."""
    emulator, client = start(clock=ManualClock(), settings=Settings(propagation_s=120))
    assert client.managed().refusal() == P + "developer.name.not.found"
    emulator.clock.jump(120)
    emulator.publish(ORDERS, orders(1))
    hold(client)


# Commits.


def test_commit_moves_the_start_of_the_next_stream(filled):
    """A commit is answered in a response without events that echoes the request's ID and position,
    and the next stream starts after the committed position.
    """
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


def test_next_stream_starts_over_without_a_commit(filled):
    """Delivery alone does not move the position: the next stream starts at the oldest event again,
    because `default_replay` is EARLIEST.
    """
    _, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.half_close()
    stream.end()
    assert client.managed().events(1)[0].replay_id == published[0].replay_id


def test_commit_can_share_a_request_with_credit(filled):
    """One request may both commit and ask for more events; the commit is still answered in a
    response of its own.
    """
    _, client, published = filled
    stream = client.managed(num_requested=2)
    stream.events(2)
    stream.send(commit(published[1].replay_id, "c", num_requested=3))
    responses = [stream.next(), stream.next()]
    answers = [r for r in responses if r.HasField("commit_response")]
    events = [r for r in responses if r.events]
    assert len(answers) == len(events) == 1


def test_commit_request_id_may_be_empty(filled):
    """A commit without a `commit_request_id` is accepted and answered."""
    _, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[0].replay_id))
    assert stream.answer().replay_id == published[0].replay_id


def test_eight_byte_replay_id_can_be_committed(filled):
    """A commit accepts the first eight bytes of a replay ID in place of the full ID."""
    emulator, client, published = filled
    stream = client.managed()
    stream.events(10)
    stream.send(commit(published[4].replay_id[:8]))
    assert not stream.answer().HasField("error")
    assert emulator.bus.ids.mint(state(emulator).committed) == published[4].replay_id


def test_commits_coalesce(start):
    """Commits that are pending at the same time share one response, which contains the request ID
    of the last.
    """
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
def test_commit_answer_settings(start, tip, pending):
    """Settings determine what a response to a commit contains besides the commit itself.

    The latest replay ID is left out, is that of the last event sent, or is the org's newest; the
    pending count is included or left out.
    """
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
    """A commit of a missing, malformed, undelivered or earlier position is answered with a COMMIT
    error; the committed position stays, and the stream still accepts a valid commit.
    """
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


def test_committed_position_can_be_committed_again(filled):
    """Committing the same replay ID again succeeds, even on a stream that has not delivered that
    event.
    """
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


def test_commit_refuses_an_event_of_an_earlier_stream(filled):
    """An event that only an earlier stream has delivered cannot be committed on the current
    stream.
    """
    _, client, published = filled
    first = client.managed()
    first.events(10)
    first.half_close()
    first.end()
    second = client.managed(num_requested=1)
    second.events(1)
    second.send(commit(published[9].replay_id))
    assert second.answer().error.code == pb.COMMIT


def test_commit_refuses_an_event_of_another_topic(start):
    """A position that lies between two delivered events but belongs to another topic's event cannot
    be committed; each delivered event can.
    """
    emulator, client = start(settings=Settings(commit_answer_delay_s=0))
    first = emulator.publish(ORDERS, orders(2))
    (other,) = emulator.publish(ACCOUNTS, [{}])
    last = emulator.publish(ORDERS, orders(2))
    stream = client.managed()
    stream.events(4)
    for event, is_good in ((first[0], True), (other, False), (last[0], True), (last[1], True)):
        stream.send(commit(event.replay_id))
        assert stream.answer().HasField("error") is not is_good


def test_keepalive_position_can_be_committed(start):
    """The position in a keepalive counts as delivered: it can be committed, and the next stream
    starts after it.
    """
    emulator, client = start(settings=Settings(keepalive_s=0.05))
    emulator.bus.skip_positions(7)
    stream = client.managed()
    tip = stream.next()
    assert not tip.events
    stream.send(commit(tip.latest_replay_id))
    assert not stream.answer().HasField("error")
    assert emulator.managed.start_position(state(emulator)) == state(emulator).committed


@pytest.mark.parametrize(
    ("default", "recovery", "missed"), [("LATEST", "EARLIEST", 1), ("EARLIEST", "LATEST", 0)]
)
def test_expired_position(start, default, recovery, missed):
    """If the committed replay ID has expired, the next stream starts at `error_recovery_replay`,
    not at `default_replay`.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(commit_answer_delay_s=0))
    emulator.managed.delete(MANAGED)
    emulator.managed.create(MANAGED, ORDERS, default_replay=default, error_recovery_replay=recovery)
    stream = client.managed()
    until(lambda: emulator.bus.bells.count(ORDERS) == 1)
    published = emulator.publish(ORDERS, orders(3))
    stream.events(3)
    stream.send(commit(published[0].replay_id))
    stream.answer()
    stream.half_close()
    stream.end()
    until(lambda: emulator.bus.bells.count(ORDERS) == 0)
    emulator.clock.jump(73 * 3600)
    new = emulator.publish(ORDERS, orders(1))
    stream = client.managed()
    until(lambda: emulator.bus.bells.count(ORDERS) == 1)
    new += emulator.publish(ORDERS, orders(1))
    expected = [published.replay_id for published in new[1 - missed :]]
    assert [e.replay_id for e in stream.events(1 + missed)] == expected


def test_commit_deadline(start):
    """A stream ends with DEADLINE_EXCEEDED 1,800 s after its last commit; a repeated commit of the
    same position also extends the deadline.
    """
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
def test_commit_does_not_extend_the_idle_timeout_by_default(start, counts):
    """By default a commit does not extend the 60 s after which an idle stream is closed, which is
    the harder case for a client; with `commits_reset_idle` it does.
    """
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


def test_half_close_answers_pending_commits(start):
    """Commits that are still unanswered when the client half-closes are answered before the stream
    ends.
    """
    emulator, client = start(settings=Settings(commit_answer_delay_s=60))
    (event,) = emulator.publish(ORDERS, orders(1))
    stream = hold(client)
    stream.send(commit(event.replay_id, "last"))
    stream.half_close()
    assert stream.answer().commit_request_id == "last"
    assert stream.end()[0] == "OK"


# States.


def test_stop_ends_the_stream_and_deletes_the_position(filled):
    """Setting the state to STOP ends the stream, refuses new ones and deletes the committed
    position; after RUN, the next stream starts at `default_replay` again.
    """
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
    """Deleting a subscription ends its stream with `config.deleted`; after that, its name is
    unknown.
    """
    emulator, client, _ = filled
    stream = hold(client)
    emulator.managed.delete(MANAGED)
    assert stream.refusal() == P + "config.deleted"
    assert client.managed().refusal() == P + "developer.name.not.found"


# The slot.


def test_second_stream_is_refused(filled):
    """While a stream is open, a second one is refused with ALREADY_EXISTS, and the first still
    receives events.
    """
    emulator, client, _ = filled
    first = hold(client)
    status, _, trailers = client.managed().end()
    assert status == "ALREADY_EXISTS"
    assert trailers["error-code"].endswith(P + "already.active")
    emulator.publish(ORDERS, orders(1))
    assert first.next().events


@pytest.mark.parametrize("how", ["half_close", "cancel", "channel"])
def test_slot_is_free_after_the_end(filled, how):
    """Half-closing, cancelling the call and closing the channel each free the slot within a
    second.
    """
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
    """With `slot_release_s`, the slot stays occupied for that long after a stream has ended."""
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
    """When a client process with an idle stream is killed with SIGKILL, its slot becomes free.

    This usually takes less than a second; the timeout of five seconds is for a busy machine.
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
