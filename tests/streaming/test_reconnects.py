"""Tests that no event is lost or repeated when the connection fails, with both clients.

The scenarios publish before, during and after a failure, and read everything: each event must be
delivered once, in order. Each runs with the synchronous and with the asyncio client.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from sfpubsub.auth.session import StaticSession
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import (
    AuthenticationError,
    ReplayIdRejectedError,
    SessionExpiredError,
    StreamUnavailableError,
)
from sfpubsub.streaming import Pace, as_replay_id

from ..conftest import PATIENCE, until
from .conftest import TOPIC, numbered
from .faces import QUICK, Current, session_of

EVERYTHING = {
    "session killed": Fault("end_cometd_session"),
    "403::Unknown client": Fault(
        "refuse_message", rpc="/meta/connect", text="403::Unknown client", reconnect="handshake"
    ),
    "402::session_unknown without advice": Fault(
        "refuse_message", rpc="/meta/connect", text="402::session_unknown"
    ),
    "goodbye by the server": Fault("say_goodbye"),
    "HTML with status 500": Fault("answer_with_page", rpc="/meta/connect", status=500),
    "HTML with status 503, thrice": Fault("answer_with_page", times=3, status=503),
    "reset with events in flight": Fault("cut_poll"),
    "reset while nothing is there": Fault("cut_poll", with_events=False),
    "reset again and again": Fault("cut_poll", times=3),
    "retry": Fault("refuse_message", rpc="/meta/connect", text="500::oops", reconnect="retry"),
    "too busy": Fault(
        "refuse_message",
        rpc="/meta/connect",
        text="401::Authentication invalid",
        reconnect="none",
        reason="503::Server is too busy. Please try your request again later.",
    ),
    "token revoked": Fault("revoke_token"),
    "token expired": Fault("expire_token"),
    "an answer in two halves": Fault("drip_answer", seconds=0.1),
}


@pytest.mark.parametrize("what", EVERYTHING)
def test_no_event_is_lost_or_repeated(face, emulator, what):
    """Each event is delivered once, without a Gap, even if a session, token, connection or response
    fails.

    Only a revoked or expired token triggers a new sign-in, and just one.
    """
    gaps: list = []
    provider = Current(emulator)
    client = face(provider, on_gap=gaps.append)
    past = emulator.publish_streaming(TOPIC, numbered(3))
    client.subscribe(TOPIC, -2)
    assert client.ids(3) == past
    emulator.faults.add(EVERYTHING[what])
    found = []
    for _ in range(4):
        found += emulator.publish_streaming(TOPIC, numbered(2))
        time.sleep(0.01)  # spreads the events over several answers of the server
    assert client.ids(8) == found
    assert client.rest() == []
    assert gaps == []
    found = emulator.publish_streaming(TOPIC, numbered(1))
    assert client.ids(1) == found
    until(lambda: all(row["happened"] >= row["times"] for row in emulator.faults.report()))
    assert provider.renewals == (1 if what.startswith("token") else 0)


@pytest.mark.parametrize("kind", ["cut_poll", "end_cometd_session"])
def test_a_slow_consumer_receives_each_event_once(face, emulator, kind):
    """Even if the session is lost while the queue is full, the reader receives each event once.

    The queue stays full for longer than a session lives.
    """
    found = emulator.publish_streaming(TOPIC, numbered(30))
    client = face(emulator, TOPIC, replay=-2, max_pending_count=5)
    until(lambda: client.pending_count >= 5)
    found += emulator.publish_streaming(TOPIC, numbered(20))
    emulator.clock.jump(60.0)
    emulator.faults.add(Fault(kind))
    assert client.ids(50) == found
    assert client.rest() == []


def test_the_queue_never_exceeds_its_limit_plus_one_response(face, run_emulator):
    """The queue never holds more events than its limit plus one response from the server.

    Polling resumes as soon as there is room, without waiting for a timer.
    """
    emulator = run_emulator(settings=Settings(streaming_reply_events=4))
    found = emulator.publish_streaming(TOPIC, numbered(40))
    pace = Pace(request=600.0)
    client = face(emulator, TOPIC, replay=-2, max_pending_count=5, pace=pace)
    until(lambda: client.pending_count >= 5)
    most = client.pending_count
    seen = []
    for _ in found:
        seen += client.ids(1)
        most = max(most, client.pending_count)
    assert most <= 5 + 4
    assert seen == found


@pytest.mark.parametrize("policy", ["automatic", "manual"])
def test_unsubscribing_with_a_full_queue_repeats_no_events(face, emulator, policy):
    """Events queued before an unsubscribe are delivered, and are not repeated after the next
    subscribe.
    """
    found = emulator.publish_streaming(TOPIC, numbered(8))
    store = {TOPIC: as_replay_id(found[0])}
    client = face(emulator, TOPIC, replay=store, replay_policy=policy, max_pending_count=3)
    until(lambda: client.pending_count >= 3)
    seen = client.ids(1)
    client.unsubscribe(TOPIC)
    assert client.subscriptions == set()
    found += emulator.publish_streaming(TOPIC, numbered(2))
    client.subscribe(TOPIC)
    seen += client.ids(8)
    assert seen == found[1:]
    assert client.rest() == []


def test_unsubscribe_succeeds_after_the_session_has_expired(face, emulator):
    """An unsubscribe succeeds after the server's session has expired, and no later events are
    delivered.
    """
    client = face(emulator, TOPIC, replay=-1, max_pending_count=1)
    found = emulator.publish_streaming(TOPIC, numbered(2))
    until(lambda: client.pending_count)
    emulator.clock.jump(60.0)
    client.unsubscribe(TOPIC)
    assert client.subscriptions == set()
    emulator.publish_streaming(TOPIC, numbered(2))
    seen = client.ids(1) + client.rest()
    assert seen == found[: len(seen)]


def test_two_channels_resume_from_their_own_positions(face, emulator):
    """After a lost connection, two channels of one client each resume from their own position."""
    client = face(emulator, TOPIC, replay=-2)
    client.subscribe("/event/Order_Event__e")
    emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "1"}])
    first = emulator.publish_streaming(TOPIC, numbered(1))
    client.collect(2)
    emulator.faults.add(Fault("cut_poll", with_events=False))
    until(lambda: emulator.faults.report()[0]["happened"] == 1)
    emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "2"}])
    second = emulator.publish_streaming(TOPIC, numbered(1))
    found = client.collect(2)
    assert sorted(item.channel for item in found) == ["/event/Order_Event__e", TOPIC]
    assert [item.replay_id for item in found if item.channel == TOPIC] == second != first


def start_outage(tmp_path, face, seconds, timeout):
    """Connect a client with the connection_timeout *timeout*, then stop its emulator.

    Return the client, a function that waits for *seconds* and restarts the emulator, and the
    monotonic time at which the outage began.
    """
    with EmulatorServer(tmp_path) as emulator:
        port = int(emulator.http_url.rpartition(":")[2])
        session = session_of(emulator)
        found = emulator.publish_streaming(TOPIC, numbered(2))
        client = face(StaticSession(session), TOPIC, replay=-2, connection_timeout=timeout)
        assert client.ids(2) == found
        begun = time.monotonic()

    def back() -> EmulatorServer:
        time.sleep(seconds)  # the outage itself
        return EmulatorServer(tmp_path, http_port=port)

    return client, back, begun


def test_an_outage_shorter_than_the_timeout_is_not_reported(tmp_path, face):
    """If the server returns within connection_timeout, no error is raised and no event is lost."""
    client, back, _ = start_outage(tmp_path, face, 0.6, 60.0)
    with back() as emulator:
        found = emulator.publish_streaming(TOPIC, numbered(3))
        assert client.ids(3) == found
        assert client.rest() == []
        client.stop()


def test_an_outage_longer_than_the_timeout_is_reported_repeatedly(tmp_path, face):
    """An outage is reported after each further connection_timeout, never earlier.

    The client stays open and gets every event once the server is back.
    """
    client, back, begun = start_outage(tmp_path, face, 0.0, 0.5)
    for number in (1, 2):
        with pytest.raises(StreamUnavailableError, match=r"no connection for 0\.5 s"):
            client.receive()
        assert time.monotonic() - begun >= 0.5 * number
    assert not client.closed
    with back() as emulator:
        found = emulator.publish_streaming(TOPIC, numbered(3))
        received = []
        while len(received) < 3:
            try:
                received.append(client.receive().replay_id)
            except StreamUnavailableError:
                continue
        assert received == found
        client.stop()


def test_an_unanswered_subscribe_is_retried(face, emulator):
    """A subscribe request whose response does not arrive in time is retried, and events are then
    delivered.
    """
    pace = Pace(request=0.2, backoff_initial=0.02, backoff_max=0.1, close=1.0)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    client = face(emulator, TOPIC, replay=-2, pace=pace)
    assert client.ids(1) == found
    emulator.faults.add(Fault("drip_answer", rpc="/meta/subscribe", seconds=1.0))
    emulator.publish_streaming("/u/News", [{"payload": "x"}])
    client.subscribe("/u/News")
    assert client.collect(1)[0].payload == "x"


def test_an_expired_token_without_renewal_closes_the_client(face, emulator):
    """If an expired token cannot be renewed, the reader gets the reason and the client
    is closed.
    """
    client = face(StaticSession(session_of(emulator)), TOPIC)
    emulator.faults.add(Fault("expire_token"))
    with pytest.raises(SessionExpiredError, match="no longer accepts"):
        client.receive()
    assert client.closed
    assert client.iterate() == []


def test_a_token_rejected_right_after_its_renewal_is_an_error(face, emulator):
    """A token that is rejected right after its renewal is an error, because endless sign-ins would
    lock the user out.
    """
    provider = Current(emulator)
    client = face(provider, TOPIC)
    refused = Fault(
        "refuse_message",
        rpc="/meta/handshake",
        text="403::Handshake denied",
        reconnect="none",
        reason="401::Authentication invalid",
    )
    emulator.faults.add(refused)
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: provider.renewals == 1)
    emulator.faults.add(refused)
    emulator.faults.add(Fault("end_cometd_session"))
    with pytest.raises(AuthenticationError, match="renewed session is refused as well"):
        client.receive()
    assert provider.renewals == 1


@pytest.mark.parametrize("fallback", [None, -2])
def test_a_position_that_expired_during_an_outage_is_reported(face, emulator, fallback):
    """If the position has expired by the time of a reconnect, the reader receives an error, or a
    Gap if a fallback is set. Events published afterwards are received in both cases.
    """
    gaps: list = []
    found = emulator.publish_streaming(TOPIC, numbered(2))
    client = face(emulator, TOPIC, replay=-2, replay_fallback=fallback, on_gap=gaps.append)
    client.ids(2)
    emulator.bus.age_out()
    emulator.faults.add(Fault("end_cometd_session"))
    if fallback is None:
        with pytest.raises(ReplayIdRejectedError) as refused:
            client.receive()
        assert int.from_bytes(bytes(refused.value.gap.after), "big") == found[-1]
        assert client.subscriptions == set()
        client.subscribe(TOPIC, -2)
    else:  # an event published before the session ends would still be delivered in it
        until(lambda: gaps)
    new = emulator.publish_streaming(TOPIC, numbered(1))
    assert client.ids(1) == new
    assert [gap.reason for gap in gaps] == ([] if fallback is None else ["rejected"])


def test_a_session_lost_before_any_event_reports_a_gap(face, emulator, caplog):
    """If the session is lost before the first event of a channel, a Gap "unanchored" is reported
    and logged.
    """
    gaps: list = []
    client = face(emulator, TOPIC, on_gap=gaps.append)
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: gaps)
    assert [(gap.reason, gap.subscription) for gap in gaps] == [("unanchored", TOPIC)]
    assert "position lost on /topic/Accounts (unanchored)" in caplog.text
    until(lambda: client.subscriptions and emulator.cometd.sessions.count() == 1)


def test_closing_during_a_poll_loses_nothing(face, emulator):
    """Events published before, during and after a close are each delivered once, even if only after
    the client is reopened.
    """
    client = face(emulator, TOPIC, replay={})
    found = emulator.publish_streaming(TOPIC, numbered(1))
    seen = client.ids(1)
    for _ in range(3):
        publisher = threading.Thread(
            target=lambda: found.extend(emulator.publish_streaming(TOPIC, numbered(20)))
        )
        publisher.start()
        client.close()
        publisher.join()
        client.open()
        client.subscribe(TOPIC)
        seen += client.ids(20)
    assert seen == found
    assert client.rest() == []


@pytest.mark.parametrize("how", ["poll", "outage", "idle"])
def test_closing_is_quick_and_logs_no_error(face, emulator, caplog, how):
    """Closing during a poll, during an outage or while idle is quick and logs no error.

    A waiting iteration ends, and the server's session is closed unless the server is unreachable.
    """
    # Waiting for the poll would take 110 s; for a disconnect without an answer, 60 s.
    pace = replace(QUICK, close=60.0)
    client = face(emulator, TOPIC, connection_timeout=None, pace=pace)
    if how == "outage":
        emulator.faults.add(Fault("answer_with_page", times=1000))
        emulator.faults.add(Fault("end_cometd_session"))
        until(lambda: emulator.faults.report()[0]["happened"] > 2)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(client.iterate()))
    if how != "idle":
        reader.start()
        time.sleep(0.02)  # lets the poll begin; if it has not, the test is only easier
    begun = time.monotonic()
    client.close()
    assert time.monotonic() - begun < 30.0
    if how != "idle":
        reader.join(PATIENCE)
        assert seen == [[]]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    if how != "outage":
        assert emulator.cometd.sessions.count() == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("answer_with_page", rpc="/meta/disconnect", status=500),
        Fault("drip_answer", rpc="/meta/disconnect", seconds=30.0),
    ],
    ids=["page", "slow"],
)
def test_a_failed_disconnect_is_ignored(face, emulator, caplog, fault):
    """A disconnect that fails or is not answered in time neither raises nor logs an error.

    Closing stays within its time limit.
    """
    client = face(emulator, TOPIC, pace=QUICK)
    emulator.faults.add(fault)
    begun = time.monotonic()
    client.close()
    assert time.monotonic() - begun < 3 * QUICK.close
    assert client.closed
    assert [item["happened"] for item in emulator.faults.report()] == [1]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    until(lambda: not {"sfpubsub-poll", "sfpubsub-ask"} & {t.name for t in threading.enumerate()})
